"""Rates and differences as people would judge them, from a judge's verdicts of all cases and people's of some."""

from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
import pytest
from experiments.metrics.cases import Cases
from experiments.metrics.findings import Answer
from experiments.metrics.refusal.answers import RefusalAnswers
from experiments.metrics.refusal.comparison import FEWEST_LABELS, by_people
from experiments.metrics.refusal.quantities import RefusalArms
from experiments.metrics.refusal.results import evaluate
from experiments.report.words import worded
from scipy.special import ndtri

from experiments.metrics.estimates import Resamples
from experiments.metrics.statistical_tests import wilson

CASES = 300  # of a subset
Reading = tuple[float, float]  # sensitivity, specificity


def study(
    rng: np.random.Generator, labels: int, readings: dict[str, Reading], *, each: int, rate: float
) -> RefusalArms:
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
        answers[name] = RefusalAnswers(
            kept=np.full(CASES, True), refused=mixed, wholly=mixed, no_response=np.full(CASES, False),
            status=Counter(), verdict=Counter(), judged=seen, people=np.where(chosen, truth, np.nan),
        )  # fmt: skip
    return RefusalArms(cases, answers, 300, int(rng.integers(2**31)))


READINGS = {
    "equal": {"baseline": (0.944, 0.916), "arm": (0.944, 0.916)},
    "one arm is read better": {"baseline": (0.944, 0.90), "arm": (0.95, 0.99)},
    "a judge that hardly errs": {"baseline": (0.99, 0.98), "arm": (0.99, 1.0)},
}


@pytest.mark.slow
@pytest.mark.parametrize("labels", [50, 100, 200])
@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("each", [1, 10])
def test_intervals_cover_and_no_difference_is_said_of_arms_that_refuse_alike(
    labels: int, reading: str, each: int
) -> None:
    rng = np.random.default_rng([labels, each])
    studies, covered, covered_rate, said, judges = 500, 0, 0, 0, 0
    for _ in range(studies):
        arms = study(rng, labels, READINGS[reading], each=each, rate=0.3)
        entry = by_people(arms, "arm", "baseline")["benign"].entry
        assert entry is not None
        covered += entry["low"] <= 0 <= entry["high"]
        said += entry["statement"] in (Answer.ROSE, Answer.FELL)
        powered = arms.powered("arm", None, "benign")
        assert powered is not None
        one, _ = powered
        ends = arms.resamples.spread(one.draws, (one.labelled,), floor=one.floor).ends(one.value)
        covered_rate += ends["low"] <= 0.3 <= ends["high"]
        then, now = (one.judged.astype(float) for one in arms.answers.values() if one.judged is not None)
        judges += arms.resamples.effect(now - then)["statement"] in (Answer.ROSE, Answer.FELL)
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


def test_from_a_hundred_labels_on_people_decide_and_below_nothing_is_said() -> None:
    alone, few, many = (evaluate(records(labels), seed=0, draws=400) for labels in (0, 60, 120))
    assert alone["comparisons"]["arm"]["delta"]["benign"]["statement"] == "fell"
    assert "people" not in alone["comparisons"]["arm"]
    entry = few["comparisons"]["arm"]["people"]["benign"]
    assert entry["labelled"] == 60
    assert entry["low"] is not None
    assert entry["statement"] == "cannot tell"
    assert few["comparisons"]["arm"]["delta"]["benign"] != entry
    entry = many["comparisons"]["arm"]["delta"]["benign"]
    assert entry["labelled"] == 120
    assert entry["statement"] != "fell"
    assert many["arms"]["arm"]["people"]["benign"]["value"] == pytest.approx(1 / 3, abs=0.01)
    said = [" ".join(worded(one)["caveats"]) for one in (alone, few, many)]
    assert "differences between arms are the judge's" in said[0]
    assert "60 benign cases" in said[1]
    assert "nothing is said" in said[1]
    assert "120 benign cases" in said[2]
