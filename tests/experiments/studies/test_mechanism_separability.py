"""Separability by layer on states whose drift is known, and what is said of it whichever way the numbers lie."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from experiments.metrics.findings import Answer
from experiments.report.sentences.mechanism import separable
from experiments.report.table import terminal
from experiments.studies.mechanism import figure, tables
from experiments.studies.mechanism.cases import AnsweredCases
from experiments.studies.mechanism.findings import separable_in_words
from experiments.studies.mechanism.separability import (
    CAPTION,
    NOT_SHOWN,
    PICTURE,
    WORDS,
    in_words,
    separability_rows,
    whole_sentences,
)
from interp.vlm import VLM, Prompt
from tests.experiments.studies.test_mechanism import paired
from tests.tiny import picture

WIDTH, LAYERS = 24, [1, 2, 3]
SENTENCES, PAIRS = 26, 6


def cases() -> AnsweredCases:
    """Six pairs of pictures under each of 26 sentences."""
    samples = paired(SENTENCES * PAIRS, lambda pair: f"sentence {pair % SENTENCES}")
    samples = tuple(replace(one, cluster=f"{number // 2}", tags={"template": one.text, "concept": f"{number % 52}"})
                    for number, one in enumerate(samples))  # fmt: skip
    return AnsweredCases(samples, ("no",) * len(samples))


def planted(*, seed: int = 0, held: float = 0.0, only_at: int = 1) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """States in words that part safe from unsafe from layer ``only_at`` on; with pictures by ``held`` of it, drifted.

    The drift of every case is 3 along another axis and 4 along the direction from unsafe to safe, negative.
    """
    rng = np.random.default_rng(seed)
    some = cases()
    words = rng.normal(size=(len(LAYERS), len(some.samples), WIDTH))
    drift = np.zeros(WIDTH)
    drift[[0, 1]] = -4.0, 3.0
    pictured = rng.normal(size=words.shape) + drift
    for at, layer in enumerate(LAYERS):
        if layer >= only_at:
            words[at, :, 0] += 4.0 * some.safe
            pictured[at, :, 0] += held * 4.0 * some.safe
    return {PICTURE: pictured, WORDS: words}, drift


def told(states: dict[str, np.ndarray], missing: dict[str, str] | None = None, **how: Any) -> dict[str, Any]:
    return separability_rows(states, how.pop("untrained", []), how.pop("of", cases()), missing=missing or {},
                             layers=LAYERS, draws=200, seed=0)  # fmt: skip


def row(found: dict[str, Any], form: str, layer: int) -> dict[str, Any]:
    return next(one for one in found["rows"] if (one["form"], one["layer"]) == (form, layer))


def test_what_words_tell_apart_and_the_picture_does_not_is_room_for_a_correction() -> None:
    states, drift = planted(only_at=2)
    found = told(states)
    assert found["reference"] == WORDS
    assert row(found, WORDS, 1)["auroc"]["value"] == pytest.approx(0.5, abs=0.1)
    for layer in (2, 3):
        words, pictured = row(found, WORDS, layer), row(found, PICTURE, layer)
        assert words["within"]["value"] > 0.97
        assert pictured["within"]["value"] == pytest.approx(0.5, abs=0.1)
        assert words["change"]["statement"] == Answer.ROSE.value
        assert words["gap"]["value"] == pytest.approx(1, abs=0.05)
        assert pictured["gap"]["value"] == pytest.approx(0, abs=0.1)
        assert words["shuffled"] == pytest.approx(0.5, abs=0.1)
    drifted = found["drift"][-1]
    assert drifted["norm"] == pytest.approx(np.linalg.norm(drift - [2.0, *[0.0] * (WIDTH - 1)]), abs=0.3)
    assert drifted["cosine"] == pytest.approx(-6 / np.hypot(6, 3), abs=0.05)  # words lie 2 further on, on average
    assert found["chosen"]["layer"] in (2, 3)
    assert separable_in_words(found, 3).answer is Answer.ROSE
    said = separable(separable_in_words(found, 3))
    assert said.startswith("Could taking off the picture’s drift help? There is room for it: at layer ")


def test_a_constant_drift_compresses_nothing() -> None:
    states, _ = planted(held=1.0)
    found = told(states)
    assert row(found, PICTURE, 2)["gap"]["value"] == pytest.approx(1, abs=0.05)
    assert row(found, PICTURE, 2)["auroc"]["value"] > 0.97
    assert abs(found["chosen"]["change"]["value"]) < 0.05
    assert separable_in_words(found, 3).answer is not Answer.ROSE


@pytest.mark.slow  # twenty studies; of random models: test_mechanism_null.py
def test_of_noise_nothing_is_claimed_but_in_one_of_twenty() -> None:
    claimed = [separable_in_words(told(planted(seed=seed, only_at=9)[0]), 3).answer for seed in range(20)]
    assert sum(one in (Answer.ROSE, Answer.FELL) for one in claimed) <= 3


@pytest.mark.long
def test_a_direction_is_not_read_on_sentences_that_it_was_fitted_to() -> None:
    """Each sentence's own code, with its labels dealt at random, is learned by heart and reads nothing elsewhere."""
    rng = np.random.default_rng(3)
    some = cases()
    codes = {text: rng.normal(size=WIDTH) * 5 for text in set(some.questions.tolist())}
    own = np.stack([codes[text] * (1 if safe else -1) for text, safe in zip(some.questions, some.safe, strict=True)])
    states = {form: np.stack([own] * 3) + 0.1 * rng.normal(size=(3, *own.shape)) for form in (PICTURE, WORDS)}
    assert row(told(states), WORDS, 2)["within"]["low"] < 0.5 < row(told(states), WORDS, 2)["within"]["high"]


def test_captions_stand_where_the_benchmark_names_nothing_and_lost_ones_are_left_out() -> None:
    states, _ = planted()
    states[CAPTION] = states.pop(WORDS)
    states[CAPTION][:, ::12] = np.nan
    found = told(states, {WORDS: NOT_SHOWN}, untrained=[planted(seed=7, only_at=9)[0] | {CAPTION: states[PICTURE]}])
    assert found["reference"] == CAPTION
    read = row(found, CAPTION, 2)
    assert read["auroc"]["n"] == SENTENCES * PAIRS * 2 * 11 // 12
    assert [len(row(found, form, 2)["untrained"]) for form in (PICTURE, CAPTION)] == [1, 1]
    assert "with the model’s own caption" in separable(separable_in_words(found, 3))
    result = {"separability": found, "layers": LAYERS}
    shown = [str(terminal(table)) for table in tables.separability(result)]
    assert len(shown) == 2
    assert figure.separability(result) is not None


def test_what_cannot_be_told_says_why() -> None:
    states, _ = planted()
    nothing = told({PICTURE: states[PICTURE]}, {CAPTION: "a family cannot", WORDS: "a family cannot"})
    assert "That cannot be told here: a family cannot." in separable(separable_in_words(nothing, 3))
    assert "the model wrote no caption" in str(
        told({PICTURE: states[PICTURE]}, {CAPTION: "the model wrote no caption", WORDS: NOT_SHOWN})["reason"]
    )
    few = np.isin(cases().questions, [f"sentence {n}" for n in range(4)])
    rows = np.flatnonzero(few)
    found = told({form: one[:, rows] for form, one in states.items()}, of=cases().only(rows))
    assert "4 groups for 5 folds" in separable(separable_in_words(found, 3))
    few = np.isin(cases().questions, [f"sentence {n}" for n in range(8)])
    rows = np.flatnonzero(few)  # enough for folds, too few for halves that have folds
    found = told({form: one[:, rows] for form, one in states.items()}, of=cases().only(rows))
    assert found["rows"]
    assert "half of the sentences" in separable(separable_in_words(found, 3))
    assert not tables.separability({"separability": None, "layers": LAYERS})


def test_whole_sentences_are_drawn() -> None:
    some = cases()
    for most in (1, 12, 30, 10_000):
        rows = whole_sentences(some, most, seed=0)
        kept = some.questions[rows]
        assert all((some.questions == text).sum() == (kept == text).sum() for text in set(kept.tolist()))
        assert len(set(kept.tolist())) == min(max(most // 12, 1), SENTENCES)
    assert set(whole_sentences(some, 60, seed=0)) != set(whole_sentences(some, 60, seed=1))


def test_requests_are_put_into_words(vlm: VLM) -> None:
    shown = [Prompt("Is this safe?", picture(number), shows="a toy") for number in range(3)]
    found = in_words(vlm, shown)
    assert set(found.prompts) | set(found.missing) == {CAPTION, WORDS}
    worded = found.prompts[WORDS]
    assert all(one is not None and one.image is None and "toy" in one.text for one in worded)
    values = found.states(vlm, [0, 1])[WORDS]
    assert values.shape[:2] == (2, 3)
    assert np.isfinite(values).all()
    unknown = in_words(vlm, [replace(one, shows="") for one in shown])
    assert unknown.missing[WORDS] == NOT_SHOWN
