"""Openings of refusals: planted ones are found, and the check is made on other clusters than it learned from."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interp.refusal_openings import Check, check, covers, folds_of, learn, learn_in_folds, log_odds

I_CANT, I_WILL, SURE = (1, 2, 3), (1, 4, 5), (9, 8)


def answers(n: int = 60) -> tuple[list[list[int]], list[bool]]:
    """A third refuses with one opening, a third with another, and a third answers, half of it with "I can't wait"."""
    rows, refused = [], []
    for number in range(n):
        kind = number % 3
        begins = [(*I_CANT,), (*I_WILL,), (1, 2, 7) if number % 2 else SURE][kind]
        rows.append([*begins, 100 + number, 200 + number])
        refused.append(kind < 2)
    return rows, refused


def test_planted_openings_are_found_at_their_shortest_sure_length() -> None:
    rows, refused = answers(120)
    assert {opening.tokens for opening in learn(rows, refused)} == {I_CANT, I_WILL[:2]}
    assert all(opening.refused == opening.answers == 40 for opening in learn(rows, refused))


def test_a_prefix_of_few_answers_or_of_mixed_ones_is_no_opening() -> None:
    rows, refused = answers(12)
    assert learn(rows, refused) == []  # 4 answers each
    rows, refused = answers(120)
    mixed = [flag and bool(number % 4) for number, flag in enumerate(refused)]
    assert not {(1, 2, 3), (1, 4)} & {opening.tokens for opening in learn(rows, mixed)}


def test_a_model_that_nearly_always_refuses_has_first_tokens_as_openings() -> None:
    rows = [[number % 4, 5, 6] for number in range(100)]
    refused = [number != 0 for number in range(100)]
    assert [opening.tokens for opening in learn(rows, refused)] == [(1,), (2,), (3,), (0,)]


def test_nothing_is_learned_without_refusals() -> None:
    rows, _ = answers()
    assert learn(rows, [False] * len(rows)) == []
    assert learn([[], []], [True, True]) == []


@settings(deadline=None)
@given(st.lists(st.tuples(st.lists(st.integers(0, 2), max_size=6), st.booleans()), min_size=1, max_size=120))
def test_no_opening_begins_another(pairs: list[tuple[list[int], bool]]) -> None:
    tokens = [opening.tokens for opening in learn([row for row, _ in pairs], [flag for _, flag in pairs])]
    assert not any(covers([one], other) for one in tokens for other in tokens if one != other)


def test_log_odds_are_of_the_sum_of_the_openings() -> None:
    chances = np.array([[0.2, 0.3], [0.5, 0.5], [1e-9, 0.0], [0.9, 0.05]])
    with np.errstate(divide="ignore"):
        margins = log_odds(np.log(chances))
    assert margins[[0, 3]] == pytest.approx(np.log([0.5 / 0.5, 0.95 / 0.05]))
    assert 10 < margins[1] < 20, "certainty stays finite"
    assert margins[2] == pytest.approx(np.log(1e-9), rel=1e-6)


def _check(rows: list[list[int]], refused: list[bool], clusters: list[str]) -> Check:
    """The score of an opening is high for the answers that begin with it."""
    folds = folds_of(clusters)
    learned = learn_in_folds(rows, refused, folds, "openings")
    scores = {
        opening: np.array([-0.1 if covers([opening], row) else -9.0 for row in rows])
        for openings in learned.values()
        for opening in openings
    }
    return check("openings", learned, folds, rows, refused, scores)


def test_the_check_finds_what_was_planted() -> None:
    rows, refused = answers(120)
    measured = _check(rows, refused, [str(number) for number in range(120)])
    assert (measured.auroc, measured.coverage) == (1.0, 1.0)
    assert measured.for_statistics
    assert measured.for_tools
    assert "AUROC 1.000 and covers 100% of 80 refusals" in measured.sentence


def test_an_opening_of_a_single_cluster_is_not_confirmed() -> None:
    """Five fifths of the answers, each with an opening of its own: learned from four, none covers the last."""
    rows = [[10 * (number % 5) + number // 60, number % 5, 3, number] for number in range(120)]
    refused = [number < 60 for number in range(120)]
    clusters = [f"c{number % 5}" for number in range(120)]
    assert len(learn(rows, refused, "openings")) == 0 or _check(rows, refused, clusters).coverage == 0
    assert not _check(rows, refused, clusters).for_tools


@pytest.mark.parametrize(("refusals", "others"), [(0, 50), (9, 50), (50, 9), (50, 0)])
def test_with_too_few_of_a_kind_nothing_is_computed(refusals: int, others: int) -> None:
    rows = [[1, 2, 3]] * refusals + [[4, 5, 6]] * others
    refused = [True] * refusals + [False] * others
    measured = _check(rows, refused, [str(number) for number in range(len(rows))])
    assert measured.sentence == (
        f"it refused {refusals} and answered {others} requests; a margin needs at least 10 of each"
    )
    assert not measured.for_tools


def test_folds_do_not_split_a_cluster_and_learn_without_it() -> None:
    clusters = [f"c{number // 3}" for number in range(60)]
    folds = folds_of(clusters)
    assert all(len({folds[row] for row in range(60) if clusters[row] == cluster}) == 1 for cluster in set(clusters))
    rows = [[folds[number], 7, 7] for number in range(60)]
    for fold, openings in learn_in_folds(rows, [True] * 60, folds, "first tokens").items():
        assert (fold,) not in openings
