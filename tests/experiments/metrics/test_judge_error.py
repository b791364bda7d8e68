"""The correction of a rate for its judge's error."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.metrics.judge_error import CORRECTED, JudgeError, corrected_rates, rogan_gladen
from experiments.runs.results_table import Results, row

SHARE = st.floats(0, 1)
GOOD = st.floats(0.85, 1)


@given(SHARE, st.floats(0.02, 1), SHARE)
def test_it_undoes_the_judges_error(truth: float, sensitivity: float, share: float) -> None:
    specificity = 1.011 - sensitivity + share * (sensitivity - 0.011)  # of all that are better than a guess
    counted = truth * sensitivity + (1 - truth) * (1 - specificity)
    assert rogan_gladen(min(1.0, counted), sensitivity, specificity) == pytest.approx(truth, abs=1e-9)


@given(SHARE, GOOD, GOOD, st.integers(1, 500), st.integers(60, 500), st.integers(60, 500))
def test_rate_and_interval_stay_on_the_scale(
    rate: float, sensitivity: float, specificity: float, n: int, positives: int, negatives: int
) -> None:
    error = JudgeError("j", sensitivity, specificity, positives, negatives, {})
    assert not error.unstable
    found = error.corrected(rate, n)
    assert 0 <= found["low"] <= found["high"] <= 1
    assert 0 <= found["value"] <= 1


def test_a_perfect_judge_is_not_corrected_and_an_impossible_rate_is_clipped() -> None:
    assert rogan_gladen(0.3, 1.0, 1.0) == pytest.approx(0.3)
    error = JudgeError("j", 0.9, 0.9, 100, 100, {})
    below, above = (error.corrected(rate, 100) for rate in (0.05, 0.95))
    assert rogan_gladen(0.05, 0.9, 0.9) == pytest.approx(-0.0625)
    assert (below["value"], above["value"]) == (0.0, 1.0)


@pytest.mark.parametrize("truth", [0.03, 0.3, 0.8])
def test_the_interval_covers_the_truth(truth: float) -> None:
    rng = np.random.default_rng(0)
    sensitivity, specificity, n, positives, negatives = 0.88, 0.96, 300, 120, 200
    covered = 0
    for _ in range(1_000):
        rate = rng.binomial(n, truth * sensitivity + (1 - truth) * (1 - specificity)) / n
        seen = rng.binomial(positives, sensitivity) / positives
        left = rng.binomial(negatives, specificity) / negatives
        interval = JudgeError("j", seen, left, positives, negatives, {}).corrected(rate, n)
        covered += interval["low"] <= truth <= interval["high"]
    assert 0.93 <= covered / 1_000 <= 0.99


RESULTS = Results([row("refusal_rate", arm="vcd", subset="benign", value=0.25, n=100),
                   row("refusal_rate", arm="vcd", subset="contrast", n=0)])  # fmt: skip


@pytest.mark.parametrize(("error", "why"), [
    (JudgeError("j", 0.95, 0.95, 9, 100, {}), "9 labelled refusals"),
    (JudgeError("j", 0.95, float("nan"), 100, 0, {}), "0 labelled compliances"),
    (JudgeError("j", 0.55, 0.6, 800, 1_000, {}), "more than doubles"),
    (JudgeError("j", 0.3, 0.6, 800, 1_000, {}), "is -0.10"),
    (JudgeError("j", 0.8, 0.8, 15, 15, {}), "may be as low as"),
])  # fmt: skip
def test_an_unstable_correction_says_why_and_gives_no_rate(error: JudgeError, why: str) -> None:
    plain, rows = corrected_rates(RESULTS, error)
    assert why in plain["unstable"]
    assert rows == []


def test_a_stable_correction_gives_the_range_over_models() -> None:
    error = JudgeError("j", 0.9, 0.9, 800, 1_000, {"a": (0.95, 0.95), "b": (0.6, 0.9), "guesses": (0.4, 0.5)})
    plain, (rate,) = corrected_rates(RESULTS, error)
    assert plain["unstable"] == ""
    assert (rate.arm, rate.subset, rate.rule) == ("vcd", "benign", CORRECTED)
    assert rate.value == pytest.approx((0.25 + 0.9 - 1) / 0.8)
    assert rate.bounds == pytest.approx(((0.25 + 0.95 - 1) / 0.9, (0.25 + 0.9 - 1) / 0.5))
