"""Estimates with intervals, of cases that come in clusters: arrays in, plain entries out.

An *entry* is ``{"value", "low", "high", "n", "clusters"}``: over n cases in so many clusters, with the central 95% of
the cluster bootstrap, None where it cannot be given. All entries of one ``Estimator`` use the same draws, which makes
their differences paired.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from experiments.metrics.bootstrap import ClusterBootstrap, auroc, percentile_interval

Entry = dict[str, Any]
Values = Float[np.ndarray, "case"]
Mask = Bool[np.ndarray, "case"]


@dataclass(frozen=True)
class Estimator:
    """Entries from one cluster bootstrap; a case whose value is NaN is left out of an entry."""

    bootstrap: ClusterBootstrap

    @classmethod
    def of(cls, clusters: Sequence[Any] | np.ndarray, *, draws: int, seed: int) -> "Estimator":
        """From the cases' clusters by name."""
        return cls(ClusterBootstrap.of_names(clusters, draws=draws, seed=seed))

    @property
    def cases(self) -> int:
        """The number of cases, which every array must have."""
        return len(self.bootstrap.cluster)

    def mean(self, values: Values, where: Mask | None = None) -> Entry:
        """The mean."""
        return self.ratio(values, np.ones(len(values)), where)

    def ratio(self, top: Values, bottom: Values, where: Mask | None = None) -> Entry:
        """The sum of ``top`` over the sum of ``bottom``."""
        used = self._used([top, bottom], where)
        if not used.any() or not bottom[used].sum():
            return self._entry(None, None, used)
        value = float(top[used].sum() / bottom[used].sum())
        return self._entry(value, self.bootstrap.ratio(top, bottom, used), used)

    def gap(self, values: Values, ones: Mask, others: Mask) -> Entry:
        """The mean of ``ones`` minus that of ``others``."""
        used = self._used([values], ones | others)
        a, b = ones & used, others & used
        if not a.any() or not b.any():
            return self._entry(None, None, used)
        return self._entry(float(values[a].mean() - values[b].mean()), self.bootstrap.gap(values, a, b), used)

    def auroc(self, score: Values, positive: Mask, *, less: Values | None = None) -> Entry:
        """Chance that a positive case scores above another, ties counting half; with ``less``, minus that score's."""
        used = self._used([score] if less is None else [score, less], None)
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
        return value, self.bootstrap.auroc(score, positive, used)

    def _used(self, columns: Sequence[np.ndarray], where: np.ndarray | None) -> np.ndarray:
        used = np.ones(self.cases, dtype=bool) if where is None else where.copy()
        for column in columns:
            used &= np.isfinite(column)
        return used

    def _entry(self, value: float | None, draws: np.ndarray | None, used: np.ndarray) -> Entry:
        clusters = self.bootstrap.clusters(used)
        ends = None if draws is None or clusters < 2 else percentile_interval(draws)
        low, high = ends if ends is not None else (None, None)
        return {"value": value, "low": low, "high": high, "n": int(used.sum()), "clusters": clusters}


def first_lasting(sides: Sequence[int], wanted: int) -> int | None:
    """The first index from which on, to the last, all ``sides`` are ``wanted``; None where the last is not."""
    first = None
    for index in reversed(range(len(sides))):
        if sides[index] != wanted:
            break
        first = index
    return first
