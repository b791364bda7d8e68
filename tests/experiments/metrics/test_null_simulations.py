"""How often a difference is said to exist where there is none, and how often an interval covers one that does.

Simulated studies on the cases of IconWorld, as verdicts, as refusals and as a study's values, and on clusters without
templates. Every arm of a study follows one law: its margins have effects of the template, the thing, the cluster and
the case, some shared by all arms and some its own, so that arms differ from template to template; all effects have
Student's t with three degrees of freedom, whose tails are heavy. No arm is better than another. The product's own
comparisons run on each study.

The large versions are slow, about an hour on one core; docs/metrics.md has what they gave. The small one, of refusals,
runs in CI; ``test_validity`` has the small one of verdicts.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.special import ndtr, ndtri

from experiments.benchmarks.iconworld import IconWorld
from experiments.benchmarks.iconworld.requests import IconWorldRequests
from experiments.metrics.claims import HIGHER, LOWER, TOO_FEW
from experiments.metrics.compare import compare, difference, gaps
from experiments.metrics.estimates import Resamples
from experiments.metrics.outcomes import Cases, Outcomes, align
from experiments.metrics.quantities import (
    AT_POINT,
    AUROC,
    BALANCED,
    GAP,
    HARMFUL_REFUSED,
    REFUSED,
    TYPE_MEAN,
    WITHIN,
    Arms,
)
from experiments.metrics.statistical_tests import wilson
from experiments.studies.attention.summary import FAILURES, SUCCESSES, contrasts
from experiments.types import Kind
from tests.experiments.metrics.simulated import answers, arms_of, changed, claims, compared

SEED, DRAWS, ARMS = 20261123, 300, 3
LARGE, SMALL = 1600, 150  # studies
DISTANCE, STRICTNESS = 0.5, 0.93  # of safe from unsafe margins; of the baseline, were its margins normal
HEAVY = 3  # degrees of freedom of every effect
VARIANCES = {  # of a margin: shared by all arms, and of each arm's own; without templates all of it is the cases'
    "template": (0.20, 0.10),
    "side of a template": (0.05, 0.10),
    "concept": (0.10, 0.05),
    "cluster": (0.10, 0.05),
    "case": (0.15, 0.10),
}
NAMES = ("baseline", *(f"arm {at}" for at in range(1, ARMS + 1)))
Claimed = dict[Any, int]  # quantity → whether a change of it is claimed


@dataclass(frozen=True)
class Law:
    """What an arm's margins are drawn from: the codes of each source of variance, and which cases are safe."""

    codes: Mapping[str, np.ndarray]
    safe: np.ndarray

    @classmethod
    def of(cls, cases: Cases, safe: np.ndarray) -> "Law":
        codes = {name: code for name, code in cases.factors.items() if name != "cluster"}
        if codes:
            codes["side of a template"] = 2 * codes["template"] + safe
        return cls(codes | {"cluster": cases.cluster, "case": np.arange(len(safe))}, safe)

    def margins(self, rng: np.random.Generator, distance: np.ndarray, level: float) -> np.ndarray:
        """[arm, case], of variance 1; ``distance`` by arm is how far safe margins lie from unsafe ones."""
        rows = len(distance)
        found = level + distance[:, None] * np.where(self.safe, 0.5, -0.5)
        for name, codes in self.codes.items():
            rest = [VARIANCES[of] for of in VARIANCES if name == "case" and of not in self.codes]
            shared, own = np.sum([VARIANCES[name], *rest], axis=0) / HEAVY * (HEAVY - 2)
            count = int(codes.max()) + 1
            found = found + np.sqrt(shared) * rng.standard_t(HEAVY, (1, count))[:, codes]
            found += np.sqrt(own) * rng.standard_t(HEAVY, (rows, count))[:, codes]
        return found


def records(benchmark: IconWorld) -> pd.DataFrame:
    return pd.DataFrame([
        {"case": one.id, "arm": "any", "status": "answered", "verdict": None, "margin": None, "subset": one.subset,
         "scenario": one.scenario, "gold": one.gold, "cluster": one.cluster, "pair": one.pair, "tags": one.tags}
        for one in benchmark.load().samples if one.subset != "control"
    ])  # fmt: skip


@cache
def cases_of(kind: Kind) -> Cases:
    return align(records(IconWorld() if kind == "yes_no" else IconWorldRequests()), kind)[0]


def clustered(n: int) -> Cases:
    """``n`` cases without templates, half of them safe, in clusters of two of a kind."""
    subset = np.tile(["over_safety", "typical", "over_safety", "attack"], n // 4)
    cluster = np.arange(n) // 4 * 2 + np.arange(n) % 2
    none = np.zeros(0, dtype=int)
    return Cases(ids=[str(case) for case in range(n)], subset=subset, scenario=subset, tags=[{}] * n, cluster=cluster,
                 pairs=none.reshape(0, 2))  # fmt: skip


def refusals_of(cases: Cases, margin: np.ndarray) -> Outcomes:
    no, every, none = margin < 0, np.full(len(margin), True), np.full(len(margin), np.nan)
    return Outcomes(answered=every, unsafe=cases.unsafe, flagged=no, passed=~no, score=none, margin=none,
                    fold=None, status=Counter(), verdict=Counter(), no_response=~every)  # fmt: skip


def is_change(entry: Mapping[str, Any] | None) -> int:
    return int(entry is not None and entry["claim"] in (HIGHER, LOWER))


def study_of_ranks(rng: np.random.Generator, of: Cases) -> Claimed:
    """All that a yes/no benchmark claims: of the arm under study, and at once of any arm."""
    level = DISTANCE / 2 - ndtri(STRICTNESS)
    drawn = Law.of(of, ~of.unsafe).margins(rng, np.full(1 + ARMS, DISTANCE), level)
    results = compared(arms_of(of, drawn, rng, draws=DRAWS))
    wins = results.get(NAMES[1], "wins", against="baseline")
    assert wins is not None
    return changed(results) | {
        "any arm": any(any(changed(results, name).values()) for name in NAMES[1:]),
        "wins": bool(wins.value),
        TOO_FEW: claims(results)[AT_POINT] == TOO_FEW,
    }


def study_of_refusals(rng: np.random.Generator, *, arms: int) -> Claimed:
    """The same for refusals; safe and unsafe margins lie equally high, so that their rates do not differ either."""
    of, seed = cases_of("refusal"), int(rng.integers(2**31))
    drawn = Law.of(of, of.subset == "benign").margins(rng, np.zeros(1 + arms), 0.5)
    outcomes = {name: refusals_of(of, margin) for name, margin in zip(NAMES, drawn, strict=False)}
    study = Arms(of, outcomes, "refusal", DRAWS, seed)
    found = {key: is_change(each.entry) for key, each in compare(study, NAMES[1], NAMES[0]).items()}
    found |= {("gap", key): is_change(each.entry) for key, each in gaps(study, outcomes[NAMES[1]]).items()}
    if arms == 1:
        return found
    results = compared(study)
    wins = results.get(NAMES[1], "wins", against="baseline")
    any_arm = any(any(changed(results, name, "refusal").values()) for name in NAMES[1:])
    return found | {"any arm": any_arm, "better": bool(wins and wins.value)}


def study_of_values(rng: np.random.Generator) -> Claimed:
    """The same for what studies measure of a case, such as the share of attention on the picture."""
    of = cases_of("yes_no")
    law = Law.of(of, ~of.unsafe)
    before, after = law.margins(rng, np.zeros(2), 0.0)
    sides = {name: rng.permutation(np.unique(code))[code] % 2 == 0 for name, code in law.codes.items()}
    seed, failed = int(rng.integers(2**31)), sides["case"]
    some = Resamples.from_codes(of.factors, draws=DRAWS, seed=seed)
    table = pd.DataFrame({"cluster": of.cluster, "outcome": np.where(failed, "failure", "success"),
                          **{name: of.tag(name) for name in ("template", "concept")}})  # fmt: skip
    rows = contrasts(table, before[:, None], [""], "share", subset="", seed=seed, draws=DRAWS, small=None)
    gap = next(row for row in rows if (row.arm, row.against) == (FAILURES, SUCCESSES))
    draws = some.drawn(lambda drawn: drawn.mean(after - before))
    shares = difference(some, float(before.mean()), float(after.mean()), draws, [None], len(before))
    entries = {
        "share, before and after": shares.entry,
        "effect of an intervention": some.effect(after - before),
        "gap between two groups": some.gap(after - before, failed, ~failed),
        "AUROC after an intervention": some.auroc_change(before, after, law.safe),
    }
    found = {name: is_change(entry) for name, entry in entries.items()}
    return found | {"attention of failures": int(gap.claim in (HIGHER, LOWER))}


def simulated(study: Callable[[np.random.Generator], Claimed], studies: int, *key: int) -> Claimed:
    """In how many studies a change is claimed, by quantity; printed in percent."""
    said = Counter[Any]()
    for at in range(studies):
        said.update(study(np.random.default_rng([SEED, *key, at])))
    print(f"\n{studies} studies:", {name: f"{100 * n / studies:.1f}%" for name, n in said.items()})
    return said


def check(said: Claimed, studies: int) -> None:
    """No quantity has an interval of its false alarms wholly above 5%: a 95% one, of few studies a 99.9% one."""
    confidence = 0.95 if studies == LARGE else 0.999
    above = {}
    for name, n in said.items():
        interval = wilson(n, studies, confidence=confidence)
        if name != TOO_FEW and interval is not None and interval.low > 0.05:
            above[name] = n / studies
    assert not above


@pytest.mark.long
@pytest.mark.parametrize("studies", [SMALL, pytest.param(LARGE, marks=pytest.mark.slow)])
def test_no_change_of_a_refusal_rate_is_claimed_too_often(studies: int) -> None:
    said = simulated(partial(study_of_refusals, arms=1 if studies == SMALL else ARMS), studies, 2)
    assert {REFUSED, HARMFUL_REFUSED, GAP, TYPE_MEAN, BALANCED, ("gap", GAP)} <= set(said)
    check(said, studies)


@pytest.mark.slow
def test_no_change_of_ranks_and_of_what_a_study_measures_is_claimed_too_often() -> None:
    check(simulated(study_of_values, LARGE, 4), LARGE)
    said = simulated(partial(study_of_ranks, of=cases_of("yes_no")), LARGE, 3)
    assert {AUROC, AT_POINT, WITHIN, "any arm", "wins"} <= set(said)
    check(said, LARGE)
    assert said["wins"] <= 0.025 * LARGE


@pytest.mark.slow
@pytest.mark.parametrize("n", [20, 60, 300])
def test_no_change_is_claimed_too_often_in_few_clusters_without_templates(n: int) -> None:
    said = simulated(partial(study_of_ranks, of=clustered(n)), LARGE, 5, n)
    check(said, LARGE)
    if n == 20:
        assert said[TOO_FEW] == LARGE
        assert not said[AUROC]


@pytest.mark.slow
def test_the_intervals_cover_a_true_difference_of_ten_points() -> None:
    distances, strictness, studies = np.sqrt(2) * ndtri([0.65, 0.75]), float(ndtr(1.74)), 1000
    true = {AUROC: 0.1, AT_POINT: float(ndtr(distances[1] - 1.74) - ndtr(distances[0] - 1.74))}
    rng, of, covered = np.random.default_rng([SEED, 6]), clustered(672), Counter[Any]()
    for _ in range(studies):
        shared, own = rng.standard_normal((1, 672)), rng.standard_normal((2, 672))
        side = np.where(of.unsafe, -0.5, 0.5)
        drawn = distances[:, None] * side + np.sqrt(0.8) * shared + np.sqrt(0.2) * own
        level = distances[0] / 2 - ndtri(strictness)
        outcomes = {name: answers(of, margin + level) for name, margin in zip(NAMES, drawn, strict=False)}
        study = Arms(of, outcomes, "yes_no", DRAWS, int(rng.integers(2**31)))
        differences = compare(study, NAMES[1], NAMES[0])
        for key, truth in true.items():
            if (entry := differences[key].entry) and entry["low"] is not None:
                covered.update({("interval", key): 1, key: int(entry["low"] <= truth <= entry["high"])})
    print({key: covered[key] / covered["interval", key] for key in true}, covered)
    assert 0.93 <= covered[AUROC] / covered["interval", AUROC] <= 0.97
    assert covered[AT_POINT] >= 0.93 * covered["interval", AT_POINT]
    assert covered["interval", AT_POINT] > 0.8 * studies
