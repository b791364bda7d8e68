"""The sentences that a difference of 5 points takes: the power at the number, how often a pilot's range holds it."""

from functools import partial

import numpy as np
import pytest

from experiments.metrics.bootstrap import CONFIDENCE
from experiments.metrics.compare import Difference, difference, simultaneous
from experiments.metrics.estimates import CLUSTER, CONCEPT, HIGHER, TEMPLATE, Resamples, rate_floor
from tests.experiments.metrics.simulated import Design

EACH, THINGS = 14, 40  # safe cases of a sentence; things that 24 sentences are asked of
STRICTNESS = 0.8


def compared(
    rng: np.random.Generator, sentences: int, *, heavy: bool, gain: float = 0.0, confidence: float = CONFIDENCE
) -> Difference:
    """The difference in over-safety accuracy of two arms of one law, the second ``gain`` more lenient."""
    design = Design(sentences=sentences, each=EACH, things=round(THINGS * sentences / 24), tagged=True, heavy=heavy)
    cases, codes = design.cases(rng)
    safe = ~cases.unsafe
    margins = design.margins(rng, codes, safe, arms=2, strictness=STRICTNESS)
    before, after = margins > 0, margins + gain > 0
    resamples = Resamples.from_codes(cases.factors, draws=200, seed=int(rng.integers(2**31)))
    change, n = after[1].astype(float) - before[0], int(safe.sum())
    draws = resamples.drawn(lambda some: some.mean(change, safe))
    rates = float(before[0][safe].mean()), float(after[1][safe].mean())
    found = difference(resamples, *rates, draws, (safe,), n, floor=rate_floor(n))
    if confidence != CONFIDENCE:
        simultaneous([found], confidence=confidence)  # as a report judges its headline, a family of its own
    return found


def gain_of(target: float, *, heavy: bool) -> float:
    """What is to be added to margins so that the accuracy rises by ``target``."""
    rng, margins = np.random.default_rng(5), []
    for _ in range(20):
        design = Design(sentences=300, each=EACH, things=500, heavy=heavy)
        cases, codes = design.cases(rng)
        margins.append(design.margins(rng, codes, ~cases.unsafe, arms=1, strictness=STRICTNESS)[0][~cases.unsafe])
    every = np.concatenate(margins)
    low, high = 0.0, 2.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if (every + middle > 0).mean() - (every > 0).mean() < target else (low, middle)
    return middle


@pytest.mark.slow
@pytest.mark.parametrize("heavy", [False, True])
@pytest.mark.parametrize("confidence", [CONFIDENCE, (1 + CONFIDENCE) / 2])
def test_the_power_at_the_number_is_four_in_five_and_pilots_of_24_hold_it(heavy: bool, confidence: float) -> None:
    rng = np.random.default_rng(3)
    asked_at = partial(compared, rng, heavy=heavy, confidence=confidence)
    pilots = [one for one in (asked_at(24) for _ in range(600)) if one.entry]
    asked = [pilot.entry["needed"] for pilot in pilots if pilot.entry and pilot.entry["needed"]]
    assert len(asked) > 0.9 * len(pilots)
    assert {pilot.error.sentences for pilot in pilots} == {24}
    number = int(np.median([needed.number for needed in asked]))
    gain, studies = gain_of(0.05, heavy=heavy), 600
    after = [asked_at(number, gain=gain).entry for _ in range(studies)]
    values = [entry["value"] for entry in after if entry]
    power = sum(entry is not None and entry["claim"] == HIGHER for entry in after) / studies
    held = np.mean([needed.low <= number <= needed.high for needed in asked])
    same = sum(entry is not None and entry["claim"] == HIGHER for entry in (
        asked_at(24, gain=gain).entry for _ in range(200))) / 200  # fmt: skip
    print(
        f"\nheavy tails {heavy}, at {confidence:.1%}: {number} sentences, mean change {np.mean(values):+.3f}, power "
        f"there {power:.1%}, of 24 sentences {same:.1%}; pilots' ranges hold it in {held:.1%} of {len(asked)}"
    )
    assert 0.75 <= power <= 0.85
    assert held >= 0.88


def test_sentences_are_counted_where_they_are_resampled_and_cases_where_they_are_fixed() -> None:
    rng = np.random.default_rng(0)
    found = compared(rng, 24, heavy=False)
    needed = found.entry["needed"]
    assert (found.error.sentences, needed.had, found.entry["n"] / needed.had) == (24, 24, EACH)
    assert needed.low < needed.number < needed.high
    few = compared(rng, 8, heavy=False)
    assert (few.error.sentences, few.entry["needed"].had) == (None, 8 * EACH)
    cases, _ = Design(tagged=True).cases(rng)
    assert set(cases.factors) == {CLUSTER, TEMPLATE, CONCEPT}
