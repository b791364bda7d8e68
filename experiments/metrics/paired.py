"""Two arms on the cases that both answered: the change of a quantity, flips with McNemar's test, and the cases needed.

Yes/no and refusal benchmarks both compare their arms by these (``docs/metrics.md``). Pure.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from experiments.metrics.bootstrap import percentile_interval
from experiments.metrics.tests import cases_needed, holm, mcnemar

FIVE_POINTS = 0.05  # the width of interval from which on more cases are asked for, and the change they are to show

Change = dict[str, float | int | None]
Mask = Bool[np.ndarray, "case"]


def change(before: float | None, after: float | None, draws: Float[np.ndarray, "draw"], n: int) -> Change | None:
    """``after`` − ``before`` on ``n`` cases, with the interval of its bootstrap draws; None where either is missing."""
    if before is None or after is None:
        return None
    low, high = percentile_interval(draws) or (None, None)
    return {"value": after - before, "low": low, "high": high, "from": before, "to": after, "n": n}


def flip_tables(before: Mask, after: Mask, mask: Mask, subset: np.ndarray, subsets: Sequence[str]) -> dict[str, Any]:
    """McNemar's table of right answers before and after, over the cases of ``mask`` and by subset."""

    def table(where: Mask) -> dict[str, Any]:
        return mcnemar(before[where], after[where])._asdict()

    return {**table(mask), "by_subset": {name: table(mask & (subset == name)) for name in subsets}}


def adjust_for_arms(comparisons: Iterable[Mapping[str, Any]], subsets: Sequence[str]) -> None:
    """Adds ``p_holm`` to the ``flip_tables`` under ``mcnemar`` of each comparison: Holm's correction across arms.

    The tables over all cases are one family of tests, those of each subset another.
    """
    tables = [comparison["mcnemar"] for comparison in comparisons]
    for family in (tables, *([table["by_subset"][subset] for table in tables] for subset in subsets)):
        for table, adjusted in zip(family, holm([table["p"] for table in family]), strict=True):
            table["p_holm"] = adjusted


def needed_for_five_points(found: Mapping[str, Any] | None, draws: Float[np.ndarray, "draw"]) -> int | None:
    """How many cases a change of 5 points would need, where the interval of ``found`` is wider than that; else None."""
    if found is None or found["low"] is None or found["high"] - found["low"] <= FIVE_POINTS:
        return None
    return cases_needed(float(np.nanstd(draws)), found["n"], effect=FIVE_POINTS)
