"""How often a study without any effect says one, and how often intervals of levels cover: tables of one's own.

Studies follow one law for all arms (``simulated``) and go through the product's own comparisons, without tags.
"""

from collections import Counter

import numpy as np
import pytest
from experiments.metrics.paired import level_interval
from experiments.metrics.yes_no.comparison import SAID, comparisons
from experiments.metrics.yes_no.quantities import YesNoArms
from scipy.special import ndtr, ndtri

from experiments.metrics.statistical_tests import wilson
from tests.experiments.metrics.simulated import Design, answers, not_above
from tests.weekly import weekly

SEED, LARGE, SMALL = 48, 1600, 40
STUDIES = [pytest.param(SMALL, marks=pytest.mark.long), pytest.param(LARGE, marks=pytest.mark.slow)]
TABLES = {
    "24 sentences": Design(),
    "12 sentences": Design(sentences=12),
    "wrapped": Design(wordings=5),
    "sizes of 40 to 1": Design(each=40, uneven=True),
}


def too_often(said: Counter[str], studies: int, most: float) -> dict[str, float]:
    """What is said above ``most`` or, of few studies, surely above it (99.9%); or with an interval above 5%."""
    found = {}
    for name, count in said.items():
        low = getattr(wilson(count, studies, confidence=0.95 if studies >= LARGE else 0.999), "low", 0.0)
        if low > 0.05 or (studies >= LARGE and count > most * studies):
            found[name] = count / studies
    return found


@pytest.mark.parametrize("studies", STUDIES)
@pytest.mark.parametrize("name", [name if name == "12 sentences" else weekly(name) for name in TABLES])
def test_a_table_of_ones_own_says_no_change_where_there_is_none(name: str, studies: int) -> None:
    said: Counter[str] = Counter()
    alone: Counter[str] = Counter()  # by the 95% interval of each quantity by itself, which decides nothing
    for at in range(studies):
        arms = TABLES[name].arms(np.random.default_rng([SEED, 1, at]), strictness=0.85)
        assert arms.cases.sentences["families"] == TABLES[name].sentences
        delta = comparisons(arms, baseline="baseline", control="none", study="arm 1")["arm 1"]["delta"]
        changed = {key: delta[key]["statement"] in ("rose", "fell") for key in SAID}
        said.update(changed | {"any": any(changed.values())})
        alone.update({key: one["low"] > 0 or one["high"] < 0 for key, one in delta.items() if one})
    print(name, studies, *({key: round(100 * count / studies, 1) for key, count in of.items()} for of in (said, alone)))
    assert {"auroc", "auroc_within", "matched_over_safety", "over_safety", "unsafe", "any"} <= set(said)
    assert too_often(said, studies, 0.065) == {}


@pytest.mark.parametrize(
    ("arms", "studies"),
    [
        pytest.param(2, SMALL, marks=pytest.mark.long),
        *(pytest.param(count, LARGE, marks=pytest.mark.slow) for count in (2, 7, 20)),
    ],
)
def test_a_report_says_no_change_where_there_is_none_of_any_arm(arms: int, studies: int) -> None:
    said: Counter[str] = Counter()
    for at in range(studies):
        asked = Design().arms(np.random.default_rng([SEED, 3, arms, at]), arms=arms, draws=300 if arms == 2 else 1000)
        found = comparisons(asked, baseline="baseline", control="none", study="arm 1")
        changed = {key for one in found.values() for key in SAID if one["delta"][key]["statement"] in ("rose", "fell")}
        said.update({"any": bool(changed), "wins": any(one["wins"] for one in found.values())})
    print(arms, "arms", studies, dict(said))
    assert too_often(said, studies, 0.065) == {}


@pytest.mark.parametrize("studies", STUDIES)
@pytest.mark.parametrize("strictness", [weekly(0.8), 0.95, weekly(0.98)])
def test_the_headline_leans_to_neither_side_near_the_ceiling(strictness: float, studies: int) -> None:
    said: Counter[str] = Counter()
    for at in range(studies):
        arms = Design().arms(np.random.default_rng([SEED, 4, at]), strictness=strictness)
        entry = comparisons(arms, baseline="baseline", control="none", study="arm 1")["arm 1"]["delta"]
        said.update([entry["matched_over_safety"]["statement"]])
    print(strictness, studies, dict(said))
    assert sum(said[one] for one in ("rose", "fell", "no change", "not shown")) >= 0.95 * studies
    for one in ("rose", "fell"):
        assert not_above(said[one], studies, most=0.035, large=LARGE), one


@pytest.mark.parametrize("studies", STUDIES)
def test_answers_that_are_missing_unequally_say_no_change(studies: int) -> None:
    said: Counter[str] = Counter()
    for at in range(studies):
        rng = np.random.default_rng([SEED, 5, at])
        cases, codes = Design().cases(rng)
        base, margin = Design().margins(rng, codes, ~cases.unsafe, arms=2)
        lost = np.zeros(len(margin), dtype=bool)  # 10% of the unsafe and 5% of the safe ones: the hardest
        for side, share, order in ((cases.unsafe, 0.1, -margin), (~cases.unsafe, 0.05, margin)):
            lost[np.argsort(np.where(side, order, np.inf))[: int(share * side.sum())]] = True
        both = {"baseline": answers(cases, base), "arm 1": answers(cases, margin, ~lost)}
        asked = YesNoArms(cases, both, 300, int(rng.integers(2**31)))
        delta = comparisons(asked, baseline="baseline", control="none", study="arm 1")["arm 1"]["delta"]
        said.update({key: delta[key]["statement"] in ("rose", "fell") for key in SAID})
    print(studies, dict(said))
    assert too_often(said, studies, 0.065) == {}


@pytest.mark.parametrize("studies", STUDIES)
@pytest.mark.parametrize("tagged", [False, weekly(True)])
def test_intervals_of_levels_cover(studies: int, tagged: bool) -> None:
    design, distance, strictness = Design(tagged=tagged, heavy=False), 0.5, 0.93
    answered = float(ndtr(distance - ndtri(strictness)))
    ranked, balanced = float(ndtr(distance / np.sqrt(2))), (strictness + answered) / 2
    true = {"unsafe": strictness, "over_safety": answered, "auroc": ranked, "balanced": balanced}
    covered: Counter[str] = Counter()
    for at in range(studies):
        arms = design.arms(np.random.default_rng([SEED, 2, at]), arms=1, strictness=strictness, distance=distance)
        reading = arms.reading("baseline")
        values, levels, sides = arms.point("baseline"), arms.levels("baseline", reading), arms.sides(reading)
        for name, truth in true.items():
            interval = level_interval(values[name], levels[name], sides[name])
            covered[name] += interval is not None and interval.low <= truth <= interval.high
    print("tagged" if tagged else "table", {name: covered[name] / studies for name in true})
    least = 0.92 * studies if studies >= LARGE else 0.75 * studies
    assert all(covered[name] >= least for name in true)


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
            alone = YesNoArms(cases, {"baseline": answers(cases, base)}, 1, 0)
            failing = safe & (base <= np.quantile(base[cases.unsafe], alone.caught))
            share = 0.1 / (1 - (alone.point("baseline")["matched_over_safety"] or 0.0))
            arm = np.where(failing & (rng.random(len(base)) < share), base.max() + rng.random(len(base)), base)
        both = {"baseline": answers(cases, base), "arm 1": answers(cases, arm)}
        asked = YesNoArms(cases, both, 300, int(rng.integers(2**31)))
        one = comparisons(asked, baseline="baseline", control="none", study="arm 1")["arm 1"]
        found += one["delta"]["matched_over_safety"]["statement"] == "rose"
        power = one["findings"][-1]["evidence"]["power"]
        assert power is not None or (arm == base).all()  # nothing mended, by luck: no error to tell a power by
        powers += [] if power is None else [power]
    assert len(powers) >= 0.99 * studies
    print(planted, studies, found / studies, np.mean(powers))
    allowed = 0.05 if studies >= LARGE else 0.2
    assert abs(found / studies - np.mean(powers)) <= allowed
