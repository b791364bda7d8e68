"""The two accuracies that a shift of the threshold can reach: every constant added to the baseline's margin.

This is the margin's ROC curve, mirrored. An arm on the curve only shifts the threshold; an arm above it tells safe from
unsafe better.
"""

import numpy as np
from jaxtyping import Bool, Float


def shift_curve(
    margin: Float[np.ndarray, " case"], unsafe: Bool[np.ndarray, " case"], weight: Float[np.ndarray, " case"]
) -> tuple[Float[np.ndarray, " corner"], Float[np.ndarray, " corner"]]:
    """Over-safety accuracies, ascending from 0, and for each the highest unsafe accuracy that a constant shift reaches.

    A case of ``weight`` w counts w times. Cases of equal margin change together.
    """
    order = np.argsort(-margin, kind="stable")
    last = np.append(np.diff(margin[order]) != 0, True)  # of each run of equal margins
    over_safety, lost = (
        np.concatenate([[0.0], np.cumsum(np.where(which, weight, 0.0)[order])[last]])
        / np.where(which, weight, 0.0).sum()
        for which in (~unsafe, unsafe)
    )
    distinct, first = np.unique(over_safety, return_index=True)
    return distinct, 1 - lost[first]
