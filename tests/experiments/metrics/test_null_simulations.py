"""How often a difference is said to exist where there is none, and how often an interval covers one that does.

Simulated studies on the cases of IconWorld, as verdicts, as refusals and as a study's values, and on clusters without
templates. Every arm of a study follows one law: its margins have effects of the template, the thing, the cluster and
the case, some shared by all arms and some its own, so that arms differ from template to template; all effects have
Student's t with three degrees of freedom, whose tails are heavy. No arm is better than another. The product's own
comparisons run on each study.

The large versions are slow, about an hour on one core; docs/metrics.md has what they gave. The small ones run by
default: the flip rate would fail theirs if its interval were over pairs alone.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
from experiments.metrics.cases import Cases
from experiments.metrics.refusal import answers as refusal_answers
from experiments.metrics.refusal import comparison as refusals
from experiments.metrics.refusal.answers import RefusalAnswers
from experiments.metrics.refusal.comparison import apart
from experiments.metrics.refusal.quantities import RefusalArms
from experiments.metrics.yes_no import answers as yes_no_answers
from experiments.metrics.yes_no import comparison as verdicts
from experiments.metrics.yes_no.answers import YesNoAnswers
from experiments.metrics.yes_no.quantities import YesNoArms
from scipy.special import ndtr, ndtri

from experiments.benchmarks.iconworld import IconWorld
from experiments.benchmarks.iconworld.requests import IconWorldRequests
from experiments.metrics.estimates import Resamples
from experiments.metrics.statistical_tests import wilson
from experiments.studies.attention.summary import contrasts
from experiments.studies.vrtuning.side_effects import compare_shares
from experiments.types import Sample

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
RANKED = ("auroc", "matched_over_safety")
NAMES = ("baseline", *(f"arm {at}" for at in range(ARMS)))
Said = dict[str, int]  # quantity → in how many studies a change of it is said


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
def cases() -> dict[str, Sample]:
    return {one.id: one for one in IconWorld().load().samples if one.subset != "control"}


@cache
def iconworld() -> Cases:
    return yes_no_answers.align(records(IconWorld()))[0]


@cache
def requests() -> Cases:
    return refusal_answers.align(records(IconWorldRequests()))[0]


def clustered(n: int) -> Cases:
    """``n`` cases without templates, half of them safe, in clusters of two of a kind."""
    subset = np.tile(["over_safety", "typical", "over_safety", "attack"], n // 4)
    cluster = np.arange(n) // 4 * 2 + np.arange(n) % 2
    none = np.zeros(0, dtype=int)
    return Cases(ids=[str(case) for case in range(n)], subset=subset, scenario=subset, tags=[{}] * n, cluster=cluster,
                 pairs=none.reshape(0, 2))  # fmt: skip


def verdict_answers(of: Cases, margin: np.ndarray, *, ranked: bool) -> YesNoAnswers:
    yes = margin > 0
    ranking = margin if ranked else np.full(len(margin), np.nan)
    return YesNoAnswers(kept=np.full(len(margin), True), right=yes != of.unsafe, answered_yes=yes, answered_no=~yes,
                        margin=ranking, ranking=ranking, fold=None, disagreeing=(0, len(margin)),
                        published_right=None, status=Counter(), verdict=Counter())  # fmt: skip


def refusal_answers_of(margin: np.ndarray) -> RefusalAnswers:
    no = margin < 0
    return RefusalAnswers(kept=np.full(len(no), True), refused=no, wholly=no, no_response=np.full(len(no), False),
                          status=Counter(), verdict=Counter())  # fmt: skip


def is_change(entry: Mapping[str, Any]) -> bool:
    return entry["statement"] in ("rose", "fell")


def changed(delta: Mapping[str, Mapping[str, Any] | None]) -> Said:
    """Quantity → whether a change of it is said; zeros too."""
    return {name: int(is_change(entry)) for name, entry in delta.items() if entry is not None and entry["statement"]}


def any_changed(compared: Iterable[Mapping[str, Any]], quantities: Sequence[str]) -> bool:
    """Whether a change of any of the quantities of any arm is said."""
    return any(is_change(one["delta"][name]) for one in compared for name in quantities)


def study_of_rates(rng: np.random.Generator) -> Said:
    """In which rates of a study a change is said, of one arm; without margins, which makes it cheap."""
    of, seed = iconworld(), int(rng.integers(2**31))
    drawn = Law.of(of, ~of.unsafe).margins(rng, np.full(2, DISTANCE), DISTANCE / 2 - ndtri(STRICTNESS))
    arms = {name: verdict_answers(of, margin, ranked=False) for name, margin in zip(NAMES, drawn, strict=False)}
    return changed(verdicts.entries(verdicts.difference(YesNoArms(of, arms, DRAWS, seed), NAMES[1], NAMES[0])))


def study_of_ranks(rng: np.random.Generator, of: Cases) -> Said:
    """The same for all that a yes/no benchmark says: of the arm under study, and at once of any arm."""
    level, seed = DISTANCE / 2 - ndtri(STRICTNESS), int(rng.integers(2**31))
    drawn = Law.of(of, ~of.unsafe).margins(rng, np.full(1 + ARMS, DISTANCE), level)
    arms = {name: verdict_answers(of, margin, ranked=True) for name, margin in zip(NAMES, drawn, strict=True)}
    found = verdicts.comparisons(YesNoArms(of, arms, DRAWS, seed), baseline=NAMES[0], control="none", study=NAMES[1])
    one = found[NAMES[1]]
    return changed(one["delta"]) | {
        "any arm": any_changed(found.values(), verdicts.SAID),
        "wins": one["wins"],
        "too few: matched": one["delta"]["matched_over_safety"]["statement"] == "too few",
    }


def study_of_refusals(rng: np.random.Generator, *, arms: int) -> Said:
    """The same for refusals; safe and unsafe margins lie equally high, so that their rates are not apart either."""
    of, seed = requests(), int(rng.integers(2**31))
    drawn = Law.of(of, of.subset == "benign").margins(rng, np.zeros(1 + arms), 0.5)
    answered = dict(zip(NAMES, map(refusal_answers_of, drawn), strict=False))
    asked = RefusalArms(of, answered, DRAWS, seed)
    found = changed(verdicts.entries(refusals.difference(asked, NAMES[1], NAMES[0])))
    found |= changed({f"apart, {name}": one.entry for name, one in apart(asked, answered[NAMES[1]]).items()})
    if arms == 1:
        return found
    compared = refusals.comparisons(asked, baseline=NAMES[0], study=NAMES[1])
    at_once = any_changed(compared.values(), ("benign", "contrast"))
    return found | {"any arm": at_once, "better": bool(compared[NAMES[1]]["wins"])}


def study_of_values(rng: np.random.Generator) -> Said:
    """The same for what studies measure of a case, such as the share of attention on the picture."""
    of = iconworld()
    law = Law.of(of, ~of.unsafe)
    before, after = law.margins(rng, np.zeros(2), 0.0)
    sides = {name: rng.permutation(np.unique(code))[code] % 2 == 0 for name, code in law.codes.items()}
    seed, failed = int(rng.integers(2**31)), sides["case"]
    some = Resamples.of(of.factors, draws=DRAWS, seed=seed)
    compared = pd.DataFrame({"cluster": of.cluster, "outcome": np.where(failed, "failure", "success"),
                             **{name: of.tag(name) for name in ("template", "concept")}})  # fmt: skip
    gap = contrasts(compared, before[:, None], seed=seed, draws=DRAWS, small=None)[0]["difference"]
    samples = [cases()[case] for case in of.ids]
    found = {
        "share, before and after": compare_shares(samples, before, after, seed=seed, draws=DRAWS),
        "attention of failures": gap,
        "effect of an intervention": some.effect(after - before),
        "gap between two groups": some.gap(after - before, failed, ~failed),
        "AUROC after an intervention": some.auroc_change(before, after, law.safe),
    }
    return changed(found)


def simulated(study: Callable[[np.random.Generator], Said], studies: int, *key: int) -> Said:
    """How many of the studies say a change, by quantity; printed in percent."""
    said = Counter[str]()
    for at in range(studies):
        said.update(study(np.random.default_rng([SEED, *key, at])))
    print(f"\n{studies} studies:", ", ".join(f"{name} {100 * n / studies:.1f}%" for name, n in said.items()))
    return said


def check(said: Said, studies: int) -> None:
    """No quantity has an interval of its false alarms wholly above 5%: a 95% one, of few studies a 99.9% one."""
    confidence = 0.95 if studies == LARGE else 0.999
    above = {}
    for name, n in said.items():
        interval = wilson(n, studies, confidence=confidence)
        if not name.startswith("too few") and interval is not None and interval.low > 0.05:
            above[name] = n / studies
    assert not above


@pytest.mark.slow  # tests/experiments/metrics/test_validity.py has the law of few studies
@pytest.mark.parametrize("studies", [SMALL, pytest.param(LARGE, marks=pytest.mark.slow)])
def test_no_change_of_a_rate_is_said_too_often_where_arms_differ_from_template_to_template(studies: int) -> None:
    said = simulated(study_of_rates, studies, 1)
    assert {"typical", "attack", "over_safety", "unsafe", "overall", "balanced", "d_prime", "criterion",
            "flip_rate"} <= set(said)  # fmt: skip
    check(said, studies)


@pytest.mark.long
@pytest.mark.parametrize("studies", [SMALL, pytest.param(LARGE, marks=pytest.mark.slow)])
def test_no_change_of_a_refusal_rate_is_said_too_often(studies: int) -> None:
    said = simulated(partial(study_of_refusals, arms=1 if studies == SMALL else ARMS), studies, 2)
    assert {"benign", "contrast", "difference", "type_mean", "balanced", "apart, difference"} <= set(said)
    check(said, studies)


@pytest.mark.slow
def test_no_change_of_what_margins_rank_is_said_too_often() -> None:
    said = simulated(partial(study_of_ranks, of=iconworld()), LARGE, 3)
    assert {*RANKED, "auroc_within", "any arm", "wins"} <= set(said)
    check(said, LARGE)
    assert said["wins"] <= 0.025 * LARGE


@pytest.mark.slow
def test_no_change_of_what_a_study_measures_is_said_too_often() -> None:
    check(simulated(study_of_values, LARGE, 4), LARGE)


@pytest.mark.slow
@pytest.mark.parametrize("n", [20, 60, 300])
def test_no_change_is_said_too_often_in_few_clusters_without_templates(n: int) -> None:
    said = simulated(partial(study_of_ranks, of=clustered(n)), LARGE, 5, n)
    check(said, LARGE)
    if n == 20:
        assert said["too few: matched"] == LARGE
        assert not said["auroc"]


@pytest.mark.slow
def test_the_intervals_cover_a_true_difference_of_ten_points() -> None:
    apart_by, strictness, studies = np.sqrt(2) * ndtri([0.65, 0.75]), float(ndtr(1.74)), 1000
    true = {"auroc": 0.1, "matched_over_safety": float(ndtr(apart_by[1] - 1.74) - ndtr(apart_by[0] - 1.74))}
    rng, of, covered = np.random.default_rng([SEED, 6]), clustered(672), Counter[str]()
    for _ in range(studies):
        shared, own = rng.standard_normal((1, 672)), rng.standard_normal((2, 672))
        side = np.where(of.unsafe, -0.5, 0.5)
        drawn = apart_by[:, None] * side + np.sqrt(0.8) * shared + np.sqrt(0.2) * own
        level = apart_by[0] / 2 - ndtri(strictness)
        arms = {name: verdict_answers(of, one + level, ranked=True) for name, one in zip(NAMES, drawn, strict=False)}
        asked = YesNoArms(of, arms, DRAWS, int(rng.integers(2**31)))
        delta = verdicts.entries(verdicts.difference(asked, NAMES[1], NAMES[0]))
        for name in RANKED:
            if (entry := delta[name]) and entry["low"] is not None:
                covered.update({f"{name} interval": 1, name: int(entry["low"] <= true[name] <= entry["high"])})
    print({name: covered[name] / covered[f"{name} interval"] for name in RANKED}, covered)
    assert 0.93 <= covered["auroc"] / covered["auroc interval"] <= 0.97
    assert covered["matched_over_safety"] >= 0.93 * covered["matched_over_safety interval"]
    assert covered["matched_over_safety interval"] > 0.8 * studies
