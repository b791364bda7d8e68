"""Ratios of sums over units, Σ top / Σ bottom, with simultaneous intervals.

The intervals come from the studentised cluster bootstrap. Each draw of units gives every ratio θ* and its standard
error. The largest |θ* − θ| / error* of all ratios widens the intervals, so that all of them hold at once with 95%.
"""

from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.stats import nct

from experiments.metrics.bootstrap import CONFIDENCE, FEWEST, ClusterBootstrap, ratio

DRAWS = 2000
FIFTH = 0.2  # the ratio whose power is given
FAR = 30.0  # standard errors from 0 beyond which scipy cannot follow; the power there is 1


def ratios(
    top: Float[np.ndarray, "unit ratio"], bottom: Float[np.ndarray, " unit"], *, seed: int, draws: int = DRAWS
) -> list[dict[str, Any]]:
    """Return Σ ``top`` / Σ ``bottom`` over two or more units, with intervals that hold for all ratios at once.

    Returns:
        For each ratio ``value``, ``low``, ``high``, ``clusters`` (the units) and ``power``, the chance that the
        interval of a ratio of ``FIFTH`` with the same error excludes 0. With fewer than ``FEWEST`` units, or if no
        finite interval holds, there are no intervals and no power.
    """
    top, bottom = np.asarray(top, dtype=float), np.asarray(bottom, dtype=float)
    units = len(bottom)
    value = ratio(top.sum(0), np.full(top.shape[1], bottom.sum()))
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
    if units < FEWEST or not np.isfinite(reach):
        return [{"value": float(v), "low": None, "high": None, "clusters": units, "power": None} for v in value]
    power = nct.sf(reach, units - 1, np.minimum(FIFTH / np.maximum(error, 1e-12), FAR))
    columns = np.stack([value, value - reach * error, value + reach * error, power]).T.tolist()
    return [dict(zip(("value", "low", "high", "power"), line, strict=True), clusters=units) for line in columns]
