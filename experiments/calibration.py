"""Where ``calibrated_shift`` gets its constant: the development split, or the other folds of the test cases."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mitigation.shift import CalibratedShift, ConstantShift

FOLDS = 5


def fold_of(cluster: str) -> int:
    """The fold of a case, by hash of its cluster, so that equal images never stand on both sides."""
    return int(hashlib.sha256(cluster.encode()).hexdigest(), 16) % FOLDS


def fitted(method: CalibratedShift, baseline: Sequence[Mapping[str, Any]]) -> ConstantShift:
    """The shift that serves the scored baseline records best; controls and failed cases do not count.

    Where one class is missing (a very small ``limit``) nothing can be fitted, and the shift is 0.
    """
    usable = [record for record in baseline if record["subset"] != "control" and record["margin"] is not None]
    margins = np.array([record["margin"] for record in usable], dtype=float)
    safe = np.array([record["gold"] == "yes" for record in usable], dtype=bool)
    if safe.all() or not safe.any():
        return ConstantShift(0.0)
    return method.fit(margins, safe)


def cross_fitted(method: CalibratedShift, baseline: Sequence[Mapping[str, Any]]) -> dict[int | None, ConstantShift]:
    """One shift a fold, each fitted on the records of the other folds."""
    return {
        fold: fitted(method, [record for record in baseline if fold_of(record["cluster"]) != fold])
        for fold in range(FOLDS)
    }
