"""Probes find what was planted where it was planted, and nothing else; references are scikit-learn's."""

import numpy as np
import pytest
import torch
from sklearn.covariance import ledoit_wolf

from interp.tools.held_out import raked
from interp.tools.probes import discriminant, probe

ROWS, WIDTH = 240, 12


def planted(classes: int, *, width: int = WIDTH, size: float = 3.0) -> tuple[torch.Tensor, np.ndarray, np.ndarray]:
    """Three layers of noise, a label written along random directions at layer 1 alone; 40 groups of 6 cases."""
    rng = np.random.default_rng(0)
    labels = rng.integers(classes, size=ROWS)
    hidden = rng.normal(size=(3, ROWS, width))
    hidden[1] += size * rng.normal(size=(classes, width))[labels] / np.sqrt(width) * 2
    return torch.tensor(hidden, dtype=torch.float32), labels, np.arange(ROWS) // 6


@pytest.mark.parametrize("classes", [2, 5])
def test_finds_the_planted_point_and_no_other(classes: int) -> None:
    hidden, labels, groups = planted(classes)
    found = probe(hidden, labels, groups)
    assert found.balanced_accuracy[1] > 0.9
    assert (found.balanced_accuracy - found.control)[1] > 0.9 - 1 / classes - 0.15
    assert abs(found.balanced_accuracy[[0, 2]] - 1 / classes).max() < 0.1
    assert abs(found.control - 1 / classes).max() < 0.1
    assert len(found.classes) == classes
    assert np.isnan(found.auroc).all() == (classes > 2)
    assert (found.predicted[1] == labels).mean() > 0.9


def test_a_group_is_never_split() -> None:
    """Each group has its own mark and its own label: known by heart in fitting, worth nothing for another group."""
    rng = np.random.default_rng(0)
    groups = np.arange(ROWS) // 6
    marks, label = rng.normal(size=(40, 60)) * 10, rng.permutation(np.arange(40) % 2)
    hidden = torch.tensor(marks[groups] + rng.normal(size=(ROWS, 60)))[None]
    assert probe(hidden, label[groups], groups).balanced_accuracy[0] < 0.7
    assert probe(hidden, label[groups], np.arange(ROWS)).balanced_accuracy[0] > 0.95


def test_balancing_undoes_the_lean_of_a_balanced_design() -> None:
    """Every word is safe with three things and unsafe with three: it says nothing, but leans in a training fold."""
    rng = np.random.default_rng(0)
    words, things = np.divmod(np.arange(ROWS) % 48, 6)
    safe, groups = (words + things) % 2 == 0, words * 6 + things
    hidden = 3 * np.eye(8)[words] + rng.normal(size=(ROWS, 8))
    truth = np.concatenate([hidden, safe[:, None] + rng.normal(size=(ROWS, 1))], axis=1)
    alone, with_truth = torch.tensor(hidden)[None], torch.tensor(truth)[None]
    assert probe(alone, safe, groups).auroc[0] < 0.4
    assert probe(alone, safe, groups, balance=[words]).auroc[0] == pytest.approx(0.5, abs=0.1)
    raw, balanced = (probe(with_truth, safe, groups, balance=given).auroc[0] for given in ([], [words]))
    assert balanced > 0.7
    assert balanced > raw + 0.05


def test_raking_balances_the_label_within_every_value() -> None:
    rng = np.random.default_rng(0)
    codes, one, other = rng.integers(2, size=300), rng.integers(6, size=300), rng.integers(4, size=300)
    weights = raked(codes, [one, other])
    for nuisance in (one, other):
        for value in np.unique(nuisance):
            sides = [weights[(nuisance == value) & (codes == code)].sum() for code in (0, 1)]
            assert sides[0] == pytest.approx(sides[1], rel=1e-3)
    assert raked(codes, []) == pytest.approx(np.ones(300))
    lone = np.array([0, 0, 1, 1, 0])
    assert raked(lone, [np.array([0, 1, 0, 1, 2])]).tolist() == [1, 1, 1, 1, 0]


@pytest.mark.parametrize("width", [5, 80])
def test_discriminant_is_the_textbooks(width: int) -> None:
    """More cases than features and fewer, on features that are standardised already and classes of one size."""
    rng = np.random.default_rng(0)
    codes = np.arange(60) % 3
    hidden = rng.normal(size=(60, width)) + 0.5 * codes[:, None]
    hidden = (hidden - hidden.mean(0)) / hidden.std(0)
    means = np.stack([hidden[codes == k].mean(0) for k in range(3)])
    covariance, _ = ledoit_wolf(hidden - means[codes], assume_centered=True)
    inward = np.linalg.solve(covariance, means.T).T
    expected = hidden @ inward.T - 0.5 * (inward * means).sum(1)
    vectors, bias = discriminant(hidden, codes, np.ones(60))
    assert hidden @ vectors.T + bias == pytest.approx(expected, abs=1e-4)


def test_weights_are_repetitions() -> None:
    """A third of the cases has its label along another axis, and weighs nine times as much."""
    rows = 3000  # enough to need no shrinking
    labels, odd = np.arange(rows) % 2, np.arange(rows) % 3 == 0
    states = np.random.default_rng(1).normal(size=(rows, 3))
    states[np.arange(rows), odd.astype(int)] += 4 * labels
    times = np.where(odd, 9, 1)

    def direction(*case: np.ndarray) -> np.ndarray:
        (no, yes), _ = discriminant(*case)
        return (yes - no) / np.linalg.norm(yes - no)

    repeated = direction(states.repeat(times, 0), labels.repeat(times), np.ones(times.sum()))
    assert direction(states, labels, times.astype(float)) @ repeated > 0.99
    assert direction(states, labels, np.ones(rows)) @ repeated < 0.98
    assert direction(states, labels, 5.0 * times) == pytest.approx(direction(states, labels, 1.0 * times))


def test_too_few_cases_give_a_reason_and_no_number() -> None:
    hidden, labels, groups = planted(2)
    rare = probe(hidden, np.arange(ROWS) < 9, groups)
    assert "class 'True' has 9 cases in 2 groups" in str(rare.reason)
    assert np.isnan(rare.balanced_accuracy).all()
    assert "only class" in str(probe(hidden, np.ones(ROWS), groups).reason)
    assert "3 groups for 5 folds" in str(probe(hidden, labels, groups // 16).reason)
