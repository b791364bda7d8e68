"""Estimates with intervals, of cases that come in clusters: arrays in, plain entries out.

An *entry* is ``{"value", "low", "high", "n", "clusters"}``: over n cases in so many clusters (of the smaller side, if
it compares two groups of cases), with a 95% interval, None where it cannot be given. Levels have the central 95% of the
cluster bootstrap; differences and effects have Student's interval and ``statement``, what may be said of them
(``metrics.findings.statement``). Where cases are made from templates, differences carry ``by_template`` as well, the
interval over templates and things shown; of both the wider decides. All entries of one ``Estimator`` use the same
draws, which makes their differences paired.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from scipy.stats import rankdata

from experiments.metrics.bootstrap import FEWEST, ClusterBootstrap, auroc, percentile_interval
from experiments.metrics.findings import SMALL, statement
from experiments.metrics.resampled_differences import CLUSTER, FACTORS, Resamples
from interp.tools.lda import FEWEST_CASES, FEWEST_GROUPS

Entry = dict[str, Any]
Values = Float[np.ndarray, "case"]
Mask = Bool[np.ndarray, "case"]
Drawn = Callable[[ClusterBootstrap], Float[np.ndarray, " draw"]]


@dataclass(frozen=True)
class Estimator:
    """Entries from one set of bootstrap samples; a case whose value is NaN is left out of an entry."""

    resamples: Resamples

    @classmethod
    def of(
        cls,
        clusters: Sequence[Any] | np.ndarray,
        *,
        draws: int,
        seed: int,
        factors: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> "Estimator":
        """From the names of the cases' clusters and, where cases are made from them, of templates and things shown."""
        cluster, *others = (np.unique(np.asarray(one), return_inverse=True)[1] for one in (clusters, *(factors or ())))
        codes = dict(zip(FACTORS, others, strict=True)) if others else {}
        return cls(Resamples(cluster, codes, draws=draws, seed=seed))

    @property
    def bootstrap(self) -> ClusterBootstrap:
        """The samples of clusters."""
        return self.resamples.schemes[CLUSTER]

    @property
    def cases(self) -> int:
        """The number of cases, which every array must have."""
        return len(self.bootstrap.cluster)

    def mean(self, values: Values, where: Mask | None = None) -> Entry:
        """The mean, as a level."""
        return self.ratio(values, np.ones(len(values)), where)

    def ratio(self, top: Values, bottom: Values, where: Mask | None = None) -> Entry:
        """The sum of ``top`` over the sum of ``bottom``, as a level."""
        used = self._used([top, bottom], where)
        if not used.any() or not bottom[used].sum():
            return self._level(None, None, used)
        value = float(top[used].sum() / bottom[used].sum())
        return self._level(value, self.bootstrap.ratio(top, bottom, used), used)

    def auroc(self, score: Values, positive: Mask) -> Entry:
        """Chance that a positive case scores above another, ties counting half, as a level."""
        used = self._used([score], None)
        sides = (used & positive, used & ~positive)
        value = auroc(score[used], positive[used])
        draws = None if value is None else self.bootstrap.auroc(score, positive, used)
        return self._level(value, draws, *sides)

    def effect(self, values: Values, where: Mask | None = None) -> Entry:
        """The mean of what an intervention does to each case, as a difference; no size of it is agreed to be small."""
        used = self._used([values], where)
        value = float(values[used].mean()) if used.any() else None
        return self._difference(value, lambda resampled: resampled.mean(values, used), used, small=None)

    def gap(self, values: Values, ones: Mask, others: Mask, *, small: float | None = None, floor: float = 0.0) -> Entry:
        """The mean of ``ones`` minus that of ``others``; ``floor`` is a variance that is added."""
        used = self._used([values], ones | others)
        a, b = ones & used, others & used
        value = float(values[a].mean() - values[b].mean()) if a.any() and b.any() else None
        return self._difference(value, lambda some: some.gap(values, a, b), a, b, small=small, floor=floor)

    def further(self, values: Values, than: Values) -> Entry:
        """The mean of ``values`` minus that of ``than``, each over its own cases; no size is agreed to be small."""
        a, b = self._used([values], None), self._used([than], None)
        value = float(values[a].mean() - than[b].mean()) if a.any() and b.any() else None
        return self._difference(value, lambda some: some.mean(values, a) - some.mean(than, b), a, b, small=None)

    def auroc_change(self, before: Values, after: Values, positive: Mask) -> Entry:
        """The AUROC of ``after`` minus that of ``before``, on the cases that have both."""
        used = self._used([before, after], None)
        now, then = (auroc(score[used], positive[used]) for score in (after, before))
        value = None if now is None or then is None else now - then
        return self._difference(
            value,
            lambda some: some.auroc(after, positive, used) - some.auroc(before, positive, used),
            used & positive,
            used & ~positive,
            small=SMALL,
            equal=bool(np.array_equal(rankdata(before[used]), rankdata(after[used]))),
        )

    def _used(self, columns: Sequence[np.ndarray], where: np.ndarray | None) -> np.ndarray:
        used = np.ones(self.cases, dtype=bool) if where is None else where.copy()
        for column in columns:
            used &= np.isfinite(column)
        return used

    def _level(self, value: float | None, draws: np.ndarray | None, *sides: np.ndarray) -> Entry:
        clusters = min(map(self.bootstrap.clusters, sides))
        low, high = (None if draws is None else percentile_interval(draws, clusters=clusters)) or (None, None)
        n = int(np.logical_or.reduce(sides).sum())
        return {"value": value, "low": low, "high": high, "n": n, "clusters": clusters}

    def _difference(
        self,
        value: float | None,
        drawn: Drawn,
        *sides: np.ndarray,
        small: float | None,
        floor: float = 0.0,
        equal: bool = False,
    ) -> Entry:
        entry = self._level(value, None, *sides)
        if value is not None and equal and entry["clusters"] >= FEWEST:
            # The same order of cases by construction, so that the difference is 0 and not estimated.
            entry |= {"low": 0.0, "high": 0.0}
        elif value is not None:
            spread, by_template = self.resamples.spread(self.resamples.drawn(drawn), sides, floor=floor)
            entry |= spread.ends(value) | ({} if by_template is None else {"by_template": by_template.ends(value)})
        return entry | {"statement": statement(entry, small=small).value}


def shown_often(things: np.ndarray, clusters: np.ndarray) -> Mask:
    """The cases whose thing is shown often enough for a held-out number."""
    enough = [
        name for name in np.unique(things)
        if (things == name).sum() >= FEWEST_CASES and len(set(clusters[things == name].tolist())) >= FEWEST_GROUPS
    ]  # fmt: skip
    return np.isin(things, enough)


def first_lasting(sides: Sequence[int], wanted: int) -> int | None:
    """The first index from which on, to the last, all ``sides`` are ``wanted``; None where the last is not.

    Of tests in this order, from the last to the first, none needs a correction: each is asked only after all behind it
    were passed.
    """
    first = None
    for index in reversed(range(len(sides))):
        if sides[index] != wanted:
            break
        first = index
    return first
