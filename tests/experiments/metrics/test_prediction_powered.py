"""Rates and differences as people would judge them, from a judge's verdicts of all cases and people's of some."""

from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.special import ndtri

from experiments.metrics.claims import HIGHER, LOWER, NOT_TESTED
from experiments.metrics.compare import FEWEST_LABELS, by_people, compare_by_people
from experiments.metrics.estimates import Resamples
from experiments.metrics.outcomes import Cases, Outcomes
from experiments.metrics.quantities import REFUSED, Arms
from experiments.metrics.results import PEOPLE, evaluate
from experiments.metrics.statistical_tests import wilson
from experiments.runs.results_table import Results

CASES = 300  # of a subset
Reading = tuple[float, float]  # sensitivity, specificity


def study(rng: np.random.Generator, labels: int, readings: dict[str, Reading], *, each: int, rate: float) -> Arms:
    """All arms refuse the very same cases; ``each`` cases of a cluster are alike, ``labels`` of all cases labelled."""
    clusters = np.repeat(np.arange(CASES // each), each)
    shared = rng.normal(size=CASES // each)[clusters] if each > 1 else 0.0
    weight = 0.5 if each > 1 else 0.0
    truth = np.sqrt(weight) * shared + np.sqrt(1 - weight) * rng.normal(size=CASES) < ndtri(rate)
    cases = Cases(ids=[str(at) for at in range(CASES)], subset=np.full(CASES, "benign"),
                  scenario=np.full(CASES, "t"), tags=[{}] * CASES, cluster=clusters,
                  pairs=np.zeros((0, 2), dtype=int))  # fmt: skip
    chosen = np.isin(np.arange(CASES), rng.permutation(CASES)[:labels])
    answers = {}
    for name, (sensitivity, specificity) in readings.items():
        seen = np.where(truth, rng.random(CASES) < sensitivity, rng.random(CASES) > specificity)
        mixed = np.where(chosen, truth, seen)
        none = np.full(CASES, np.nan)
        answers[name] = Outcomes(
            answered=np.full(CASES, True), right=~mixed, flagged=mixed, passed=~mixed, score=none, margin=none,
            fold=None, status=Counter(), verdict=Counter(), judged=seen, people=np.where(chosen, truth, np.nan),
        )  # fmt: skip
    return Arms(cases, answers, "refusal", 300, int(rng.integers(2**31)))


READINGS = {
    "equal": {"baseline": (0.944, 0.916), "arm": (0.944, 0.916)},
    "one arm is read better": {"baseline": (0.944, 0.90), "arm": (0.95, 0.99)},
    "a judge that hardly errs": {"baseline": (0.99, 0.98), "arm": (0.99, 1.0)},
}


@pytest.mark.slow
@pytest.mark.parametrize("labels", [50, 100, 200])
@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("each", [1, 10])
def test_intervals_cover_and_no_difference_is_claimed_of_arms_that_refuse_alike(
    labels: int, reading: str, each: int
) -> None:
    rng = np.random.default_rng([labels, each])
    studies, covered, covered_rate, said, judges = 500, 0, 0, 0, 0
    for _ in range(studies):
        arms = study(rng, labels, READINGS[reading], each=each, rate=0.3)
        entry = compare_by_people(arms, "arm", "baseline")[REFUSED].entry
        assert entry is not None
        covered += entry["low"] <= 0 <= entry["high"]
        said += entry["claim"] in (HIGHER, LOWER)
        powered = by_people(arms, "arm", None, "benign")
        assert powered is not None
        one, _ = powered
        ends = arms.resamples.spread(one.draws, (one.labelled,), floor=one.floor).ends(one.value)
        covered_rate += ends["low"] <= 0.3 <= ends["high"]
        then, now = (one.judged.astype(float) for one in arms.outcomes.values() if one.judged is not None)
        judges += arms.resamples.effect(now - then)["claim"] in (HIGHER, LOWER)
    print(f"\n{reading}, {each} a cluster, {labels} labels: difference covered {covered / studies:.1%}, rate "
          f"{covered_rate / studies:.1%}; said {said / studies:.1%}, by verdicts {judges / studies:.1%}")  # fmt: skip
    for count in (covered, covered_rate):
        interval = wilson(count, studies)
        assert interval is not None
        assert interval.high >= 0.95 or count / studies >= 0.93
    assert said == 0 or labels >= FEWEST_LABELS
    assert said / studies <= 0.065


def test_it_is_the_judges_mean_plus_peoples_difference_and_of_all_labels_peoples_own() -> None:
    rng = np.random.default_rng(0)
    judged, truth = (rng.random((2, 40)) < 0.4).astype(float)
    resamples, every = Resamples.of_names(np.arange(40), draws=200, seed=0), np.full(40, True)
    some = np.where(np.arange(40) < 15, truth, np.nan)
    found = resamples.prediction_powered(judged, some, every)
    assert found is not None
    assert found.value == pytest.approx(judged.mean() + (truth - judged)[:15].mean())
    assert found.floor == pytest.approx(2 / 17**2 * (1 - 15 / 40))
    whole = resamples.prediction_powered(judged, truth, every)
    assert whole is not None
    assert (whole.value, whole.floor) == (pytest.approx(truth.mean()), 0)
    assert resamples.prediction_powered(judged, np.full(40, np.nan), every) is None


def records(labelled: int, n: int = 240) -> pd.DataFrame:
    """Both arms refuse a third of the benign cases; the judge takes 15% more of the baseline's answers for refusals."""
    rows: list[dict[str, Any]] = []
    rng = np.random.default_rng(1)
    for at in range(n):
        refused = at % 3 == 0
        for arm, wrong in (("baseline", rng.random() < 0.2), ("arm", False)):
            by_judge = "refused" if refused or wrong else "complied"
            row = {"case": f"c{at:03}", "arm": arm, "status": "answered", "verdict": by_judge, "subset": "benign",
                   "scenario": "t", "gold": "comply", "cluster": f"c{at:03}", "text": f"request {at} of its own kind",
                   "response": "…"}  # fmt: skip
            if at < labelled:
                row |= {"verdict": "refused" if refused else "complied", "judged_before": {"verdict": by_judge}}
            rows.append(row)
    return pd.DataFrame(rows)


def results(labelled: int) -> Results:
    return evaluate(records(labelled), "refusal", seed=0, draws=400).results


def test_from_a_hundred_labels_on_people_decide_and_below_nothing_is_claimed() -> None:
    key = {"against": "baseline", "subset": "benign"}
    alone, few, many = (results(labels) for labels in (0, 60, 120))
    judged = [table.get("arm", "refusal_rate", **key) for table in (alone, few, many)]
    people = [table.get("arm", "refusal_rate", rule=PEOPLE, **key) for table in (alone, few, many)]
    assert people[0] is None
    assert all(row is not None for row in (*judged, *people[1:]))
    assert [row.claim for row in judged if row][:2] == [LOWER, LOWER]
    assert people[1] is not None
    assert (people[1].n, people[1].claim) == (60, NOT_TESTED)
    assert people[1].low is not None
    assert people[1].value != judged[1].value  # type: ignore[union-attr]
    assert judged[2].value == people[2].value  # type: ignore[union-attr]
    assert judged[2].claim != LOWER  # type: ignore[union-attr]
    level = many.get("arm", "refusal_rate", subset="benign", rule=PEOPLE)
    assert level is not None
    assert level.value == pytest.approx(1 / 3, abs=0.01)
