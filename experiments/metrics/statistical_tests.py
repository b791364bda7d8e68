"""Tests and estimates over plain counts and arrays: Wilson, signal detection, McNemar, Holm, power.

The definitions are in ``docs/metrics.md``; the bootstrap is in ``bootstrap``.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import ndtri, stdtrit
from scipy.stats import binomtest, chi2
from statsmodels.stats.proportion import proportion_confint

from experiments.metrics.bootstrap import CONFIDENCE, FEWEST, Interval

Counts = Float[np.ndarray, "*draw"] | float
RANGE = 0.9  # of pilots, in which the range of ``units_needed`` holds the right number


def wilson(right: int, n: int, *, clusters: int | None = None, confidence: float = CONFIDENCE) -> Interval | None:
    """Return Wilson's score interval (1927) of the rate ``right / n``; None where its cases are too few.

    They are too few where they come from fewer than ``FEWEST`` ``clusters``; by default each case is one.

    Raises:
        ValueError: ``right`` is not between 0 and ``n``.
    """
    _check_counts(right, n, n)
    if min(n, n if clusters is None else clusters) < FEWEST:
        return None
    low, high = proportion_confint(right, n, alpha=1 - confidence, method="wilson")
    # At rates of 0 and 1 the formula gives exactly 0 and 1, but for rounding.
    return Interval(float(low) if right else 0.0, float(high) if right < n else 1.0)


def signal_detection(
    hits: Counts, unsafe: Counts, false_alarms: Counts, safe: Counts
) -> tuple[Float[np.ndarray, "*draw"], Float[np.ndarray, "*draw"]]:
    """Return d′ = z(hit) − z(fa) and c = −(z(hit) + z(fa))/2 of counts, with (count + ½)/(n + 1); NaN where an n is 0.

    Source: Hautus 1995 (log-linear correction); Macmillan and Creelman (d′, c).
    """
    hit, alarm = (ndtri((n + 0.5) / (total + 1.0)) for n, total in ((hits, unsafe), (false_alarms, safe)))
    undefined = np.where((np.asarray(unsafe) > 0) & (np.asarray(safe) > 0), 0.0, np.nan)
    return hit - alarm + undefined, -(hit + alarm) / 2 + undefined


class Flips(NamedTuple):
    """The flip table of two arms on the same cases, with the exact McNemar test of fixed = broken."""

    fixed: int  # wrong before, right after
    broken: int  # right before, wrong after
    p: float  # two-sided


def mcnemar(before: Bool[np.ndarray, " case"], after: Bool[np.ndarray, " case"]) -> Flips:
    """Exact McNemar test on right/wrong before and after; p = 1 where no case changed. Assumes independent cases."""
    fixed, broken = int((~before & after).sum()), int((before & ~after).sum())
    p = float(binomtest(fixed, fixed + broken, 0.5).pvalue) if fixed + broken else 1.0
    return Flips(fixed, broken, p)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's step-down adjusted p values, in the order given (Holm 1979).

    Not by statsmodels' multipletests(), which runs a full garbage collection per call: 0.2 s with torch imported.
    """
    order = np.argsort(p_values, kind="stable")
    factors = len(p_values) - np.arange(len(p_values))
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.minimum(np.maximum.accumulate(np.asarray(p_values, dtype=float)[order] * factors), 1.0)
    return [float(p) for p in adjusted]


class Needed(NamedTuple):
    """How many units (cases, sentences) a difference needs: an estimate, and its 90% range from ``low`` to ``high``."""

    number: int
    low: int
    high: int
    had: int  # units of the study that it was estimated from

    def __float__(self) -> float:
        return float(self.number)


def units_needed(
    standard_error: float, units: int, clusters: int, *, freedom: float | None = None, effect: float = 0.05,
    power: float = 0.8, confidence: float = CONFIDENCE,
) -> Needed | None:  # fmt: skip
    """Return the units that a study needs to show a paired difference of ``effect``; None if nothing varies.

    n = units · ((t + z(power)) · se / effect)², rounded up, with t = t(1 − α/2) of n · clusters / units − 1 degrees of
    freedom. Clusters grow in proportion to units. The range follows from the variance, estimated with ``freedom``
    degrees of freedom (chi-squared), by default ``clusters`` − 1.

    Args:
        standard_error: of the difference on ``units``, in fractions of 1; its variance falls as 1/units.
        units: of the study.
        clusters: that it rests on.
        freedom: degrees of freedom of the standard error.
        effect: the difference to be shown, in fractions of 1.
        power: the probability of showing it in a two-sided test at 1 − ``confidence``.
        confidence: of the interval that decides.
    """
    if units == 0 or clusters < 2 or not standard_error > 0:
        return None
    freedom, tail = freedom or clusters - 1, (1 - RANGE) / 2
    numbers = []
    for scale in (1.0, freedom / float(chi2.ppf(1 - tail, freedom)), freedom / float(chi2.ppf(tail, freedom))):
        n = float(units)
        for _ in range(50):  # t depends on n, and hardly
            t = float(stdtrit(max(n * clusters / units - 1, 1), (1 + confidence) / 2))
            n = units * (t + float(ndtri(power))) ** 2 * scale * standard_error**2 / effect**2
            n = max(n, 2 * units / clusters)
        numbers.append(math.ceil(n - 1e-9))
    return Needed._make([*numbers, units])


def missing_bounds(right: int, n: int, n_of: int) -> Interval | None:
    """Return the lowest and highest rate over ``n_of`` cases if ``n_of − n`` of them are missing; None if ``n_of`` is
    0.

    Raises:
        ValueError: not 0 ≤ ``right`` ≤ ``n`` ≤ ``n_of``.
    """
    _check_counts(right, n, n_of)
    return None if n_of == 0 else Interval(right / n_of, (right + n_of - n) / n_of)


def _check_counts(right: int, n: int, n_of: int) -> None:
    if not 0 <= right <= n <= n_of:
        raise ValueError(f"right is {right} of {n} of {n_of}; a count lies between 0 and its total")
