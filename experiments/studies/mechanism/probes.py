"""What a linear probe reads where: concept, truth and the model's own verdict, by position and layer.

Curves to look at; what may be claimed of them is decided by ``mechanism.controls``.

MOSSBench's three stages (perception, intent, decision; arXiv 2406.17806, section 5) seen from inside. Arrays in, rows
out; no model is involved.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from experiments.metrics.estimates import Resamples, shown_often
from experiments.studies.mechanism.cases import AnsweredCases
from experiments.studies.mechanism.controls import KIND, NO_CONCEPT, ONE_TRUTH, TOO_FEW, mixed
from experiments.types import SCORED_SUBSETS
from interp.errors import UserError
from interp.hooks.residual import Place, Residuals, place_name
from interp.tools.probes import Probe, probe

ProbeRow = dict[str, Any]


def probe_rows(
    states: Residuals, cases: AnsweredCases, margins: Float[np.ndarray, " case"], estimator: Resamples, *, seed: int
) -> list[ProbeRow]:
    """A row for each quantity, position and layer: ``measure``, its estimate, the control, or a reason for neither.

    *concept* is one of many classes, read with balanced accuracy; *truth* (safe) and *verdict* (says Yes) are read with
    AUROC. Every case is read by a probe that saw nothing of its cluster. For truth the fitting cases are balanced
    within template and concept, so that neither stands in for it, and nothing is read where each kind of picture has
    one truth only. ``beyond`` is the probe's AUROC minus that of the model's own margin, paired by case.
    """
    nuisances = [column for name in ("template", "concept") if (column := cases.tag(name)) is not None]
    shown = cases.things
    if shown is not None:
        shown = np.where(shown_often(shown, np.array(cases.clusters)), shown, "")
    labels = {"concept": shown, "truth": cases.safe, "verdict": cases.says_yes}
    rows: list[ProbeRow] = []
    for quantity, label in labels.items():
        balance = nuisances if quantity == "truth" else []
        for position, values in zip(states.places, states.values, strict=True):
            reason = NO_CONCEPT if label is None else TOO_FEW
            if label is not None and quantity == "truth":
                reason = "" if mixed(cases.kinds, cases.safe).any() else ONE_TRUTH[KIND]
            elif label is not None and (label != "").any():
                reason = ""
            if label is None or reason:
                rows += [_key(quantity, position, layer) | _unread(reason) for layer in states.layers]
                continue
            known = label != ""
            try:
                found = probe(values[:, known], label[known], np.array(cases.clusters)[known],
                              balance=[column[known] for column in balance], seed=seed)  # fmt: skip
            except UserError as error:
                rows += [_key(quantity, position, layer) | _unread(str(error)) for layer in states.layers]
                continue
            rows += [
                _key(quantity, position, layer) | _read(found, index, label, known, margins, estimator)
                for index, layer in enumerate(states.layers)
            ]
    return rows


def _key(quantity: str, position: Place, layer: int) -> ProbeRow:
    return {"quantity": quantity, "place": str(place_name(position)), "layer": layer}


def _unread(reason: str) -> ProbeRow:
    estimate = {"value": None, "low": None, "high": None, "n": 0, "clusters": 0}
    return {"measure": "balanced accuracy", **estimate, "control": None, "classes": 0, "beyond": None, "reason": reason}


def _read(
    found: Probe, index: int, label: np.ndarray, known: np.ndarray, margins: np.ndarray, estimator: Resamples
) -> ProbeRow:
    """The estimate at one layer over all cases; a case that was not read is NaN."""
    about: ProbeRow = {"control": float(found.control[index]), "classes": len(found.classes), "beyond": None,
                  "reason": found.reason}  # fmt: skip
    if label.dtype == bool:
        score = np.full(len(label), np.nan)
        score[known] = found.score[index]
        about["beyond"] = estimator.auroc_change(margins, score, label)
        return {"measure": "AUROC", **estimator.auroc(score, label), **about}
    accuracy = estimator.balanced_accuracy(found.predicted[index], label[known], known)
    return {"measure": "balanced accuracy", **accuracy, **about}


def lens_rows(lens: Float[np.ndarray, "layer case"], cases: AnsweredCases, estimator: Resamples) -> dict[str, Any]:
    """Return the mean margin by layer of each subset's failures and successes, and the AUROC by layer."""
    curves = []
    for subset in SCORED_SUBSETS:
        for failed in (True, False):
            where = cases.in_subset(subset) & (cases.failed == failed)
            if where.any():
                margin = [estimator.mean(row, where) for row in lens]
                curves.append({"subset": subset, "failed": failed, "margin": margin})
    return {"curves": curves, "auroc": [estimator.auroc(row, cases.safe) for row in lens]}


def probe_row(rows: Sequence[ProbeRow], quantity: str, position: str, layer: int) -> ProbeRow:
    """One row of ``probe_rows``."""
    return next(r for r in rows if (r["quantity"], r["place"], r["layer"]) == (quantity, position, layer))
