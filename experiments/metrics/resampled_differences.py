"""Bootstrap samples of a set of cases, over clusters and over templates, and the differences read from them.

Every quantity that may be said to have risen or fallen gets its interval here, so that none is over clusters alone
where cases are made from templates (``docs/metrics.md``, "Uncertainty").
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from experiments.metrics.bootstrap import ClusterBootstrap
from experiments.metrics.findings import SMALL
from experiments.metrics.paired import Change, Spread, change, two_way, widest

CLUSTER, TEMPLATE = "cluster", "template"
FACTORS = (TEMPLATE, "concept")  # tags of cases that are made from templates

Mask = Bool[np.ndarray, "case"]
Codes = Int[np.ndarray, "case"]
Draws = Float[np.ndarray, "draw"]
ByScheme = Mapping[str, Draws]  # "cluster" and, where cases are made from templates, "template" and "concept"


def factors(tags: Sequence[Mapping[str, Any]]) -> dict[str, Codes]:
    """Codes of the template and of the concept of each case, from its tags; empty where a case has none."""
    if any(of.get(name) is None for of in tags for name in FACTORS):
        return {}
    return {name: pd.factorize(np.array([str(of[name]) for of in tags]))[0] for name in FACTORS}


class Resamples:
    """The bootstrap samples of a set of cases, by what is resampled (``schemes``), the same for every arm.

    Clusters are resampled; where cases are made from templates, also templates and concepts.
    """

    def __init__(
        self, cluster: Codes, factors: Mapping[str, Codes] = MappingProxyType({}), *, draws: int, seed: int
    ) -> None:
        """From the codes of each case's cluster, and of its template and concept (``factors``) where it has them."""
        self.schemes = {name: ClusterBootstrap.of(code, draws=draws, seed=seed)
                        for name, code in {CLUSTER: cluster, **factors}.items()}  # fmt: skip

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
        if len(over) == 1:
            return over[CLUSTER], None
        template, concept = (over[name] for name in FACTORS)
        return over[CLUSTER], two_way(template, concept, over[CLUSTER])


@dataclass(frozen=True, eq=False)
class Difference:
    """One arm minus another, on the cases of ``mask``, which both answered."""

    mask: Mask
    delta: dict[str, Change | None]  # by quantity, None where it does not exist in both
    spread: dict[str, Spread]  # over clusters
    by_template: dict[str, Spread]  # over templates and concepts; empty where cases are not made from templates
    draws: dict[str, Draws]  # over clusters

    def widest(self, quantity: str) -> Spread:
        """The spread of ``quantity`` that gives the wider interval."""
        return widest(self.spread[quantity], self.by_template.get(quantity))

    @classmethod
    def of(
        cls,
        mask: Mask,
        before: Mapping[str, float | None],
        after: Mapping[str, float | None],
        spreads: Mapping[str, tuple[Spread, Spread | None]],
        n: Mapping[str, int],
        draws: dict[str, Draws],
        *,
        unsized: Collection[str],
        equal: Collection[str] = (),
    ) -> "Difference":
        """From the values of both arms, and of each quantity its spreads, cases (or pairs) and draws.

        Args:
            unsized: quantities of which no change is agreed to be small.
            equal: quantities that are the same in both by construction.
        """
        delta = {
            name: change(before[name], after[name], over, n[name], by_template=by_template, equal=name in equal,
                         small=None if name in unsized else SMALL)
            for name, (over, by_template) in spreads.items()
        }  # fmt: skip
        known = {name: by_template for name, (_, by_template) in spreads.items() if by_template is not None}
        return cls(mask, delta, {name: over for name, (over, _) in spreads.items()}, known, draws)
