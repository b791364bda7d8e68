"""Estimates with intervals, of cases that come in clusters and may be made from templates: arrays in, entries out.

An *entry* is ``{"value", "low", "high", "n", "clusters"}``: over n cases in so many clusters (of the smaller side, if
it compares two groups of cases), with a 95% interval, None where it cannot be given. Levels have the central 95% of the
cluster bootstrap; differences and effects have Student's interval and ``statement``, what may be said of them
(``metrics.findings.statement``). Where cases are made from templates, differences carry ``by_template`` as well, the
interval over templates and things shown; of both the wider decides (``docs/metrics.md``, "Uncertainty"). All entries of
one ``Resamples`` use the same draws, which makes their differences paired.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int
from scipy.stats import rankdata

from experiments.metrics.bootstrap import FEWEST, ClusterBootstrap, auroc, percentile_interval
from experiments.metrics.findings import SMALL, statement
from experiments.metrics.paired import Difference, Spread, change, two_way
from interp.tools.held_out import FEWEST_CASES, FEWEST_GROUPS

CLUSTER, TEMPLATE = "cluster", "template"
FACTORS = (TEMPLATE, "concept")  # tags of cases that are made from templates

Entry = dict[str, Any]
Values = Float[np.ndarray, "case"]
Mask = Bool[np.ndarray, "case"]
Codes = Int[np.ndarray, "case"]
Draws = Float[np.ndarray, "draw"]
ByScheme = Mapping[str, Draws]  # "cluster" and, where cases are made from templates, "template" and "concept"


def factors(tags: Sequence[Mapping[str, Any]]) -> dict[str, Codes]:
    """Codes of the template and of the concept of each case, from its tags; empty where a case has none."""
    if any(of.get(name) is None for of in tags for name in FACTORS):
        return {}
    return {name: pd.factorize(np.array([str(of[name]) for of in tags]))[0] for name in FACTORS}


@dataclass(frozen=True, eq=False)
class Resamples:
    """The bootstrap samples of a set of cases, by what is resampled (``schemes``), the same for every arm.

    Clusters are resampled; where cases are made from templates, also templates and concepts. A case whose value is NaN
    is left out of an entry.
    """

    schemes: Mapping[str, ClusterBootstrap]

    @classmethod
    def of(
        cls, cluster: Codes, factors: Mapping[str, Codes] = MappingProxyType({}), *, draws: int, seed: int
    ) -> "Resamples":
        """From the codes of each case's cluster, and of its template and concept (``factors``) where it has them."""
        codes = {CLUSTER: cluster, **factors}
        return cls({name: ClusterBootstrap.of(code, draws=draws, seed=seed) for name, code in codes.items()})

    @classmethod
    def of_names(
        cls,
        clusters: Sequence[Any] | np.ndarray,
        *,
        draws: int,
        seed: int,
        factors: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> "Resamples":
        """From the names of the cases' clusters and, where cases are made from them, of templates and things shown."""
        cluster, *others = (np.unique(np.asarray(one), return_inverse=True)[1] for one in (clusters, *(factors or ())))
        return cls.of(cluster, dict(zip(FACTORS, others, strict=False)), draws=draws, seed=seed)

    @property
    def bootstrap(self) -> ClusterBootstrap:
        """The samples of clusters."""
        return self.schemes[CLUSTER]

    @property
    def cases(self) -> int:
        """The number of cases, which every array must have."""
        return len(self.bootstrap.cluster)

    def clusters(self, sides: Sequence[Mask | None], scheme: str = CLUSTER) -> int:
        """The number of clusters (templates, concepts) on the side that has the fewest."""
        return min(self.schemes[scheme].clusters(side) for side in sides)

    def drawn(self, quantity: Callable[[ClusterBootstrap], Draws]) -> dict[str, Draws]:
        """``quantity`` in every sample, by scheme."""
        return {name: quantity(some) for name, some in self.schemes.items()}

    def spread(
        self, draws: ByScheme, sides: Sequence[Mask | None], *, floor: float = 0.0
    ) -> tuple[Spread, Spread | None]:
        """The spread of a difference over clusters and, where cases are made from templates, over both factors.

        Args:
            draws: of the difference.
            sides: the groups of cases that it compares or averages; None is all cases.
            floor: a variance that is added (``paired.rate_floor``).
        """
        over = {name: Spread.of(some, self.clusters(sides, name), floor=floor) for name, some in draws.items()}
        template, concept = (over.get(name) for name in FACTORS)
        if template is None or concept is None:
            return over[CLUSTER], template
        return over[CLUSTER], two_way(template, concept, over[CLUSTER])

    def difference(
        self,
        before: float | None,
        after: float | None,
        draws: ByScheme,
        sides: Sequence[Mask | None],
        n: int,
        *,
        floor: float = 0.0,
        small: float | None = SMALL,
        equal: bool = False,
    ) -> Difference:
        """``after`` − ``before`` on ``n`` cases, from its draws; ``sides`` and ``floor`` as in ``spread``.

        ``small`` and ``equal`` as in ``paired.change``.
        """
        spread, by_template = self.spread(draws, sides, floor=floor)
        entry = change(before, after, spread, n, by_template=by_template, small=small, equal=equal)
        return Difference(entry, spread, by_template, draws[CLUSTER])

    def mean(self, values: Values, where: Mask | None = None) -> Entry:
        """The mean, as a level."""
        return self.ratio(values, np.ones(len(values)), where)

    def ratio(self, top: Values, bottom: Values, where: Mask | None = None) -> Entry:
        """The sum of ``top`` over the sum of ``bottom``, as a level."""
        used = self._used(top, bottom, where=where)
        if not used.any() or not bottom[used].sum():
            return self._level(None, None, used)
        value = float(top[used].sum() / bottom[used].sum())
        return self._level(value, self.bootstrap.ratio(top, bottom, used), used)

    def balanced_accuracy(self, guess: Int[np.ndarray, " known"], truth: np.ndarray, known: Mask) -> Entry:
        """The mean over classes of the share guessed right, as a level.

        ``truth`` and ``guess`` (the place of its class among the sorted ones, −1 for none) are of the ``known`` cases.
        """
        _, codes, counts = np.unique(truth, return_inverse=True, return_counts=True)
        right, weight = np.full((2, self.cases), np.nan)
        weight[known] = 1 / (len(counts) * counts[codes])
        right[known] = np.where(guess >= 0, (guess == codes) * weight[known], np.nan)
        return self.ratio(right, weight)

    def auroc(self, score: Values, positive: Mask) -> Entry:
        """Chance that a positive case scores above another, ties counting half, as a level."""
        used = self._used(score)
        value = auroc(score[used], positive[used])
        draws = None if value is None else self.bootstrap.auroc(score, positive, used)
        return self._level(value, draws, used & positive, used & ~positive)

    def effect(self, values: Values, where: Mask | None = None) -> Entry:
        """The mean of what an intervention does to each case, as a difference; no size of it is agreed to be small."""
        used = self._used(values, where=where)
        value = float(values[used].mean()) if used.any() else None
        return self._said(value, lambda resampled: resampled.mean(values, used), used, small=None)

    def gap(self, values: Values, ones: Mask, others: Mask, *, small: float | None = None, floor: float = 0.0) -> Entry:
        """The mean of ``ones`` minus that of ``others``; ``floor`` is a variance that is added."""
        used = self._used(values, where=ones | others)
        a, b = ones & used, others & used
        value = float(values[a].mean() - values[b].mean()) if a.any() and b.any() else None
        return self._said(value, lambda some: some.gap(values, a, b), a, b, small=small, floor=floor)

    def further(self, values: Values, than: Values) -> Entry:
        """The mean of ``values`` minus that of ``than``, each over its own cases; no size is agreed to be small."""
        a, b = self._used(values), self._used(than)
        value = float(values[a].mean() - than[b].mean()) if a.any() and b.any() else None
        return self._said(value, lambda some: some.mean(values, a) - some.mean(than, b), a, b, small=None)

    def auroc_change(self, before: Values, after: Values, positive: Mask) -> Entry:
        """The AUROC of ``after`` minus that of ``before``, on the cases that have both."""
        used = self._used(before, after)
        now, then = (auroc(score[used], positive[used]) for score in (after, before))
        value = None if now is None or then is None else now - then
        return self._said(
            value,
            lambda some: some.auroc(after, positive, used) - some.auroc(before, positive, used),
            used & positive,
            used & ~positive,
            small=SMALL,
            equal=bool(np.array_equal(rankdata(before[used]), rankdata(after[used]))),
        )

    def _used(self, *columns: np.ndarray, where: np.ndarray | None = None) -> np.ndarray:
        finite = np.logical_and.reduce([np.isfinite(column) for column in columns])
        return finite if where is None else finite & where

    def _level(self, value: float | None, draws: np.ndarray | None, *sides: np.ndarray) -> Entry:
        clusters = self.clusters(sides)
        low, high = (None if draws is None else percentile_interval(draws, clusters=clusters)) or (None, None)
        n = int(np.logical_or.reduce(sides).sum())
        return {"value": value, "low": low, "high": high, "n": n, "clusters": clusters}

    def _said(
        self,
        value: float | None,
        quantity: Callable[[ClusterBootstrap], Draws],
        *sides: np.ndarray,
        small: float | None,
        floor: float = 0.0,
        equal: bool = False,
    ) -> Entry:
        """A difference as an entry, with what may be said of it; ``equal`` is one that is 0 by construction."""
        entry = self._level(value, None, *sides)
        if equal and value is not None and entry["clusters"] >= FEWEST:
            entry |= {"low": 0.0, "high": 0.0}
        elif value is not None:
            spread, by_template = self.spread(self.drawn(quantity), sides, floor=floor)
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
