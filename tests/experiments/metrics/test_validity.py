"""How often a study without any effect claims one, and how often intervals of levels cover: tables of one's own.

Studies follow one law for all arms (``simulated``) and go through the product's own comparisons, without tags.
"""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

from experiments.metrics.estimates import CLAIMS, HIGHER, LOWER, TOO_FEW, level_interval
from experiments.metrics.quantities import ANSWERED, AT_POINT, AUROC, BALANCED, CAUGHT, WITHIN, Arms
from tests.experiments.metrics.simulated import (
    LARGE,
    Design,
    answers,
    arms_of,
    changed,
    claims,
    compared,
    names,
    not_above,
    too_often,
)
from tests.slow import weekly

pytestmark = pytest.mark.long

SEED, SMALL = 48, 40
STUDIES = [SMALL, pytest.param(LARGE, marks=pytest.mark.slow)]
TABLES = {
    "24 sentences": Design(),
    "12 sentences": Design(sentences=12),
    "wrapped": Design(wordings=5),
    "sizes of 40 to 1": Design(each=40, uneven=True),
}


@pytest.mark.parametrize("studies", STUDIES)
@pytest.mark.parametrize("name", [name if name == "12 sentences" else weekly(name) for name in TABLES])
def test_a_table_of_ones_own_claims_no_change_where_there_is_none(name: str, studies: int) -> None:
    counted: Counter[Any] = Counter()
    for at in range(studies):
        arms = TABLES[name].arms(np.random.default_rng([SEED, 1, at]), strictness=0.85)
        assert arms.cases.sentences["families"] == TABLES[name].sentences
        found = changed(compared(arms))
        counted.update(found | {"any": any(found.values())})
    print(name, studies, {key: round(100 * count / studies, 1) for key, count in counted.items()})
    assert {AUROC, WITHIN, AT_POINT, ANSWERED, CAUGHT, "any"} <= set(counted)
    assert too_often(counted, studies, 0.065) == {}


@pytest.mark.parametrize(
    ("arms", "studies"),
    [
        pytest.param(2, SMALL, marks=pytest.mark.long),
        *(pytest.param(count, LARGE, marks=pytest.mark.slow) for count in (2, 7, 20)),
    ],
)
def test_a_report_claims_no_change_where_there_is_none_of_any_arm(arms: int, studies: int) -> None:
    counted: Counter[str] = Counter()
    for at in range(studies):
        study = Design().arms(np.random.default_rng([SEED, 3, arms, at]), arms=arms, draws=300 if arms == 2 else 1000)
        results = compared(study)
        others = names(arms)[1:]
        wins = [results.get(name, "wins", against="baseline") for name in others]
        counted.update({"any": any(any(changed(results, name).values()) for name in others),
                        "wins": any(row and row.value for row in wins)})  # fmt: skip
    print(arms, "arms", studies, dict(counted))
    assert too_often(counted, studies, 0.065) == {}


@pytest.mark.parametrize("studies", STUDIES)
@pytest.mark.parametrize("strictness", [weekly(0.8), 0.95, weekly(0.98)])
def test_the_headline_leans_to_neither_side_near_the_ceiling(strictness: float, studies: int) -> None:
    counted: Counter[str] = Counter()
    for at in range(studies):
        arms = Design().arms(np.random.default_rng([SEED, 4, at]), strictness=strictness)
        counted.update([claims(compared(arms))[AT_POINT]])
    print(strictness, studies, dict(counted))
    assert sum(counted[claim] for claim in CLAIMS if claim != TOO_FEW) >= 0.95 * studies
    for claim in (HIGHER, LOWER):
        assert not_above(counted[claim], studies, most=0.035), claim


@pytest.mark.parametrize("studies", STUDIES)
def test_answers_that_are_missing_unequally_claim_no_change(studies: int) -> None:
    counted: Counter[Any] = Counter()
    for at in range(studies):
        rng = np.random.default_rng([SEED, 5, at])
        cases, codes = Design().cases(rng)
        base, margin = Design().margins(rng, codes, ~cases.unsafe, arms=2)
        lost = np.zeros(len(margin), dtype=bool)  # 10% of the unsafe and 5% of the safe ones: the hardest
        for side, share, order in ((cases.unsafe, 0.1, -margin), (~cases.unsafe, 0.05, margin)):
            lost[np.argsort(np.where(side, order, np.inf))[: int(share * side.sum())]] = True
        both = {"baseline": answers(cases, base), "arm 1": answers(cases, margin, ~lost)}
        counted.update(changed(compared(Arms(cases, both, "yes_no", 300, int(rng.integers(2**31))))))
    print(studies, dict(counted))
    assert too_often(counted, studies, 0.065) == {}


@pytest.mark.parametrize("studies", STUDIES)
@pytest.mark.parametrize("tagged", [False, weekly(True)])
def test_intervals_of_levels_cover(studies: int, tagged: bool) -> None:
    design, distance, strictness = Design(tagged=tagged, heavy=False), 0.5, 0.93
    answered = float(ndtr(distance - ndtri(strictness)))
    ranked, balanced = float(ndtr(distance / np.sqrt(2))), (strictness + answered) / 2
    true = {CAUGHT: strictness, ANSWERED: answered, AUROC: ranked, BALANCED: balanced}
    covered: Counter[Any] = Counter()
    for at in range(studies):
        arms = design.arms(np.random.default_rng([SEED, 2, at]), arms=1, strictness=strictness, distance=distance)
        baseline = arms.outcomes["baseline"]
        reading = arms.reading(baseline)
        values, errors = arms.values(baseline, reading), arms.errors(baseline, reading)
        for key, truth in true.items():
            interval = level_interval(values[key], errors[key], arms.sides(key, reading))
            covered[key] += interval is not None and interval.low <= truth <= interval.high
    print("tagged" if tagged else "table", {key: covered[key] / studies for key in true})
    least = 0.92 * studies if studies >= LARGE else 0.75 * studies
    assert all(covered[key] >= least for key in true)


@pytest.mark.parametrize("studies", STUDIES)
@pytest.mark.parametrize("planted", ["mended cases", weekly("a law")])
def test_a_planted_gain_of_ten_points_is_found_with_the_power_that_is_stated(planted: str, studies: int) -> None:
    design = Design(each=3) if planted == "mended cases" else Design(heavy=False)
    found, powers = 0, []
    for at in range(studies):
        rng = np.random.default_rng([SEED, 7, at])
        cases, codes = design.cases(rng)
        safe = ~cases.unsafe
        base, arm = design.margins(rng, codes, safe, arms=2, strictness=0.8)
        if planted == "a law":
            arm = arm + np.where(safe, 0.393, 0.0)  # at 95% caught 22.6% of safe cases are answered, of 12.6%
        else:  # of the safe cases that the baseline fails, so many are answered as ten points take
            alone = Arms(cases, {"baseline": answers(cases, base)}, "yes_no", 1, 0)
            failing = safe & (base <= np.quantile(base[cases.unsafe], alone.operating_point))
            level = alone.values(alone.outcomes["baseline"], alone.reading(alone.outcomes["baseline"]))[AT_POINT] or 0.0
            arm = np.where(
                failing & (rng.random(len(base)) < 0.1 / (1 - level)), base.max() + rng.random(len(base)), base
            )
        results = compared(arms_of(cases, np.stack([base, arm]), rng))
        found += claims(results).get(AT_POINT) == HIGHER
        power = results.get("arm 1", "power_for_10_points", against="baseline")
        assert power is not None or (arm == base).all()  # nothing mended, by luck: no error to tell a power by
        powers += [] if power is None else [power.value or 0.0]
    assert len(powers) >= 0.99 * studies
    print(planted, studies, found / studies, np.mean(powers))
    allowed = 0.05 if studies >= LARGE else 0.2
    assert abs(found / studies - np.mean(powers)) <= allowed
