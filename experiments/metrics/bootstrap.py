"""The cluster bootstrap: one set of draws, every quantity in every sample, and the intervals made from them.

Cases that share a cluster (an image, a question, a template) are not independent, so clusters are resampled instead of
cases. All quantities of one ``ClusterBootstrap`` use the same draws, so differences between them are paired.

A single quantity has a percentile interval. A difference has Student's: the estimate ± t times the standard deviation
of its draws. With few clusters the percentile interval is too short, since the bootstrap's spread is that of G − 1 of
G clusters and its tails are those of a normal distribution; Student's corrects both. With fewer than ``FEWEST``
clusters neither is given.

Results depend on the seed and not on the chunk size: sums of counts are sums of small integers, exact in float64.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, UInt8
from scipy.special import stdtrit

DRAWS = 10_000
CONFIDENCE = 0.95
FEWEST = 10  # clusters (or pairs) on either side, below which no interval is given
CHUNK = 500  # draws handled at once: 500 × 1,500 cases × 8 bytes = 6 MB, which stays near the cache

Mask = Bool[np.ndarray, "case"]


class Interval(NamedTuple):
    """A lower and an upper end, in the unit of the quantity."""

    low: float
    high: float


@dataclass(frozen=True, eq=False)
class ClusterBootstrap:
    """Bootstrap samples of the clusters that cases belong to.

    Every quantity has one value per sample, NaN where the sample does not define it; ``where`` restricts the cases.
    Give the result, or the difference of two results, to ``percentile_interval``.
    """

    cluster: Int[np.ndarray, " case"]  # codes from 0
    multiplicity: UInt8[np.ndarray, "draw cluster"]  # how often each cluster occurs in each sample

    @classmethod
    def of(cls, cluster: Int[np.ndarray, " case"], *, draws: int, seed: int, clusters: int = 0) -> "ClusterBootstrap":
        """From cluster codes by case; ``clusters`` is the number of codes where some have no case.

        Raises:
            ValueError: no cluster, or fewer than one draw.
        """
        count = max(clusters, int(cluster.max()) + 1 if len(cluster) else 0)
        return cls(cluster, _draw(count, draws=draws, seed=seed))

    @classmethod
    def once(cls, cluster: Int[np.ndarray, " case"]) -> "ClusterBootstrap":
        """The cases as they are, as a single sample: what computes the draws computes the estimate as well."""
        return cls(cluster, np.ones((1, int(cluster.max(initial=0)) + 1), dtype=np.uint8))

    @classmethod
    def of_names(cls, names: Sequence[Any] | np.ndarray, *, draws: int, seed: int) -> "ClusterBootstrap":
        """From cluster names by case; codes follow the sorted names. Raises as ``of`` does."""
        return cls.of(np.unique(np.asarray(names), return_inverse=True)[1], draws=draws, seed=seed)

    def clusters(self, where: Mask | None = None) -> int:
        """The number of clusters the cases come from; with one there is no spread to estimate."""
        return len(np.unique(self.cluster if where is None else self.cluster[where]))

    def sums(
        self, columns: Float[np.ndarray, "case column"], where: Mask | None = None
    ) -> Float[np.ndarray, "draw column"]:
        """The sum of each column; ``columns`` has a row for every case, also for those that ``where`` leaves out."""
        used = slice(None) if where is None else where
        by_cluster = np.zeros((self.multiplicity.shape[1], columns.shape[1]))
        np.add.at(by_cluster, self.cluster[used], columns[used])
        chunks = range(0, len(self.multiplicity), CHUNK)
        return np.concatenate([self.multiplicity[i : i + CHUNK].astype(np.float64) @ by_cluster for i in chunks])

    def ratio(
        self, top: Float[np.ndarray, " case"], bottom: Float[np.ndarray, " case"], where: Mask | None = None
    ) -> Float[np.ndarray, " draw"]:
        """The sum of ``top`` over the sum of ``bottom``."""
        sums = self.sums(np.stack([top, bottom], axis=1).astype(float), where)
        return ratio(sums[:, 0], sums[:, 1])

    def mean(self, values: Float[np.ndarray, " case"], where: Mask | None = None) -> Float[np.ndarray, " draw"]:
        """The mean of ``values``."""
        return self.ratio(values, np.ones(len(values)), where)

    def gap(self, values: Float[np.ndarray, " case"], ones: Mask, others: Mask) -> Float[np.ndarray, " draw"]:
        """The mean of ``ones`` less that of ``others``."""
        kept = np.where(ones | others, values, 0.0)
        sums = self.sums(np.stack([kept * ones, ones, kept * others, others], axis=1).astype(float))
        return ratio(sums[:, 0], sums[:, 1]) - ratio(sums[:, 2], sums[:, 3])

    def auroc(
        self, score: Float[np.ndarray, " case"], positive: Mask, where: Mask | None = None
    ) -> Float[np.ndarray, " draw"]:
        """The chance that a positive case scores above a negative one, ties counting half; NaN where a class is absent.

        Scores are sorted once: a sample only changes the weights, so a positive case's wins are the cumulated weight of
        the negatives below it.

        Raises:
            ValueError: a score is NaN.
        """
        used = np.ones(len(score), dtype=bool) if where is None else where
        if np.isnan(score[used]).any():
            raise ValueError("a score is NaN; leave out the cases without a score")
        above, below = used & positive, used & ~positive
        ascending = np.argsort(score[below], kind="stable")
        ranked, cluster = score[below][ascending], self.cluster[below][ascending]
        first = np.searchsorted(ranked, score[above], side="left")
        last = np.searchsorted(ranked, score[above], side="right")
        result = np.full(len(self.multiplicity), np.nan)
        for start in range(0, len(self.multiplicity), CHUNK):
            chunk = self.multiplicity[start : start + CHUNK]
            positives = chunk[:, self.cluster[above]].astype(np.float64)
            below = cumulated(chunk[:, cluster])
            wins = np.einsum("dp,dp->d", positives, below[:, first] + below[:, last]) / 2
            pairs = positives.sum(axis=1) * below[:, -1]
            np.divide(wins, pairs, out=result[start : start + CHUNK], where=pairs > 0)
        return result


def ratio(part: np.ndarray | float, whole: np.ndarray | float) -> np.ndarray:
    """``part / whole``, NaN where ``whole`` is 0."""
    part, whole = np.asarray(part, dtype=float), np.asarray(whole, dtype=float)
    return np.divide(part, whole, out=np.full_like(whole, np.nan), where=whole != 0)


def percentile_interval(
    draws: Float[np.ndarray, " draw"], *, clusters: int | None = None, confidence: float = CONFIDENCE
) -> Interval | None:
    """The central ``confidence`` of the bootstrap draws.

    None where the quantity exists in fewer than half of them, or its cases come from fewer than ``FEWEST`` ``clusters``
    (on the smaller side, if it compares two).
    """
    defined = _defined(draws)
    if defined is None or (clusters is not None and clusters < FEWEST):
        return None
    low, high = np.quantile(defined, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(float(low), float(high))


def standard_error(draws: Float[np.ndarray, " draw"], clusters: int) -> float | None:
    """The standard error of a quantity of ``clusters`` clusters; None as in ``percentile_interval``.

    The standard deviation of its draws times √(G / (G − 1)), for a sample of G clusters varies too little by that much.
    """
    defined = _defined(draws)
    if defined is None or clusters < FEWEST:
        return None
    return float(defined.std()) * math.sqrt(clusters / (clusters - 1))


def student_interval(
    value: float, error: float | None, clusters: int, *, confidence: float = CONFIDENCE
) -> Interval | None:
    """``value`` ± t · ``error``, t with ``clusters`` − 1 degrees of freedom; None without a standard error."""
    if error is None:
        return None
    reach = student_quantile(clusters, confidence=confidence) * error
    return Interval(value - reach, value + reach)


def student_quantile(clusters: int, *, confidence: float = CONFIDENCE) -> float:
    """The two-sided quantile of Student's t with ``clusters`` − 1 degrees of freedom."""
    return float(stdtrit(clusters - 1, (1 + confidence) / 2))


def _defined(draws: Float[np.ndarray, " draw"]) -> Float[np.ndarray, " defined"] | None:
    """The draws in which the quantity exists; None where these are fewer than half."""
    defined = draws[~np.isnan(draws)]
    return None if len(draws) == 0 or 2 * len(defined) < len(draws) else defined


def auroc(score: Float[np.ndarray, " case"], positive: Bool[np.ndarray, " case"]) -> float | None:
    """Chance that a positive case scores above a negative one, ties counting half; None where a class is empty.

    Raises:
        ValueError: a score is NaN.
    """
    value = float(ClusterBootstrap.once(np.arange(len(score))).auroc(score, positive)[0])
    return None if math.isnan(value) else value


def cumulated(weights: UInt8[np.ndarray, "draw case"]) -> Float[np.ndarray, "draw case+1"]:
    """The weight of the first 0, 1, 2, … cases of each draw."""
    result = np.zeros((len(weights), weights.shape[1] + 1))
    np.cumsum(weights, axis=1, dtype=np.float64, out=result[:, 1:])
    return result


def _draw(clusters: int, *, draws: int, seed: int) -> UInt8[np.ndarray, "draw cluster"]:
    """How often each of ``clusters`` clusters occurs in each bootstrap sample of as many clusters, with replacement."""
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
