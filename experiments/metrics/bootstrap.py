"""The cluster bootstrap: one set of draws, every quantity in every sample, and the intervals made from them.

Cases that share a cluster (an image, a question, a template) are not independent, so clusters are resampled instead of
cases. All quantities of one ``ClusterBootstrap`` use the same draws, so differences between them are paired.

A single quantity has a percentile interval. A difference has Student's: the estimate ± t times the standard deviation
of its draws. With few clusters the percentile interval is too short. The bootstrap has the spread of G − 1 of G
clusters and the tails of a normal distribution. Student's interval corrects both. With fewer than ``FEWEST`` clusters
neither is given.

``ratios`` has the studentised bootstrap of ratios of sums over units, Σ top / Σ bottom. Each draw of units gives every
ratio θ* and its standard error. The largest |θ* − θ| / error* of all ratios widens the intervals, so that all of them
hold at once with 95%.

Results depend on the seed and not on the chunk size: sums of counts are sums of small integers, exact in float64.

Tests and estimates over plain counts and arrays are here too: Wilson, signal detection, McNemar, Holm, power. The
definitions are in ``docs/metrics.md``.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, UInt8
from scipy.sparse import csr_array
from scipy.special import ndtri, stdtrit
from scipy.stats import binomtest, chi2, nct
from statsmodels.stats.proportion import proportion_confint

Mask = Bool[np.ndarray, "case"]
Values = Float[np.ndarray, "case"]
Codes = Int[np.ndarray, "case"]  # of clusters, folds or families, from 0
Weights = Bool[np.ndarray, "case"] | Int[np.ndarray, "case"]  # a mask, or how often each case counts
Pairs = Int[np.ndarray, "pair 2"]  # positions of two cases
Draws = Float[np.ndarray, "draw"]  # a quantity in every bootstrap sample
TwoDraws = Float[np.ndarray, "2 draw"]


DRAWS = 10_000
CONFIDENCE = 0.95
_TIE = 1e-9  # counts are sums of small integers: nearer than this is equal
FEWEST = 10  # clusters (or pairs) on either side, below which no interval is given
CHUNK = 500  # draws handled at once: 500 × 1,500 cases × 8 bytes = 6 MB, which stays near the cache


class Interval(NamedTuple):
    """A lower and an upper end, in the unit of the quantity."""

    low: float
    high: float


class Clusters(NamedTuple):
    """Clusters that an error rests on: their ``number``, and as how many of one size they count.

    ``effective`` is the effective number of clusters, 1 / Σw² of their shares w of the cases (Kish 1965, "Survey
    Sampling", section 11.7). It is near 1 if one cluster has nearly all cases. None if all are of one size.
    """

    number: int
    effective: float | None = None

    @classmethod
    def of_sizes(cls, sizes: np.ndarray) -> "Clusters":
        """Return the clusters of these sizes [cluster]; clusters of size 0 do not count."""
        squares = float((sizes.astype(float) ** 2).sum())
        return cls(int((sizes > 0).sum()), float(sizes.sum()) ** 2 / squares if squares else 0.0)

    @property
    def freedom(self) -> float:
        """Student's degrees of freedom: one fewer than ``effective``, and at least one."""
        return max((self.number if self.effective is None else self.effective) - 1, 1.0)


@dataclass(frozen=True, eq=False)
class ClusterBootstrap:
    """Bootstrap samples of the clusters that cases belong to.

    Every quantity has one value per sample, NaN where the sample does not define it; ``where`` restricts the cases.
    Give the result, or the difference of two results, to ``percentile_interval``.
    """

    cluster: Codes  # codes from 0
    multiplicity: UInt8[np.ndarray, "draw cluster"]  # how often each cluster occurs in each sample

    @classmethod
    def from_codes(cls, cluster: Codes, *, draws: int, seed: int) -> "ClusterBootstrap":
        """Return bootstrap samples of the clusters with these codes by case.

        Raises:
            ValueError: no cluster, or fewer than one draw.
        """
        count = int(cluster.max(initial=-1)) + 1
        return cls(cluster, _draw(count, draws=draws, seed=seed))

    @classmethod
    def once(cls, cluster: Codes) -> "ClusterBootstrap":
        """Return the cases as they are, as a single sample: what computes the draws computes the estimate as well."""
        return cls(cluster, np.ones((1, int(cluster.max(initial=0)) + 1), dtype=np.uint8))

    @classmethod
    def from_names(cls, names: Sequence[Any] | np.ndarray, *, draws: int, seed: int) -> "ClusterBootstrap":
        """From cluster names by case; codes follow the sorted names. Raises as ``from_codes`` does."""
        return cls.from_codes(np.unique(np.asarray(names), return_inverse=True)[1], draws=draws, seed=seed)

    def clusters(self, where: Weights | None = None) -> int:
        """Return the number of clusters the cases come from; with one there is no spread to estimate."""
        return self.sizes(where).number

    def sizes(self, where: Weights | None = None) -> Clusters:
        """Return the clusters of the cases that ``where`` counts: once, or as often as a case has a part in a
        quantity.
        """
        weights = np.ones(len(self.cluster)) if where is None else where.astype(float)
        return Clusters.of_sizes(np.bincount(self.cluster, weights))

    def sums(
        self, columns: Float[np.ndarray, "case column"], where: Mask | None = None
    ) -> Float[np.ndarray, "draw column"]:
        """Return the sum of each column; ``columns`` has a row for every case, also for cases that ``where``
        excludes.
        """
        used = slice(None) if where is None else where
        by_cluster = np.zeros((self.multiplicity.shape[1], columns.shape[1]))
        np.add.at(by_cluster, self.cluster[used], columns[used])
        chunks = range(0, len(self.multiplicity), CHUNK)
        return np.concatenate([self.multiplicity[i : i + CHUNK].astype(np.float64) @ by_cluster for i in chunks])

    def ratio(self, top: Values, bottom: Values, where: Mask | None = None) -> Draws:
        """Return the sum of ``top`` over the sum of ``bottom``."""
        return ratio(*self.sums(np.stack([top, bottom], axis=1).astype(float), where).T)

    def mean(self, values: Values, where: Mask | None = None) -> Draws:
        """Return the mean of ``values``."""
        return self.ratio(values, np.ones(len(values)), where)

    def pair_mean(self, pairs: Pairs, values: Float[np.ndarray, " pair"]) -> Draws:
        """Return the mean of ``values`` over pairs of cases. A pair is in a sample as often as the product of its
        members' counts.

        A pair within one cluster is in it as often as the cluster: its copies are copies of the pair.
        """
        first, other = self.cluster[pairs].T
        size = self.multiplicity.shape[1]
        tops, bottoms = (csr_array((of, (first, other)), shape=(size, size)) for of in (values, np.ones(len(values))))
        variances = []
        for start in range(0, len(self.multiplicity), CHUNK):
            times = self.multiplicity[start : start + CHUNK].astype(np.float64)
            total, part = (
                ((times @ table) * times).sum(axis=1) - (times * (times - 1)) @ table.diagonal()
                for table in (bottoms, tops)
            )
            variances.append(ratio(part, total))
        return np.concatenate(variances)

    def auroc(self, score: Values, positive: Mask, where: Mask | None = None) -> Draws:
        """Return the chance that a positive case scores above a negative one, ties counting half; NaN where a class is
        absent.

        Raises:
            ValueError: a score is NaN.
        """
        used = np.ones(len(score), dtype=bool) if where is None else where
        return roc_readings(ClusterBootstrap(self.cluster[used], self.multiplicity), -score[used], positive[used])[0]


def ratio(part: np.ndarray | float, total: np.ndarray | float) -> np.ndarray:
    """Return ``part / total``, NaN where ``total`` is 0."""
    part, total = np.asarray(part, dtype=float), np.asarray(total, dtype=float)
    return np.divide(part, total, out=np.full_like(total, np.nan), where=total != 0)


def percentile_interval(draws: Draws, *, clusters: int | None = None) -> Interval | None:
    """Return the central 95% of the bootstrap draws.

    It is None if the quantity exists in fewer than half of them, or if its cases come from fewer than ``FEWEST``
    ``clusters``. If it compares two sides, the smaller side counts.
    """
    existing = defined(draws)
    if existing is None or (clusters is not None and clusters < FEWEST):
        return None
    return Interval(*map(float, np.quantile(existing, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])))


def defined(draws: Draws) -> Draws | None:
    """Return the draws in which the quantity exists; None if these are fewer than half."""
    existing = draws[~np.isnan(draws)]
    return None if len(draws) == 0 or 2 * len(existing) < len(draws) else existing


def auroc(score: Values, positive: Mask) -> float | None:
    """Chance that a positive case scores above a negative one, ties counting half; None where a class is empty.

    Raises:
        ValueError: a score is NaN.
    """
    value = float(ClusterBootstrap.once(np.arange(len(score))).auroc(score, positive)[0])
    return None if math.isnan(value) else value


def roc_readings(bootstrap: ClusterBootstrap, margin: Values, unsafe: Mask, caught: float | None = None) -> TwoDraws:
    """Two readings of the ROC polyline of margins: its area, and over-safety accuracy at an operating point.

    The points (unsafe accuracy, over-safety accuracy) of all thresholds are joined by straight lines, cases of equal
    margin changing sides together. The area is the AUROC, unsafe cases being the positives and ties counting half. The
    second is the share of safe cases above the threshold that catches the share ``caught`` of unsafe cases. If several
    thresholds have the same unsafe accuracy (a vertical step), it is their midpoint. NaN in samples without a safe or
    without an unsafe case, the second also without ``caught``. Margins are sorted once: a sample changes only their
    weights.

    Raises:
        ValueError: a margin is NaN, or ``caught`` outside 0 to 1.
    """
    if np.isnan(margin).any():
        raise ValueError("a score is NaN; leave out the cases without a score")
    if caught is not None and not 0 <= caught <= 1:
        raise ValueError(f"an operating point of {caught} is outside 0 to 1; it is the share of unsafe cases caught")
    order = np.argsort(margin, kind="stable")
    ranked, kind, home = margin[order], unsafe[order], bootstrap.cluster[order]
    last = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True)) if len(ranked) else np.zeros(0, dtype=int)
    result = np.full((2, len(bootstrap.multiplicity)), np.nan)
    for start in range(0, result.shape[1], CHUNK):
        chunk = bootstrap.multiplicity[start : start + CHUNK]
        # The weight of each class below each threshold, from none on.
        hits, lost = (
            _cumulated(chunk[:, home[mask]])[:, np.concatenate([[0], np.cumsum(mask)[last]])] for mask in (kind, ~kind)
        )
        # An unsafe case wins against the safe ones above it; the sums are of halves, exact in float64.
        wins = np.einsum("dp,dp->d", hits[:, 1:] + hits[:, :-1], np.diff(lost)) / 2
        result[0, start : start + CHUNK] = ratio(wins, hits[:, -1] * lost[:, -1])
        defined = (hits[:, -1] > 0) & (lost[:, -1] > 0)
        if caught is not None and defined.any():
            answered = 1 - _read(hits[defined], lost[defined], caught) / lost[defined, -1]
            result[1, start + np.flatnonzero(defined)] = answered
    return result


def deployed_rates(bootstrap: ClusterBootstrap, margin: Values, unsafe: Mask, fold: Codes, caught: float) -> TwoDraws:
    """Return the shares of unsafe cases caught and of safe cases answered, with thresholds set on other cases than they
    judge.

    The lowest threshold that catches the share ``caught`` of the unsafe cases of all other folds judges a fold's cases.
    A case at the threshold is caught. Each sample sets its thresholds again. NaN in samples without a safe or an unsafe
    case, and where a threshold has no unsafe case to be set on.
    """
    order = np.argsort(margin, kind="stable")
    ranked, kind, home, part = margin[order], unsafe[order], bootstrap.cluster[order], fold[order]
    result = np.full((2, len(bootstrap.multiplicity)), np.nan)
    for start in range(0, result.shape[1], CHUNK):
        chunk = bootstrap.multiplicity[start : start + CHUNK]
        row, sums, defined = np.arange(len(chunk)), np.zeros((2, 2, len(chunk))), np.ones(len(chunk), dtype=bool)
        for code in np.unique(part):
            others = kind & (part != code)
            set_on = _cumulated(chunk[:, home[others]])
            defined &= set_on[:, -1] > 0
            if not others.any():
                continue
            index = (set_on[:, 1:] < caught * set_on[:, -1:] - _TIE).sum(axis=1)
            threshold = ranked[others][np.minimum(index, others.sum() - 1)]
            for harmless, judged in enumerate((kind & (part == code), ~kind & (part == code))):
                below = _cumulated(chunk[:, home[judged]])
                under = below[row, np.searchsorted(ranked[judged], threshold, side="right")]
                sums[harmless] += np.stack([below[:, -1] - under if harmless else under, below[:, -1]])
        both = ratio(sums[:, 0], sums[:, 1])
        result[:, start : start + CHUNK] = np.where(defined & ~np.isnan(both).any(axis=0), both, np.nan)
    return result


def _read(caught: Float[np.ndarray, "draw point"], lost: Float[np.ndarray, "draw point"], share: float) -> Draws:
    """``lost`` at the point of the polyline where ``caught`` is ``share`` of its end; both ascend from 0."""
    target = share * caught[:, -1]
    first = (caught < target[:, None] - _TIE).sum(axis=1)  # of the points that catch as many, if any does
    final = (caught <= target[:, None] + _TIE).sum(axis=1) - 1
    row, left, right = np.arange(len(target)), np.minimum(first, final), np.maximum(first, final)
    gap = caught[row, right] - caught[row, left]
    part = np.where(first <= final, 0.5, ratio(target - caught[row, left], gap))
    return lost[row, left] + part * (lost[row, right] - lost[row, left])


def _cumulated(weights: UInt8[np.ndarray, "draw case"]) -> Float[np.ndarray, "draw case+1"]:
    """Return the weight of the first 0, 1, 2, … cases of each draw."""
    return np.cumsum(np.pad(weights, ((0, 0), (1, 0))), axis=1, dtype=np.float64)


def _draw(clusters: int, *, draws: int, seed: int) -> UInt8[np.ndarray, "draw cluster"]:
    """Return how often each of ``clusters`` clusters occurs in each bootstrap sample of as many clusters, with
    replacement.
    """
    if clusters < 1 or draws < 1:
        raise ValueError(f"{clusters} clusters, {draws} draws; a bootstrap needs at least one of each")
    rng = np.random.default_rng(seed)
    rows = []
    for start in range(0, draws, CHUNK):
        size = min(CHUNK, draws - start)
        picked = rng.integers(clusters, size=(size, clusters)) + clusters * np.arange(size)[:, None]
        # A multiplicity is about Poisson(1) and never above the number of clusters: 255 is out of reach.
        rows.append(np.bincount(picked.ravel(), minlength=size * clusters).reshape(size, clusters).astype(np.uint8))
    return np.concatenate(rows)


RATIO_DRAWS = 2000
FIFTH = 0.2  # the ratio whose power is given
FAR = 30.0  # standard errors from 0 beyond which scipy cannot follow; the power there is 1


def unit_sums(values: Float[np.ndarray, "row ..."], unit: Int[np.ndarray, " row"]) -> np.ndarray:
    """Return the sums of the rows of each unit; ``unit`` has codes from 0."""
    sums = np.zeros((int(unit.max()) + 1, *values.shape[1:]))
    np.add.at(sums, unit, values)
    return sums


def ratios(
    top: Float[np.ndarray, "unit ratio"], bottom: Float[np.ndarray, " unit"], *, seed: int, draws: int = RATIO_DRAWS
) -> list[dict[str, Any]]:
    """Return Σ ``top`` / Σ ``bottom`` over units, with intervals that hold for all ratios at once.

    Returns:
        For each ratio ``value``, ``low``, ``high``, ``clusters`` (the units) and ``power``, the chance that the
        interval of a ratio of ``FIFTH`` with the same error excludes 0. With fewer than ``FEWEST`` units, or if no
        finite interval holds, there are no intervals and no power.
    """
    top, bottom = np.asarray(top, dtype=float), np.asarray(bottom, dtype=float)
    units = len(bottom)
    value = ratio(top.sum(0), np.full(top.shape[1], bottom.sum()))
    only_values = [{"value": float(v), "low": None, "high": None, "clusters": units, "power": None} for v in value]
    if units < FEWEST:
        return only_values
    rest = top - bottom[:, None] * value
    error = np.sqrt(units / (units - 1) * (rest**2).sum(0)) / abs(bottom.sum())
    picked = ClusterBootstrap.from_codes(np.arange(units), draws=draws, seed=seed).multiplicity.astype(float)
    total = (picked @ bottom)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        off = (picked @ rest) / total
        crossed, squared = picked @ (rest * bottom[:, None]), (picked @ bottom**2)[:, None]
        squares = picked @ rest**2 - 2 * off * crossed + off**2 * squared
        away = np.abs(off) / (np.sqrt(units / (units - 1) * np.maximum(squares, 0)) / np.abs(total))
    away[np.abs(off) <= 1e-12] = 0.0  # a ratio without any spread (an inert part)
    largest = np.nan_to_num(away, nan=np.inf).max(axis=1, initial=0.0)
    reach = float(np.quantile(largest, CONFIDENCE, method="higher"))
    if not np.isfinite(reach):
        return only_values
    power = nct.sf(reach, units - 1, np.minimum(FIFTH / np.maximum(error, 1e-12), FAR))
    columns = np.stack([value, value - reach * error, value + reach * error, power]).T.tolist()
    return [dict(zip(("value", "low", "high", "power"), line, strict=True), clusters=units) for line in columns]


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
