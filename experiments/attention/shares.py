"""Failures against successes: means and their difference with clustered bootstrap intervals. Pure; plain arrays.

Clusters are resampled as a whole, over failures and successes together. That a failure is matched with a success is
not used here: it only makes the two groups alike, and the intervals are a little wider for it.
"""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float

from experiments.stats import draw_clusters, percentile_interval, resampled_sums


class Estimate(NamedTuple):
    """A mean with its 95% interval (None where the draws give none) over ``n`` cases."""

    value: float | None
    low: float | None
    high: float | None
    n: int


class Contrast(NamedTuple):
    """One quantity in failures, in successes, and failures − successes."""

    failures: Estimate
    successes: Estimate
    difference: Estimate


def contrasts(
    values: Float[np.ndarray, "case column"],
    failed: Bool[np.ndarray, "case"],
    cluster: np.ndarray,
    *,
    seed: int,
    draws: int,
) -> list[Contrast]:
    """One contrast a column; a group without cases has no value. ``cluster`` names each case's cluster."""
    assert len(values) == len(failed) == len(cluster) > 0
    codes, names = pd.factorize(pd.Series(cluster))
    multiplicity = draw_clusters(len(names), draws=draws, seed=seed)
    groups = [(mask, _means(values, mask, codes, multiplicity)) for mask in (failed, ~failed)]
    found = []
    for column in range(values.shape[1]):
        (wrong, right) = (
            (float(values[mask, column].mean()) if mask.any() else None, resampled[:, column])
            for mask, resampled in groups
        )
        both = None if wrong[0] is None or right[0] is None else wrong[0] - right[0]
        found.append(
            Contrast(
                _estimate(*wrong, int(failed.sum())),
                _estimate(*right, int((~failed).sum())),
                _estimate(both, wrong[1] - right[1], len(failed)),
            )
        )
    return found


def _means(
    values: Float[np.ndarray, "case column"],
    mask: Bool[np.ndarray, "case"],
    codes: np.ndarray,
    multiplicity: np.ndarray,
) -> Float[np.ndarray, "draw column"]:
    """The group's mean in each bootstrap sample; NaN where a sample has none of the group."""
    own = mask[:, None].astype(float)
    sums = resampled_sums(multiplicity, codes, np.concatenate([values * own, own], axis=1))
    count = sums[:, -1:]
    return np.divide(sums[:, :-1], count, out=np.full_like(sums[:, :-1], np.nan), where=count > 0)


def _estimate(value: float | None, draws: Float[np.ndarray, "draw"], n: int) -> Estimate:
    interval = None if value is None else percentile_interval(draws)
    return Estimate(value, None, None, n) if interval is None else Estimate(value, interval.low, interval.high, n)


def as_json(contrast: Contrast) -> dict[str, Any]:
    """Plain dicts, for attention.json."""
    return {name: estimate._asdict() for name, estimate in contrast._asdict().items()}
