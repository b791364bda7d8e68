"""A difference between two arms on the same cases: its interval, what is said of it, flips, and the cases needed.

Yes/no and refusal benchmarks and the studies all compare by these (``docs/metrics.md``). Pure.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from experiments.metrics.bootstrap import CONFIDENCE, FEWEST, standard_error, student_quantile
from experiments.metrics.findings import SMALL, Answer, statement
from experiments.metrics.statistical_tests import cases_needed, holm, mcnemar

FIVE_POINTS = 0.05  # the change that more cases are asked for to show

_ROUNDING = 1e-12  # of a standard deviation: the draws are all the same

Change = dict[str, Any]
Mask = Bool[np.ndarray, "case"]


@dataclass(frozen=True)
class Spread:
    """How well a difference is known: its standard error, and the clusters (on the smaller side) that it rests on.

    ``error`` is None where there is none: too few clusters, or the difference exists in fewer than half the draws.
    """

    error: float | None
    clusters: int

    @classmethod
    def of(cls, draws: Float[np.ndarray, " draw"], clusters: int, *, floor: float = 0.0) -> "Spread":
        """That of bootstrap ``draws`` of the difference; ``floor`` is a variance that is added.

        Without spread among the draws (and no ``floor``) there is no standard error: a difference that is the same in
        every sample is not known without error.
        """
        error = standard_error(draws, clusters)
        whole = 0.0 if error is None else float(np.hypot(error, np.sqrt(floor)))
        return cls(whole if whole > _ROUNDING else None, clusters)

    @property
    def reach(self) -> float:
        """Half the width of the 95% interval; infinite without a standard error."""
        return math.inf if self.error is None else student_quantile(self.clusters) * self.error

    def ends(self, value: float, *, confidence: float = CONFIDENCE) -> dict[str, Any]:
        """Student's ``low`` and ``high`` around ``value``, None without a standard error, and ``clusters``."""
        if self.error is None:
            return {"low": None, "high": None, "clusters": self.clusters}
        reach = student_quantile(self.clusters, confidence=confidence) * self.error
        return {"low": value - reach, "high": value + reach, "clusters": self.clusters}


def two_way(first: Spread, second: Spread, both: Spread) -> Spread:
    """The spread of a difference whose cases share two factors, from its spreads over each factor and over both.

    Variances: first + second − both (Cameron, Gelbach and Miller, 2011, "Robust inference with multiway clustering"),
    but no less than the larger of the first two, where the sum falls below it by chance.
    """
    clusters = min(first.clusters, second.clusters)
    if first.error is None or second.error is None or both.error is None:
        return Spread(None, clusters)
    one, other = first.error**2, second.error**2
    return Spread(float(np.sqrt(max(one + other - both.error**2, one, other))), clusters)


def widest(spread: Spread, by_template: Spread | None) -> Spread:
    """The one of two spreads that gives the wider interval; one without a standard error, where there is such."""
    return spread if by_template is None else max(spread, by_template, key=lambda one: one.reach)


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
    spread: Spread  # over clusters
    by_template: Spread | None  # over templates (two-way), where cases are made from them
    draws: Float[np.ndarray, " draw"]  # over clusters

    @property
    def widest(self) -> Spread:
        """The spread that gives the wider interval."""
        return widest(self.spread, self.by_template)

    @property
    def lower_bound(self) -> float | None:
        """The one-sided lower 95% bound, by the wider of the spreads; None without an interval."""
        if self.entry is None:
            return None
        value, confidence = self.entry["value"], 2 * CONFIDENCE - 1
        lows = [one.ends(value, confidence=confidence)["low"] for one in (self.spread, self.by_template) if one]
        return None if None in lows else min(lows)


def change(
    before: float | None,
    after: float | None,
    spread: Spread,
    n: int,
    *,
    by_template: Spread | None = None,
    equal: bool = False,
    small: float | None = SMALL,
) -> Change | None:
    """``after`` − ``before`` on ``n`` cases, its 95% interval and what may be said of it; None where either is missing.

    ``value``, ``low``, ``high``, ``clusters``, ``from``, ``to``, ``n``; ``statement`` (``findings.statement``);
    ``needed``, the cases that a difference of 5 points would need where it is not shown; ``by_template`` with the
    interval over templates where there are such.

    Args:
        by_template: the spread over templates (two-way), where cases are made from them.
        equal: the two arms are the same by construction, so that the difference is 0 and not estimated.
        small: δ in the unit of the quantity, None where none is agreed on.
    """
    if before is None or after is None:
        return None
    value = 0.0 if equal else after - before
    entry: Change = {"value": value, **spread.ends(value), "from": before, "to": after, "n": n}
    intervals = [entry]
    if by_template is not None:
        entry["by_template"] = by_template.ends(value)
        intervals.append(entry["by_template"])
    for ends in intervals:
        if equal and ends["clusters"] >= FEWEST:
            ends |= {"low": 0.0, "high": 0.0}
        elif small is not None:
            ends |= _possible(ends)
    answer = statement(entry, small=small)
    error = widest(spread, by_template).error
    asked = answer is Answer.NOT_SHOWN and small is not None and error is not None
    needed = cases_needed(error, n, effect=FIVE_POINTS) if asked and error else None
    return entry | {"statement": answer.value, "needed": needed}


def _possible(ends: Mapping[str, Any]) -> dict[str, Any]:
    """``low`` and ``high`` of ``ends`` within −1 and 1, where every difference of fractions lies."""
    return {key: ends[key] and min(max(ends[key], -1.0), 1.0) for key in ("low", "high")}


def simultaneous(differences: Iterable[Difference], *, confidence: float = CONFIDENCE) -> None:
    """Adds ``simultaneous`` to differences of fractions of 1: intervals that hold for all of them at once (max-|t|).

    ``low``, ``high``, ``statement`` and ``of``, the number of differences. Their reach is the standard error times the
    quantile of the largest standardised deviation over all differences in the same draws, put through Student's t: for
    few clusters its quantile at the level at which the normal distribution has that value. Differences that are 0 by
    construction, or have no standard error, are left out.
    """
    known = [(one.entry, one.widest, one.draws) for one in differences
             if one.entry is not None and one.entry["low"] is not None and one.entry["low"] < one.entry["high"]
             and one.widest.error is not None]  # fmt: skip
    if not known:
        return
    normal = student_quantile(10**9, confidence=confidence)
    largest = np.zeros(len(known[0][2]))
    for _, _, draws in known:
        if (deviation := np.nanstd(draws)) > 0:  # an error of ``floor`` alone has no draws that deviate
            largest = np.fmax(largest, np.abs(draws - np.nanmean(draws)) / deviation)
    level = math.erf(max(float(np.quantile(largest, confidence)), normal) / math.sqrt(2))
    for entry, spread, _ in known:
        ends = _possible(spread.ends(entry["value"], confidence=level))
        answer = entry["statement"]
        if answer in _BY_INTERVAL:
            answer = statement({"value": entry["value"], **ends}).value
        entry["simultaneous"] = {**ends, "statement": answer, "of": len(known)}


_BY_INTERVAL = (Answer.ROSE, Answer.FELL, Answer.NO_CHANGE, Answer.NOT_SHOWN)


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
