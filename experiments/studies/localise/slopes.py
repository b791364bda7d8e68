"""Slopes Σ moved·gap / Σ gap²: ratios of sums over units (templates), with simultaneous intervals.

The intervals come from the studentised cluster bootstrap. Each draw of units gives every ratio θ* and its standard
error. The largest |θ* − θ| / error* of all ratios widens the intervals, so that all of them hold at once with 95%. The
draw's error is needed: if units differ in their effects, intervals are far too short without it (``docs/metrics.md``).
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float, Int

from experiments.metrics.claims import HIGHER, LOWER, claim_of
from experiments.metrics.ratios import DRAWS, ratios
from experiments.studies.localise.cases import TERMS

if TYPE_CHECKING:
    from interp.tools.part_effects import SetEffects

HOLDS = 8  # splits (of ``cases.SPLITS``) in which a part must hold to be claimed
SIDES = {HIGHER: 1, LOWER: -1}


def strongest(top: Float[np.ndarray, "unit ratio"], bottom: Float[np.ndarray, " unit"], count: int) -> np.ndarray:
    """Return the places of the ``count`` ratios furthest from 0, the furthest first."""
    return np.argsort(-abs(top.sum(0) / bottom.sum()), kind="stable")[:count]


def split_claims(
    chosen: Sequence[Int[np.ndarray, " candidate"]],
    top: Float[np.ndarray, "unit ratio"],
    bottom: Float[np.ndarray, " unit"],
    confirm: Sequence[Bool[np.ndarray, " unit"]],
    *,
    seed: int,
    draws: int = DRAWS,
) -> Int[np.ndarray, "split ratio"]:
    """Return 1 or −1 for each ``chosen`` ratio that the split's units ``confirm`` show to differ from 0, else 0.

    The intervals of a split hold for its chosen ratios at once. A claim needs ``HOLDS`` splits on one side, since one
    split may be luck.
    """
    held = np.zeros((len(chosen), top.shape[1]), dtype=int)
    for line, best, where in zip(held, chosen, confirm, strict=True):
        entries = ratios(top[where][:, best], bottom[where], seed=seed, draws=draws)
        line[best] = [SIDES.get(claim_of(entry, small=None), 0) for entry in entries]
    return held


def unit_sums(values: Float[np.ndarray, "row ..."], unit: Int[np.ndarray, " row"]) -> np.ndarray:
    """Return the sums of the rows of each unit; ``unit`` has codes from 0."""
    sums = np.zeros((int(unit.max()) + 1, *values.shape[1:]))
    np.add.at(sums, unit, values)
    return sums


def slope_sums(
    question: str, effects: "Mapping[str, SetEffects]", unit: Int[np.ndarray, " row"]
) -> tuple[Float[np.ndarray, "unit set"], Float[np.ndarray, " unit"]]:
    """Return Σ moved·gap of each set of parts and Σ gap², by unit, over the pairs and directions of a question's runs.

    Args:
        question: a key of ``TERMS``.
        effects: by run.
        unit: of each pair, a code from 0.
    """
    moved, gap = (
        np.sum([sign * getattr(effects[run], name).double().numpy() for run, sign in TERMS[question]], axis=0)
        for name in ("moved", "gap")
    )
    return unit_sums((moved * gap[:, None]).sum(0).T, unit), unit_sums((gap**2).sum(0), unit)
