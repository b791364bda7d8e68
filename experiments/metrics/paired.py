"""A difference between two arms on the same cases: its interval, what is said of it, flips, and the cases needed.

Yes/no and refusal benchmarks and the studies all compare by these (``docs/metrics.md``). Pure.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import betaincinv, stdtr
from scipy.stats import rankdata

from experiments.metrics.bootstrap import (
    CONFIDENCE,
    FEWEST,
    Clusters,
    Interval,
    Weights,
    standard_error,
    student_quantile,
)
from experiments.metrics.findings import SMALL, Answer, statement
from experiments.metrics.statistical_tests import holm, mcnemar, units_needed

FIVE_POINTS = 0.05  # the change that more cases are asked for to show
# Of a variance over two factors, a sum of three estimates: simulated 17 to 20 where there are 24 sentences.
TWO_WAY_FREEDOM = 0.75

_ROUNDING = 1e-12  # of a standard deviation: the draws are all the same

Change = dict[str, Any]
Point = Mapping[str, float | None]  # quantities of one arm by name, None where one does not exist
Mask = Bool[np.ndarray, "case"]


@dataclass(frozen=True)
class Spread:
    """How well a difference is known: its standard error, and the clusters (on the smaller side) that it rests on.

    ``error`` is None where there is none: too few clusters, or the difference exists in fewer than half the draws.
    ``effective`` is as how many of one size they count (``bootstrap.Clusters``), by default all of them.
    """

    error: float | None
    clusters: int
    effective: float | None = None
    sentences: int | None = None  # families of sentences, where these are resampled: what more cases must come with

    @classmethod
    def of(cls, draws: Float[np.ndarray, " draw"], clusters: Clusters | int, *, floor: float = 0.0) -> "Spread":
        """That of bootstrap ``draws`` of the difference; ``floor`` is a variance that is added.

        Without spread among the draws (and no ``floor``) there is no standard error: a difference that is the same in
        every sample is not known without error.
        """
        clusters = Clusters.even(clusters) if isinstance(clusters, int) else clusters
        error = standard_error(draws, clusters)
        whole = 0.0 if error is None else float(np.hypot(error, np.sqrt(floor)))
        return cls(whole if whole > _ROUNDING else None, *clusters)

    @property
    def freedom(self) -> float:
        """Student's degrees of freedom of the error."""
        return Clusters(self.clusters, self.clusters if self.effective is None else self.effective).freedom

    @property
    def reach(self) -> float:
        """Half the width of the 95% interval; infinite without a standard error."""
        return math.inf if self.error is None else student_quantile(self.freedom) * self.error

    def ends(self, value: float, *, confidence: float = CONFIDENCE) -> dict[str, Any]:
        """Student's ``low`` and ``high`` around ``value``, None without a standard error, and ``clusters``."""
        if self.error is None:
            return {"low": None, "high": None, "clusters": self.clusters}
        reach = student_quantile(self.freedom, confidence=confidence) * self.error
        return {"low": value - reach, "high": value + reach, "clusters": self.clusters}


def two_way(first: Spread, second: Spread, both: Spread) -> Spread:
    """The spread of a difference whose cases share two factors, from its spreads over each factor and over both.

    Variances: first + second − both (Cameron, Gelbach and Miller, 2011, "Robust inference with multiway clustering"),
    but no less than the larger of the first two, where the sum falls below it by chance.
    """
    least = min(first.clusters, second.clusters), min(first.freedom, second.freedom) + 1
    if first.error is None or second.error is None or both.error is None:
        return Spread(None, *least)
    one, other = first.error**2, second.error**2
    return Spread(float(np.sqrt(max(one + other - both.error**2, one, other))), *least)


def widest(spread: Spread, by_factors: Spread | None) -> Spread:
    """The one of two spreads that gives the wider interval; one without a standard error, where there is such."""
    return spread if by_factors is None else max(spread, by_factors, key=lambda one: (one.reach, -one.clusters))


def share_interval(value: float, spread: Spread, n: int) -> Interval | None:
    """The 95% interval of a share: Clopper and Pearson's, of as many cases as would have its standard error.

    These are no more than its ``n`` cases, and fewer by the square of 1.96 over Student's t. A share of 0 or 1, which
    no sample of them varies, has the interval of its ``n`` cases. None under ``FEWEST`` clusters or cases. Source: Korn
    and Graubard (1998, "Confidence intervals for proportions with small expected number of positive counts estimated
    from survey data"). Near 0 and 1 it covers where Wilson's with Student's t does not.
    """
    value = round(value, 12)  # sums of weights are 1 but for rounding
    if min(spread.clusters, n) < FEWEST or (spread.error is None and 0 < value < 1):
        return None
    size = float(n)
    if spread.error and 0 < value < 1:
        fewer = (student_quantile(n - 1) / student_quantile(spread.freedom)) ** 2
        size = min(value * (1 - value) / spread.error**2 * fewer, size)
    count, tail = value * size, (1 - CONFIDENCE) / 2
    low = float(betaincinv(count, size - count + 1, tail)) if value else 0.0
    high = float(betaincinv(count + 1, size - count, 1 - tail)) if value < 1 else 1.0
    return Interval(low, high)


def level_interval(
    value: float | None, spread: Spread, sides: Sequence[Weights], *, share: bool = True
) -> Interval | None:
    """The 95% interval of a level of the cases of ``sides``, by the spread of its own draws; None where it has none.

    That of a share is ``share_interval``, of anything else Student's.
    """
    if value is None:
        return None
    if share:
        return share_interval(value, spread, min(int((side > 0).sum()) for side in sides))
    ends = spread.ends(value)
    return None if ends["low"] is None else Interval(ends["low"], ends["high"])


def rate_floor(*cases: int) -> float:
    """The variance that is added to the difference of two rates, or of the mean of rates of several groups of cases.

    2 / (n + 2)² for a rate of n cases, which is what one more flip in either direction adds (Bonett and Price, 2012,
    "Adjusted Wald confidence interval for a difference of binomial proportions based on paired data"). Without it no
    flip among 20 cases would be an interval of width 0.
    """
    return sum(2 / (count + 2) ** 2 for count in cases) / max(len(cases), 1) ** 2


class Difference(NamedTuple):
    """A difference: its ``entry`` as metrics.json has it (None where it does not exist), its spreads and its draws."""

    entry: Change | None
    spread: Spread
    draws: Float[np.ndarray, " draw"]  # over what it varies most over
    small: float | None = SMALL

    @property
    def lower_bound(self) -> float | None:
        """The one-sided lower 95% bound; None without an interval."""
        if self.entry is None:
            return None
        low: float | None = self.spread.ends(self.entry["value"], confidence=2 * CONFIDENCE - 1)["low"]
        return low


def change(
    before: float | None,
    after: float | None,
    spread: Spread,
    n: int,
    *,
    equal: bool = False,
    small: float | None = SMALL,
    bounds: tuple[float, float] | None = None,
) -> Change | None:
    """``after`` − ``before`` on ``n`` cases, its 95% interval and what may be said of it; None where either is missing.

    ``value``, ``low``, ``high``, ``clusters``, ``from``, ``to``, ``n``; ``statement`` (``findings.statement``);
    where it is not shown, ``needed``, the cases that a difference of 5 points would take, and ``needed_of``
    (``_needed``).

    Args:
        equal: the two arms are the same by construction, so that the difference is 0 and not estimated.
        small: δ in the unit of the quantity, None where none is agreed on.
        bounds: the lowest and the highest difference that missing cases allow; None where nothing is missing.
    """
    if before is None or after is None:
        return None
    value = 0.0 if equal else after - before
    entry: Change = {"value": value, **spread.ends(value), "from": before, "to": after, "n": n}
    if bounds is not None:
        entry["bounds"] = bounds
    if equal and entry["clusters"] >= FEWEST:
        entry |= {"low": 0.0, "high": 0.0}
    elif small is not None:
        entry |= _possible(entry)
    answer = statement(entry, small=small)
    return entry | {"statement": answer.value, **_needed(spread, n, answer, small)}


def _needed(
    spread: Spread, n: int, answer: Answer, small: float | None, *, confidence: float = CONFIDENCE
) -> dict[str, Any]:
    """What it takes to show a difference of 5 points where ``n`` cases of this spread do not, judged at ``confidence``.

    ``needed`` in cases, None where the question does not arise; ``needed_of``: the ``unit`` that is counted (sentences,
    where these are resampled: cases of the same ones do not help), its ``number`` and 90% range ``low`` to ``high``,
    how many there were (``had``), and the cases ``each`` has.
    """
    if answer is not Answer.NOT_SHOWN or small is None or not spread.error or not n:
        return {"needed": None}
    had, freedom = spread.sentences or n, spread.freedom
    if spread.sentences:
        freedom *= TWO_WAY_FREEDOM
    found = units_needed(spread.error, had, spread.clusters, freedom=freedom, effect=FIVE_POINTS, confidence=confidence)
    if found is None:
        return {"needed": None}
    unit = "sentences" if spread.sentences else "cases"
    return {
        "needed": math.ceil(found.number * n / had),
        "needed_of": {"unit": unit, **found._asdict(), "had": had, "each": n / had},
    }


def _possible(ends: Mapping[str, Any]) -> dict[str, Any]:
    """``low`` and ``high`` of ``ends`` within −1 and 1, where every difference of fractions lies."""
    return {key: ends[key] and min(max(ends[key], -1.0), 1.0) for key in ("low", "high")}


def one_family(primary: Difference | None, further: Iterable[Difference]) -> None:
    """What may be said of all differences of a report, so that any is wrongly said to exist in 5% of reports at most.

    Half of the 5% is the ``primary`` question's, the other half all ``further`` ones' together (``simultaneous``);
    without a primary question all of it is theirs.
    """
    half = CONFIDENCE if primary is None else (1 + CONFIDENCE) / 2
    simultaneous([] if primary is None else [primary], confidence=half)
    simultaneous([one for one in further if one is not primary], confidence=half)


def unsaid(differences: Iterable[Difference]) -> None:
    """Takes back what is said by the intervals of differences: these stay, their ``statement`` is None."""
    for one in differences:
        if one.entry is not None and one.entry["statement"] in _BY_INTERVAL:
            one.entry.update(statement=None, needed=None)


def simultaneous(differences: Iterable[Difference], *, confidence: float = CONFIDENCE) -> None:
    """Adds ``decides`` to differences: intervals that hold for all of them at once, and decide what is said.

    ``low``, ``high``, ``of`` (the number of differences) and ``level`` (that of each interval by itself); the
    ``statement`` of each becomes the one by this interval, Student's at ``level``. Each draw's deviation has a p value,
    its rank among the deviations of its difference; of the smallest p over all differences, draw by draw, the quantile
    1 − ``confidence`` is 1 − ``level`` (Westfall and Young, 1993, min-P), which is at least Bonferroni's, and that
    where draws are too few. Differences that are 0 by construction, or have no standard error, are left out.
    """
    known = [(one.entry, one) for one in differences
             if one.entry is not None and one.entry["low"] is not None and one.entry["low"] < one.entry["high"]
             and one.spread.error is not None]  # fmt: skip
    if not known:
        return
    level = confidence
    if len(known) > 1:
        smallest = np.ones(len(known[0][1].draws))
        for _, one in known:
            if np.nanstd(one.draws) > 0:  # an error of ``floor`` alone has no draws that deviate
                away = np.nan_to_num(np.abs(one.draws - np.nanmean(one.draws)), nan=-1.0)
                smallest = np.minimum(smallest, rankdata(-away, method="max") / len(away))
        joint, least = float(np.quantile(smallest, 1 - confidence)), (1 - confidence) / len(known)
        told = joint >= 2 / len(smallest)  # else there are too few draws to tell so small a p
        level = 1 - min(max(joint, least), 1 - confidence) if told else 1 - least
    for entry, one in known:
        ends = one.spread.ends(entry["value"], confidence=level)
        if one.small is not None:
            ends |= _possible(ends)
        entry["decides"] = {"low": ends["low"], "high": ends["high"], "of": len(known), "level": level}
        if entry["statement"] in _BY_INTERVAL:
            said = statement(entry | entry["decides"], small=one.small)
            entry |= {"statement": said.value, **_needed(one.spread, entry["n"], said, one.small, confidence=level)}


_BY_INTERVAL = (Answer.ROSE, Answer.FELL, Answer.NO_CHANGE, Answer.NOT_SHOWN)


def furthest(now: Sequence[Point], then: Sequence[Point]) -> dict[str, tuple[float, float]]:
    """The lowest and the highest difference of each quantity between any of ``now`` and any of ``then``.

    Each is what missing answers may make of an arm (``Change``'s ``bounds``); a quantity that exists in none is left
    out.
    """
    ends: list[dict[str, tuple[float, float]]] = []
    for points in (now, then):
        known = {name: [of for point in points if (of := point[name]) is not None] for name in points[0]}
        ends.append({name: (min(of), max(of)) for name, of in known.items() if of})
    after, before = ends
    return {name: (low - before[name][1], high - before[name][0]) for name, (low, high) in after.items()
            if name in before}  # fmt: skip


def power(one: Difference, gain: float) -> float | None:
    """The chance that a study like this one shows a true gain of ``gain``; None without a standard error.

    By the standard error and the level that decides, whatever gain was observed.
    """
    if one.entry is None or one.spread.error is None:
        return None
    level = one.entry.get("decides", {}).get("level", CONFIDENCE)
    reach = student_quantile(one.spread.freedom, confidence=level)
    return float(stdtr(one.spread.freedom, gain / one.spread.error - reach))


def flip_tables(before: Mask, after: Mask, mask: Mask, subset: np.ndarray, subsets: Sequence[str]) -> dict[str, Any]:
    """McNemar's table of right answers before and after, over the cases of ``mask`` and by subset."""

    def table(where: Mask) -> dict[str, Any]:
        return mcnemar(before[where], after[where])._asdict()

    return {**table(mask), "by_subset": {name: table(mask & (subset == name)) for name in subsets}}


def adjust_for_arms(comparisons: Iterable[Mapping[str, Any]], subsets: Sequence[str]) -> None:
    """Adds ``p_holm`` to the ``flip_tables`` under ``mcnemar`` of each comparison: Holm's correction across arms.

    The tables over all cases are one family of tests, those of each subset another.
    """
    tables = [comparison["mcnemar"] for comparison in comparisons]
    for family in (tables, *([table["by_subset"][subset] for table in tables] for subset in subsets)):
        for table, adjusted in zip(family, holm([table["p"] for table in family]), strict=True):
            table["p_holm"] = adjusted
