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
from experiments.studies.mechanism.controls import (
    KIND,
    NO_CONCEPT,
    ONE_TRUTH,
    TOO_FEW,
    UNREAD,
    estimated,
    mixed,
    spread,
)
from experiments.types import SCORED_SUBSETS
from interp.errors import UserError
from interp.hooks.residual import Residuals, place_name
from interp.tools.probes import probe

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
    clusters = np.array(cases.clusters)
    things = np.full(len(clusters), "") if cases.things is None else cases.things
    things = np.where(shown_often(things, clusters), things, "")
    quantities: dict[str, tuple[np.ndarray, list[np.ndarray], str]] = {
        "concept": (things, [], NO_CONCEPT if cases.things is None else "" if (things != "").any() else TOO_FEW),
        "truth": (cases.safe, nuisances, "" if mixed(cases.kinds, cases.safe).any() else ONE_TRUTH[KIND]),
        "verdict": (cases.says_yes, [], ""),
    }
    rows: list[ProbeRow] = []
    for quantity, (label, balance, unread) in quantities.items():
        usable = things != "" if quantity == "concept" else np.full(len(label), True)
        for position, values in zip(states.places, states.values, strict=True):
            fitted, reason = None, unread
            try:
                if not reason:
                    fitted = probe(values[:, usable], label[usable], clusters[usable],
                                   balance=[column[usable] for column in balance], seed=seed)  # fmt: skip
            except UserError as error:
                reason = str(error)
            for index, layer in enumerate(states.layers):
                row: ProbeRow = {
                    "quantity": quantity,
                    "place": str(place_name(position)),
                    "layer": layer,
                    "beyond": None,
                }
                if fitted is None:
                    row |= UNREAD | {"measure": "balanced accuracy", "control": None, "reason": reason}
                else:
                    row |= estimated(fitted, index, label, usable, estimator)
                    row["control"] = float(fitted.control[index])
                    if label.dtype == bool:
                        row["beyond"] = estimator.auroc_change(margins, spread(fitted.score[index], usable), label)
                rows.append(row)
    return rows


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
