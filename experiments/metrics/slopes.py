"""Ratios of sums over units (slopes, shares), with simultaneous intervals by the studentised cluster bootstrap.

What carries a difference is a slope Σ moved·gap / Σ gap² or a share Σ moved / Σ gap, of many parts at once: sums over
units (templates) in both. Each draw of units gives every ratio θ* and its own standard error, and the largest
|θ* − θ| / error* of all ratios is what the intervals are widened by, so that all of them hold at once with 95%. Without
the draw's own error a few loud units, whose effects differ, make the intervals far too short (``docs/metrics.md``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.stats import nct

from experiments.metrics.bootstrap import CONFIDENCE, FEWEST, ClusterBootstrap, ratio
from experiments.metrics.claims import HIGHER, LOWER, claim_of

DRAWS = 2000
SPLITS, HOLDS = 10, 8  # splits into halves by chance, and in how many of them a part must hold to be claimed
SIDES = {HIGHER: 1, LOWER: -1}
FAR = 30.0  # standard errors from 0, beyond which scipy cannot follow; nothing is missed there


@dataclass(frozen=True)
class Ratios:
    """Ratios of sums, a value each, and their simultaneous intervals; these are missing below ``FEWEST`` units.

    ``reach`` is by how many standard errors an interval reaches to either side; infinite where the units are too few
    for one that holds.
    """

    value: Float[np.ndarray, " ratio"]
    error: Float[np.ndarray, " ratio"]
    reach: float
    units: int

    @property
    def entries(self) -> list[dict[str, float | int | None]]:
        """Each ratio as ``experiments.metrics.claims.claim_of`` reads it: value, low, high, clusters (the units)."""
        known = self.units >= FEWEST and np.isfinite(self.reach)
        return [
            {
                "value": float(value),
                "low": float(value - self.reach * error) if known else None,
                "high": float(value + self.reach * error) if known else None,
                "clusters": self.units,
            }
            for value, error in zip(self.value, self.error, strict=True)
        ]

    def power(self, effect: float) -> Float[np.ndarray, " ratio"]:
        """The chance that the interval of a ratio that is ``effect``, with this error, excludes 0; NaN without one."""
        if self.units < FEWEST or not np.isfinite(self.reach):
            return np.full(len(self.value), np.nan)
        away = np.minimum(effect / np.maximum(self.error, 1e-12), FAR)
        return np.asarray(nct.sf(self.reach, self.units - 1, away))


def ratios(
    top: Float[np.ndarray, "unit ratio"],
    bottom: Float[np.ndarray, " unit"],
    *,
    seed: int,
    draws: int = DRAWS,
    confidence: float = CONFIDENCE,
) -> Ratios:
    """Σ ``top`` / Σ ``bottom`` over units, with intervals that hold for all ratios at once.

    Raises:
        ValueError: no unit, or fewer than one draw.
    """
    top, bottom = np.asarray(top, dtype=float), np.asarray(bottom, dtype=float)
    units = len(bottom)
    value = ratio(top.sum(0), np.full(top.shape[1], bottom.sum()))
    rest = top - bottom[:, None] * value
    spread = units / (units - 1) if units > 1 else np.inf
    error = np.sqrt(spread * (rest**2).sum(0)) / abs(bottom.sum()) if units > 1 else np.full(top.shape[1], np.inf)
    picked = ClusterBootstrap.of(np.arange(units), draws=draws, seed=seed).multiplicity.astype(float)
    whole = picked @ bottom
    with np.errstate(divide="ignore", invalid="ignore"):
        off = (picked @ rest) / whole[:, None]
        crossed, squared = picked @ (rest * bottom[:, None]), (picked @ bottom**2)[:, None]
        squares = picked @ rest**2 - 2 * off * crossed + off**2 * squared
        own = np.sqrt(spread * np.maximum(squares, 0)) / np.abs(whole)[:, None]
        away = np.abs(off) / own
    away[np.abs(off) <= 1e-12] = 0.0  # what has no spread at all (an inert part) is nowhere off
    largest = np.nan_to_num(away, nan=np.inf).max(axis=1, initial=0.0)
    reach = float(np.quantile(largest, confidence, method="higher"))
    return Ratios(value, error, reach, units)


class Split(NamedTuple):
    """What one split of the units names: the ``candidates``, and of each ratio 1 or −1 where it held, else 0."""

    candidates: Int[np.ndarray, " candidate"]
    held: Int[np.ndarray, " ratio"]


def strongest(
    top: Float[np.ndarray, "unit ratio"], bottom: Float[np.ndarray, " unit"], candidates: int
) -> Int[np.ndarray, " candidate"]:
    """The places of the ratios furthest from 0, first the furthest."""
    return np.argsort(-abs(top.sum(0) / bottom.sum()), kind="stable")[:candidates]


def split_claims(
    chosen: Sequence[Int[np.ndarray, " candidate"]],
    top: Float[np.ndarray, "unit ratio"],
    bottom: Float[np.ndarray, " unit"],
    confirm: Sequence[Bool[np.ndarray, " unit"]],
    *,
    seed: int,
    draws: int = DRAWS,
) -> list[Split]:
    """For each split the ``chosen`` ratios, and which of them the units ``confirm`` show to differ from 0, all at once.

    A claim takes ``HOLDS`` of ``SPLITS`` splits in one direction (``holding``): one split alone is luck.
    """
    found = []
    for best, where in zip(chosen, confirm, strict=True):
        held = np.zeros(top.shape[1], dtype=int)
        entries = ratios(top[where][:, best], bottom[where], seed=seed, draws=draws).entries
        held[best] = [SIDES.get(claim_of(entry, small=None), 0) for entry in entries]
        found.append(Split(best, held))
    return found


def holding(splits: Sequence[Split]) -> tuple[Int[np.ndarray, " ratio"], Int[np.ndarray, " ratio"]]:
    """In how many splits each ratio held above 0, and below."""
    held = np.array([split.held for split in splits])
    return (held > 0).sum(0), (held < 0).sum(0)


def unit_sums(values: Float[np.ndarray, "row ..."], unit: Int[np.ndarray, " row"]) -> np.ndarray:
    """The sums of the rows of each unit, codes from 0."""
    found = np.zeros((int(unit.max()) + 1, *values.shape[1:]))
    np.add.at(found, unit, values)
    return found
