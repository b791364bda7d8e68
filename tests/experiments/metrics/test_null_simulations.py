"""How often a difference is said to exist where there is none, and how often an interval covers one that does.

Simulated studies: margins of safe and unsafe cases are normal, a part of them shared by the cases of a cluster and a
part by all arms. The whole comparison of ``evaluate`` runs on each study. Slow: about an hour on one core; the seed was
fixed before the first run, and docs/log.md has what it gave.
"""

from collections import Counter

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

from experiments.metrics.yes_no.answers import YesNoAnswers, YesNoCases
from experiments.metrics.yes_no.comparison import comparisons
from experiments.metrics.yes_no.rates import YesNoResamples

pytestmark = pytest.mark.slow
SEED, STUDIES, DRAWS, ARMS = 20261122, 2000, 300, 12
RANKED = ("auroc", "matched_over_safety")
SHARED_BY_ARMS, SHARED_IN_CLUSTER = 0.8, 0.4  # of the variance of a margin
FALSE_ALARMS = 0.063  # 5% and what 2,000 studies may give by chance


def cases(n: int) -> YesNoCases:
    """``n`` cases, half of them safe, in clusters of two of a kind."""
    subset = np.tile(["over_safety", "typical", "over_safety", "attack"], n // 4)
    cluster = np.arange(n) // 4 * 2 + np.arange(n) % 2
    return YesNoCases(
        ids=[str(case) for case in range(n)],
        subset=subset,
        scenario=subset,
        tags=[{}] * n,
        cluster=cluster,
        clusters=n // 2,
        pairs=np.zeros((0, 2), dtype=int),
        pair_unit=np.zeros(0, dtype=int),
        pair_units=0,
    )


def answers(of: YesNoCases, margin: np.ndarray) -> YesNoAnswers:
    yes = margin > 0
    return YesNoAnswers(
        kept=np.full(len(margin), True),
        right=yes != of.unsafe,
        said_yes=yes,
        said_no=~yes,
        margin=margin,
        ranking=margin,
        fold=None,
        disagreeing=(0, len(margin)),
        published_right=None,
        status=Counter(),
        verdict=Counter(),
    )


def study(
    rng: np.random.Generator, of: YesNoCases, apart: tuple[float, float], strictness: float, arms: int
) -> dict[str, YesNoAnswers]:
    """A baseline of ``strictness`` and arms; ``apart``: how far safe and unsafe margins lie apart in either."""
    side = np.where(of.unsafe, -0.5, 0.5)

    def noise() -> np.ndarray:
        of_cluster, own = rng.standard_normal(of.clusters)[of.cluster], rng.standard_normal(len(side))
        return np.sqrt(SHARED_IN_CLUSTER) * of_cluster + np.sqrt(1 - SHARED_IN_CLUSTER) * own

    common = noise()

    def margin(distance: float) -> np.ndarray:
        return distance * side + np.sqrt(SHARED_BY_ARMS) * common + np.sqrt(1 - SHARED_BY_ARMS) * noise()

    level = apart[0] / 2 - ndtri(strictness)
    found = {"baseline": answers(of, margin(apart[0]) + level)}
    for arm in range(arms):  # all but the one under study have a threshold of their own
        found[f"arm{arm}"] = answers(of, margin(apart[1]) + level + (0.5 * rng.standard_normal() if arm else 0.0))
    return found


def simulated(
    n: int, apart: tuple[float, float], strictness: float, arms: int
) -> tuple[Counter[str], dict[str, float]]:
    """Counts over all studies of what was said, and the share of intervals that hold the true difference."""
    rng, of, said = np.random.default_rng([SEED, n, arms]), cases(n), Counter[str]()
    true = {
        "auroc": ndtr(apart[1] / np.sqrt(2)) - ndtr(apart[0] / np.sqrt(2)),
        "matched_over_safety": ndtr(apart[1] - ndtri(strictness)) - ndtr(apart[0] - ndtri(strictness)),
    }
    for _ in range(STUDIES):
        drawn = YesNoResamples(of, DRAWS, seed=int(rng.integers(2**31)))
        found = comparisons(study(rng, of, apart, strictness, arms), drawn, baseline="baseline", control="none",
                            study="arm0")  # fmt: skip
        one = found["arm0"]["delta"]
        for name, entry in one.items():
            said[f"{name} {entry['statement'] if entry else 'cannot tell'}"] += 1
        for name in RANKED:
            if one[name]["low"] is not None:
                said[f"{name} interval"] += 1
                said[f"{name} covered"] += bool(one[name]["low"] <= true[name] <= one[name]["high"])
        said["wins"] += found["arm0"]["wins"]
        said["any arm"] += any(
            (entry := arm["delta"][name]).get("simultaneous", entry)["statement"] in ("rose", "fell")
            for arm in found.values()
            for name in RANKED
        )
    covered = {name: said[f"{name} covered"] / max(said[f"{name} interval"], 1) for name in RANKED}
    print(n, apart, strictness, arms, {key: value / STUDIES for key, value in sorted(said.items())}, covered)
    return said, covered


@pytest.mark.parametrize(("n", "strictness"), [(20, 0.6), (60, 0.6), (300, 0.93), (672, 0.93)])
def test_without_a_true_difference_none_is_said_more_often_than_chance_allows(n: int, strictness: float) -> None:
    said, _ = simulated(n, (0.5, 0.5), strictness, ARMS)
    for name in (*RANKED, "overall", "unsafe", "over_safety"):
        assert said[f"{name} rose"] + said[f"{name} fell"] <= FALSE_ALARMS * STUDIES, name
    assert said["any arm"] <= FALSE_ALARMS * STUDIES
    assert said["wins"] <= FALSE_ALARMS * STUDIES / 2
    if n == 20:
        assert said["auroc too few"] == said["matched_over_safety too few"] == STUDIES


def test_the_intervals_cover_a_true_difference_of_ten_points() -> None:
    apart = (np.sqrt(2) * ndtri(0.65), np.sqrt(2) * ndtri(0.75))  # AUROC .65 and .75
    said, covered = simulated(672, apart, float(ndtr(1.74)), 1)  # over-safety accuracy at it: 11.6% and 21.6%
    assert 0.93 <= covered["auroc"] <= 0.97
    assert covered["matched_over_safety"] >= 0.93
    assert said["matched_over_safety interval"] > 0.8 * STUDIES
