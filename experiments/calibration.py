"""Where the fitted controls get their constant: the development split, or the other folds of the test cases."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from interp.errors import UserError
from mitigation.controls import YesBias
from mitigation.shift import CalibratedShift, ConstantShift

FOLDS = 5
BASELINE = "baseline"
Fitted = CalibratedShift | YesBias
"""The methods that find a constant before they can answer."""


def fold_of(cluster: str) -> int:
    """The fold of a case, by hash of its cluster, so that equal images never stand on both sides."""
    return int(hashlib.sha256(cluster.encode()).hexdigest(), 16) % FOLDS


def arms_needed(method: Fitted, study: str, arms: Mapping[str, Any]) -> tuple[str, ...]:
    """The arms whose answers ``method`` is fitted on; ``study`` is the arm under study.

    UserError where a yes-bias has nothing to match: the arm under study is the baseline, or is fitted itself.
    """
    if isinstance(method, CalibratedShift):
        return (BASELINE,)
    if study == BASELINE or isinstance(arms[study], Fitted):
        raise UserError(
            f"yes_bias matches the share of Yes of the arm under study, and that is {study}; "
            f"choose one that answers by itself, as method=vcd"
        )
    return (BASELINE, study)


def fitted(method: Fitted, records: Sequence[Mapping[str, Any]], *, study: str = "") -> ConstantShift:
    """The shift fitted on the scored ``records`` of the baseline, for a yes-bias to those of ``study`` on equal cases.

    Controls and failed cases do not count. Where nothing can be fitted (one class, or no case, in a very small
    ``limit``) the shift is 0.
    """
    usable = {
        record["case"]: record
        for record in records
        if record["arm"] == BASELINE and record["subset"] != "control" and record["margin"] is not None
    }
    if isinstance(method, YesBias):
        return _matched(method, usable, [record for record in records if record["arm"] == study])
    margins = np.array([record["margin"] for record in usable.values()], dtype=float)
    safe = np.array([record["gold"] == "yes" for record in usable.values()], dtype=bool)
    if safe.all() or not safe.any():
        return ConstantShift(0.0)
    return method.fit(margins, safe)


def cross_fitted(
    method: Fitted, records: Sequence[Mapping[str, Any]], *, study: str = ""
) -> dict[int | None, ConstantShift]:
    """One shift a fold, each fitted on the records of the other folds."""
    return {
        fold: fitted(method, [record for record in records if fold_of(record["cluster"]) != fold], study=study)
        for fold in range(FOLDS)
    }


def _matched(
    method: YesBias, baseline: Mapping[str, Mapping[str, Any]], studied: Sequence[Mapping[str, Any]]
) -> ConstantShift:
    """A failed case of the arm under study has no verdict: it leaves both sides."""
    said = {record["case"]: record["verdict"] == "yes" for record in studied if record["verdict"] is not None}
    common = [case for case in baseline if case in said]
    if not common:
        return ConstantShift(0.0)
    margins = np.array([baseline[case]["margin"] for case in common], dtype=float)
    return method.fit(margins, float(np.mean([said[case] for case in common])))
