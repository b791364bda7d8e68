"""Numbers with intervals, of cases that come in clusters. Pure: arrays in, plain entries out; knows no models or files.

An *entry* is ``{"value", "low", "high", "n", "clusters"}``: n cases in so many clusters, and the central 95% of the
bootstrap over clusters, None where it cannot be given. Every entry of one ``Resampling`` uses the same draws, so that
two of them can be compared case by case.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from experiments.metrics.bootstrap import auroc, draw_clusters, percentile_interval, resampled_auroc, resampled_sums

Entry = dict[str, Any]


@dataclass(frozen=True)
class Resampling:
    """Draws of clusters, for cases ``cluster`` (codes from 0)."""

    cluster: Int[np.ndarray, "case"]
    multiplicity: np.ndarray  # draw × cluster

    @classmethod
    def of(cls, clusters: Sequence[Any] | np.ndarray, *, draws: int, seed: int) -> "Resampling":
        """Of the cases' clusters by name."""
        names, codes = np.unique(np.asarray(clusters), return_inverse=True)
        return cls(codes, draw_clusters(len(names), draws=draws, seed=seed))

    def mean(self, values: Float[np.ndarray, "case"], where: Bool[np.ndarray, "case"] | None = None) -> Entry:
        """The mean; cases whose value is NaN are left out."""
        return self.ratio(values, np.ones(len(values)), where)

    def ratio(
        self,
        top: Float[np.ndarray, "case"],
        bottom: Float[np.ndarray, "case"],
        where: Bool[np.ndarray, "case"] | None = None,
    ) -> Entry:
        """The sum of ``top`` over the sum of ``bottom``."""
        used = self._used([top, bottom], where)
        if not used.any() or not bottom[used].sum():
            return self._entry(None, None, used)
        columns = np.stack([top, bottom], axis=1)[used]
        sums = resampled_sums(self.multiplicity, self.cluster[used], columns)
        draws = np.divide(sums[:, 0], sums[:, 1], out=np.full(len(sums), np.nan), where=sums[:, 1] != 0)
        return self._entry(float(top[used].sum() / bottom[used].sum()), draws, used)

    def gap(
        self, values: Float[np.ndarray, "case"], ones: Bool[np.ndarray, "case"], others: Bool[np.ndarray, "case"]
    ) -> Entry:
        """The mean of ``ones`` less that of ``others``."""
        used = self._used([values], ones | others)
        a, b = ones & used, others & used
        if not a.any() or not b.any():
            return self._entry(None, None, used)
        kept = np.where(used, values, 0.0)
        columns = np.stack([kept * a, a, kept * b, b], axis=1).astype(float)
        sums = resampled_sums(self.multiplicity, self.cluster, columns)
        with np.errstate(divide="ignore", invalid="ignore"):
            draws = sums[:, 0] / sums[:, 1] - sums[:, 2] / sums[:, 3]
        draws[~np.isfinite(draws)] = np.nan
        return self._entry(float(values[a].mean() - values[b].mean()), draws, used)

    def auroc(
        self,
        score: Float[np.ndarray, "case"],
        positive: Bool[np.ndarray, "case"],
        where: Bool[np.ndarray, "case"] | None = None,
        *,
        less: Float[np.ndarray, "case"] | None = None,
    ) -> Entry:
        """Chance that a positive case scores above another, ties counting half; with ``less``, minus that score's."""
        used = self._used([score] if less is None else [score, less], where)
        if len(set(positive[used].tolist())) < 2:
            return self._entry(None, None, used)
        value, draws = self._area(score, positive, used)
        if less is not None:
            before, drawn = self._area(less, positive, used)
            value, draws = value - before, draws - drawn
        return self._entry(value, draws, used)

    def _area(self, score: np.ndarray, positive: np.ndarray, used: np.ndarray) -> tuple[float, np.ndarray]:
        value = auroc(score[used], positive[used])
        assert value is not None
        return value, resampled_auroc(self.multiplicity, self.cluster[used], score[used], positive[used])

    def _used(self, columns: Sequence[np.ndarray], where: np.ndarray | None) -> np.ndarray:
        used = np.ones(len(self.cluster), dtype=bool) if where is None else where.copy()
        for column in columns:
            used &= np.isfinite(column)
        return used

    def _entry(self, value: float | None, draws: np.ndarray | None, used: np.ndarray) -> Entry:
        clusters = len(np.unique(self.cluster[used]))
        ends = None if draws is None or clusters < 2 else percentile_interval(draws)
        low, high = ends if ends is not None else (None, None)
        return {"value": value, "low": low, "high": high, "n": int(used.sum()), "clusters": clusters}


def side(entry: Entry, of: float = 0.0) -> int:
    """1 where the whole interval lies above ``of``, −1 where below, 0 where it holds it or there is none."""
    if entry["low"] is None or entry["high"] is None:
        return 0
    return int(entry["low"] > of) - int(entry["high"] < of)


def onward(sides: Sequence[int], wanted: int) -> int | None:
    """The first index from which on, to the last, all ``sides`` are ``wanted``; None where the last is not."""
    first = None
    for index in reversed(range(len(sides))):
        if sides[index] != wanted:
            break
        first = index
    return first
