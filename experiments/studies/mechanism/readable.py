"""What can be read where: concept, truth and the model's own verdict, by place and point. Pure.

MOSSBench's three stages (perception, intent, decision; arXiv 2406.17806, section 5) seen from inside. Knows no models.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from experiments.studies.mechanism.cases import Cases
from experiments.studies.mechanism.estimates import Resampling, onward, side
from interp.errors import UserError
from interp.hooks.residual import Residuals
from interp.lda import FEWEST_CASES, FEWEST_GROUPS
from interp.probes import Probe, probe

NO_CONCEPT = "the benchmark says of no picture what it shows"
FEW = "no thing is shown often enough for a held-out number"
Row = dict[str, Any]


def probing(
    read: Residuals, cases: Cases, margins: Float[np.ndarray, "case"], resampling: Resampling, *, seed: int
) -> list[Row]:
    """A row for each quantity, place and point: ``measure``, its entry, control, and a reason where there is none.

    *concept* is a class of many, read with balanced accuracy; *truth* (safe) and *verdict* (says Yes) with AUROC. The
    probe never meets a case's cluster in fitting, and for truth the fitting cases are balanced within template and
    concept, so that neither stands for it; ``beyond`` is its AUROC less that of the model's own margin, paired.
    """
    nuisances = [column for tag in ("template", "concept") if (column := cases.column(tag)) is not None]
    labels = {"concept": _concepts(cases), "truth": cases.safe, "verdict": cases.says_yes}
    rows: list[Row] = []
    for quantity, label in labels.items():
        balance = nuisances if quantity == "truth" else []
        for place, states in zip(read.places, read.values, strict=True):
            if label is None or not (label != "").any():
                reason = NO_CONCEPT if label is None else FEW
                rows += [_named(quantity, place, point) | _none(reason) for point in read.points]
                continue
            known = label != ""
            groups = np.array(cases.clusters)
            try:
                found = probe(states[:, known], label[known], groups[known],
                              balance=[column[known] for column in balance], seed=seed)  # fmt: skip
            except UserError:  # nothing to balance by goes with both: plain fitting
                found = probe(states[:, known], label[known], groups[known], seed=seed)
            rows += [
                _named(quantity, place, point) | _read(found, index, label, known, margins, resampling)
                for index, point in enumerate(read.points)
            ]
    return rows


def _named(quantity: str, place: str, point: int) -> Row:
    return {"quantity": quantity, "place": place, "point": point}


def _none(reason: str) -> Row:
    entry = {"value": None, "low": None, "high": None, "n": 0, "clusters": 0}
    return {"measure": "balanced accuracy", **entry, "control": None, "classes": 0, "beyond": None, "reason": reason}


def _concepts(cases: Cases) -> np.ndarray | None:
    """What the picture shows; "" where too few clusters show it for a held-out number."""
    column = cases.column("concept")
    if column is None:
        return None
    clusters = np.array(cases.clusters)
    for name in np.unique(column):
        here = column == name
        if here.sum() < FEWEST_CASES or len(set(clusters[here].tolist())) < FEWEST_GROUPS:
            column = np.where(here, "", column)
    return column


def _read(
    found: Probe, index: int, label: np.ndarray, known: np.ndarray, margins: np.ndarray, resampling: Resampling
) -> Row:
    """The entry of one point, over all cases: what was left out is NaN."""
    control = float(found.control[index])
    about: Row = {"control": control, "classes": len(found.classes), "beyond": None, "reason": found.reason}
    if label.dtype == bool:
        score = np.full(len(label), np.nan)
        score[known] = found.score[index]
        about["beyond"] = resampling.auroc(score, label, less=margins)
        return {"measure": "AUROC", **resampling.auroc(score, label), **about}
    right, weight = np.full((2, len(label)), np.nan)
    names, codes, counts = np.unique(label[known], return_inverse=True, return_counts=True)
    right[known] = np.where(found.predicted[index] >= 0, found.predicted[index] == codes, np.nan)
    weight[known] = 1 / (len(names) * counts[codes])
    return {"measure": "balanced accuracy", **resampling.ratio(right * weight, weight), **about}


def entry_at(rows: Sequence[Row], quantity: str, place: str, point: int) -> Row:
    """One row of ``probing``."""
    return next(r for r in rows if (r["quantity"], r["place"], r["point"]) == (quantity, place, point))


def chance(row: Row) -> float:
    """What a probe that knows nothing reads: the control, or an AUROC of a half."""
    return 0.5 if row["measure"] == "AUROC" else max(row["control"] or 0.0, 1 / max(row["classes"], 1))


def readable_from(rows: Sequence[Row], quantity: str, place: str, points: Sequence[int]) -> int | None:
    """The first point from which on, to the last, the quantity is read above chance; None where it is not at last."""
    there = [entry_at(rows, quantity, place, point) for point in points]
    first = onward([side(row, chance(row)) for row in there], 1)
    return None if first is None else points[first]


def best(rows: Sequence[Row], quantity: str, place: str) -> Row | None:
    """The row with the highest value; None where nothing was read."""
    there = [r for r in rows if (r["quantity"], r["place"]) == (quantity, place) and r["value"] is not None]
    return max(there, key=lambda row: row["value"], default=None)
