"""How often a difference is said to exist where there is none.

Simulated studies on the cases of IconWorld, as verdicts, as refusals and as a study's values. Every arm of a study
follows one law (``simulated.Design.margins``): arms differ from template to template, and none is better than another.
The product's own comparisons run on each study.

The large versions are slow, about an hour on one core; docs/metrics.md has what they gave. The small one, of refusals,
runs in CI; ``test_validity`` has the small one of verdicts.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.special import ndtr

from experiments.benchmarks.iconworld import IconWorld
from experiments.benchmarks.iconworld.benchmark import IconWorldRequests
from experiments.metrics.compare import compare, difference, gaps
from experiments.metrics.estimates import HIGHER, LOWER, Resamples
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
from experiments.studies.attention.summary import FAILURES, SUCCESSES, contrasts
from experiments.types import Kind
from tests.experiments.metrics.simulated import LARGE, Design, arms_of, changed, compared, too_often

SEED, DRAWS, ARMS = 20261123, 300, 3
SMALL = 150  # studies
NAMES = ("baseline", *(f"arm {at}" for at in range(1, ARMS + 1)))
Claimed = dict[Any, int]  # quantity → whether a change of it is claimed


def law(cases: Cases, safe: np.ndarray) -> dict[str, np.ndarray]:
    """The codes of each source of a margin's variance, of which one is the two sides of a template."""
    template, concept = cases.factors["template"], cases.factors["concept"]
    return {"sentence": template, "thing": concept, "side": 2 * template + safe, "cell": cases.cluster,
            "case": np.arange(len(safe))}  # fmt: skip


def records(benchmark: IconWorld) -> pd.DataFrame:
    return pd.DataFrame([
        {"case": one.id, "arm": "any", "status": "answered", "verdict": None, "margin": None, "subset": one.subset,
         "scenario": one.scenario, "gold": one.gold, "cluster": one.cluster, "pair": one.pair, "tags": one.tags}
        for one in benchmark.load().samples if one.subset != "control"
    ])  # fmt: skip


@cache
def cases_of(kind: Kind) -> Cases:
    return align(records(IconWorld() if kind == "yes_no" else IconWorldRequests()), kind)[0]


def refusals_of(cases: Cases, margin: np.ndarray) -> Outcomes:
    no, every, none = margin < 0, np.full(len(margin), True), np.full(len(margin), np.nan)
    return Outcomes(answered=every, unsafe=cases.unsafe, flagged=no, passed=~no, score=none, margin=none,
                    fold=None, status=Counter(), verdict=Counter(), no_response=~every)  # fmt: skip


def is_change(entry: Mapping[str, Any] | None) -> int:
    return int(entry is not None and entry["claim"] in (HIGHER, LOWER))


def study_of_ranks(rng: np.random.Generator) -> Claimed:
    """All that a yes/no benchmark claims: of the arm under study, and at once of any arm."""
    of = cases_of("yes_no")
    drawn = Design().margins(rng, law(of, ~of.unsafe), ~of.unsafe, arms=1 + ARMS)
    results = compared(arms_of(of, drawn, rng, draws=DRAWS))
    wins = results.get(NAMES[1], "wins", against="baseline")
    return changed(results) | {
        "any arm": any(any(changed(results, name).values()) for name in NAMES[1:]),
        "wins": bool(wins.value),
    }


def study_of_refusals(rng: np.random.Generator, *, arms: int) -> Claimed:
    """The same for refusals; safe and unsafe margins lie equally high, so that their rates do not differ either."""
    of, seed = cases_of("refusal"), int(rng.integers(2**31))
    safe = of.subset == "benign"
    drawn = Design().margins(rng, law(of, safe), safe, arms=1 + arms, distance=0.0, strictness=float(ndtr(-0.5)))
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
    codes = law(of, ~of.unsafe)
    before, after = Design().margins(rng, codes, ~of.unsafe, arms=2, distance=0.0, strictness=0.5)
    sides = {name: rng.permutation(np.unique(code))[code] % 2 == 0 for name, code in codes.items()}
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
        "AUROC after an intervention": some.auroc_change(before, after, ~of.unsafe),
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


@pytest.mark.long
@pytest.mark.parametrize("studies", [SMALL, pytest.param(LARGE, marks=pytest.mark.slow)])
def test_no_change_of_a_refusal_rate_is_claimed_too_often(studies: int) -> None:
    said = simulated(partial(study_of_refusals, arms=1 if studies == SMALL else ARMS), studies, 2)
    assert {REFUSED, HARMFUL_REFUSED, GAP, TYPE_MEAN, BALANCED, ("gap", GAP)} <= set(said)
    assert not too_often(said, studies)


@pytest.mark.slow
def test_no_change_of_ranks_and_of_what_a_study_measures_is_claimed_too_often() -> None:
    assert not too_often(simulated(study_of_values, LARGE, 4), LARGE)
    said = simulated(study_of_ranks, LARGE, 3)
    assert {AUROC, AT_POINT, WITHIN, "any arm", "wins"} <= set(said)
    assert not too_often(said, LARGE)
    assert said["wins"] <= 0.025 * LARGE
