"""What a linear probe reads: concept, truth and the model's own verdict, by position and layer.

These curves are to look at. ``mechanism.controls`` decides what may be claimed. They follow MOSSBench's three stages
(perception, intent, decision; arXiv 2406.17806, section 5) inside the model. Arrays in, rows out; no model is involved.
"""

import numpy as np
from jaxtyping import Float

from experiments.metrics.estimates import Resamples, shown_often
from experiments.runs.results_table import Row, group_of, row
from experiments.studies.mechanism.cases import ARM, AnsweredCases
from experiments.studies.mechanism.controls import (
    ACCURACY,
    AUROC,
    KIND,
    MARGIN,
    NO_CONCEPT,
    ONE_TRUTH,
    SHUFFLED,
    TOO_FEW_SHOWN,
    Read,
    everywhere,
    mixed,
    reading,
)
from experiments.types import SCORED_SUBSETS
from interp.errors import UserError
from interp.hooks.residual import Residuals, place_name
from interp.tools.probes import probe


def probe_rows(
    states: Residuals, cases: AnsweredCases, margins: Float[np.ndarray, " case"], estimator: Resamples, *, seed: int
) -> Read:
    """Return rows for each target, position and layer, and why a target is not read.

    *concept* is one of many classes, read with balanced accuracy; *truth* (safe) and *verdict* (says Yes) are read with
    AUROC, and compared with the AUROC of the model's own margin. A probe never saw the cluster of the case that it
    reads. For truth, both classes weigh alike within template and concept, so that neither stands in for it. If each
    kind of picture has only one truth, truth is not read. The control is balanced accuracy with shuffled labels.
    """
    nuisances = [column for name in ("template", "concept") if (column := cases.tag(name)) is not None]
    clusters = np.array(cases.clusters)
    things = np.full(len(clusters), "") if cases.things is None else cases.things
    things = np.where(shown_often(things, clusters), things, "")
    no_things = NO_CONCEPT if cases.things is None else "" if (things != "").any() else TOO_FEW_SHOWN
    targets: dict[str, tuple[np.ndarray, list[np.ndarray], str]] = {
        "concept": (things, [], no_things),
        "truth": (cases.safe, nuisances, "" if mixed(cases.kinds, cases.safe).any() else ONE_TRUTH[KIND]),
        "verdict": (cases.says_yes, [], ""),
    }
    rows: list[Row] = []
    reasons: dict[str, str] = {}
    for target, (label, balance, reason) in targets.items():
        if reason:
            reasons[target] = reason
            continue
        usable = things != "" if target == "concept" else np.full(len(label), True)
        for position, values in zip(states.places, states.values, strict=True):
            try:
                fitted = probe(values[:, usable], label[usable], clusters[usable],
                               balance=[column[usable] for column in balance], seed=seed)  # fmt: skip
            except UserError as error:
                reasons[f"{target}, {place_name(position)}"] = str(error)
                continue
            for index, layer in enumerate(states.layers):
                group = group_of(target=target, position=place_name(position), layer=layer)
                read = reading(fitted, index, label, usable, estimator, group=group)
                rows += [read, row(ACCURACY, arm=SHUFFLED, group=group, value=fitted.control[index], n=read.n)]
                if label.dtype == bool:
                    change = estimator.auroc_change(margins, everywhere(fitted.score[index], usable), label)
                    rows.append(row(AUROC, arm=ARM, against=MARGIN, group=group, entry=change))
    return rows, reasons


def lens_rows(
    lens: Float[np.ndarray, "layer case"], layers: list[int], cases: AnsweredCases, estimator: Resamples
) -> list[Row]:
    """Return the mean margin by layer of each subset's failures and successes, and the AUROC by layer."""
    rows = []
    for subset in SCORED_SUBSETS:
        for name, failed in (("failures", True), ("successes", False)):
            where = cases.in_subset(subset) & (cases.failed == failed)
            for layer, margins in zip(layers if where.any() else [], lens, strict=False):
                group = group_of(cases=name, layer=layer)
                rows.append(
                    row("lens_margin", arm=ARM, subset=subset, group=group, entry=estimator.mean(margins, where))
                )
    by_layer = zip(layers, lens, strict=True)
    return [*rows, *(row("lens_auroc", arm=ARM, group=group_of(layer=layer), entry=estimator.auroc(margins, cases.safe))
                     for layer, margins in by_layer)]  # fmt: skip
