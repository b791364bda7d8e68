"""What a probe's claim has to hold against: other kinds of picture, other sentences, shuffled labels, random weights.

A probe fitted to a few kinds of picture with one truth each reads the kind, not the truth; one fitted to the sentences
that it is tested on reads the sentence; and both can be told apart in a random network. So each claim rests on probes
that saw none of a kind of picture, or none of a sentence, and holds where their intervals lie above a guess and above
the same probe with shuffled labels, and where the same probes on untrained models are shown to read less.

*More than is said* is asked within sentences, where no constant of a sentence helps: how often the probe that never saw
the sentence puts a safe case of it above an unsafe one, and how often the model's own margin does.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from experiments.metrics.bootstrap import FEWEST
from experiments.metrics.estimates import Resamples, first_lasting, shown_often
from experiments.metrics.findings import Answer, side
from experiments.studies.mechanism.cases import AnsweredCases
from interp.errors import UserError
from interp.hooks.residual import Residuals
from interp.tools.held_out import FOLDS
from interp.tools.probes import SHUFFLES, Probe, probe

UNTRAINED = 3  # random models: one alone may by chance read as much as a trained one or next to nothing
KIND, SENTENCE = "kind", "sentence"
CLAIMED = {
    ("truth", "verdict"): (KIND, SENTENCE),
    ("concept", "image"): (SENTENCE,),
    ("concept", "verdict"): (SENTENCE,),
}
"""Quantity and place of every claim, and what its probes hold out. Of the truth at every layer, else at the last."""

NO_CONCEPT = "the benchmark says of no picture what it shows; a table says it in a column “shows”"
TOO_FEW = (
    "no thing is shown often enough for a held-out number; the same words in a column “shows” make pictures one thing"
)
ONE_TRUTH = {
    KIND: "no kind of picture is shown with both truths, so what a probe reads may be the kind; ask one picture with "
    "sentences of both truths, or name the kinds in a column “shows”",
    SENTENCE: "no sentence stands with pictures of both truths, so what a probe reads may be the sentence",
}
UNREAD = {"measure": "", "value": None, "low": None, "high": None, "n": 0, "clusters": 0, "classes": 0}
Row = dict[str, Any]


def mixed(values: np.ndarray, safe: Bool[np.ndarray, " case"]) -> Bool[np.ndarray, " case"]:
    """The cases whose value occurs with both truths."""
    return np.isin(values, np.intersect1d(values[safe], values[~safe]))


def control_rows(
    states: Residuals,
    untrained: Sequence[Residuals],
    cases: AnsweredCases,
    margins: Float[np.ndarray, " case"],
    estimator: Resamples,
    *,
    seed: int,
) -> list[Row]:
    """A row for each claim, what is held out, and layer, of ``states`` and the same ones of ``untrained`` models.

    ``value`` (AUROC, of the concept balanced accuracy) with its interval; ``shuffled``, the same with shuffled labels;
    ``untrained``, a list of ``value`` and ``gain``, the difference from it; ``within``, of probes of the truth on
    sentences held out: ``probe``, ``margin`` and ``beyond``, their difference. Without a value a ``reason``.
    """
    rows: list[Row] = []
    for quantity, place, held_out in [(*claim, name) for claim, names in CLAIMED.items() for name in names]:
        layers = states.layers if quantity == "truth" else states.layers[-1:]
        keys = [{"quantity": quantity, "place": place, "held_out": held_out, "layer": layer} for layer in layers]
        label, usable, balance, reason = _labelled(quantity, held_out, cases)
        probes: list[Probe] = []
        try:
            for number, model in enumerate((states, *untrained) if reason is None else ()):
                values = model.values[model.places.index(place)][[model.layers.index(layer) for layer in layers]]
                groups = cases.kinds if held_out == KIND else cases.templates
                probes.append(probe(values[:, usable], label[usable], groups[usable], seed=seed,
                                    balance=[column[usable] for column in balance],
                                    shuffles=0 if number else SHUFFLES))  # fmt: skip
            reason = reason or probes[0].reason
        except UserError as error:
            reason = str(error)
        if reason is not None:
            rows += [
                key | UNREAD | {"shuffled": None, "untrained": [], "within": None, "reason": reason} for key in keys
            ]
            continue
        pairs = cases.within_sentences
        for index, key in enumerate(keys):
            row = key | _compared(probes, index, label, usable, estimator) | {"within": None}
            if (quantity, held_out) == ("truth", SENTENCE) and len(pairs):
                score = spread(probes[0].score[index], usable)
                order, beyond = estimator.paired_order(pairs, score, margins)
                margin, _ = estimator.paired_order(pairs, np.where(np.isnan(score), np.nan, margins))
                row["within"] = {"probe": order, "margin": margin, "beyond": beyond}
            rows.append(row)
    return rows


def _labelled(
    quantity: str, held_out: str, cases: AnsweredCases
) -> tuple[np.ndarray, Bool[np.ndarray, " case"], list[np.ndarray], str | None]:
    """Return the labels, which cases can be used, the columns to balance, and why no probe can be fitted."""
    groups = {SENTENCE: cases.templates, KIND: cases.kinds}
    label, usable, balance, reason = cases.safe, np.full(len(cases.samples), True), list(groups.values()), None
    if quantity == "truth":
        for name in (KIND, SENTENCE):
            usable &= mixed(groups[name], cases.safe)
            reason = reason or (None if usable.any() else ONE_TRUTH[name])
    elif cases.things is None:
        reason = NO_CONCEPT
    else:
        label, balance = cases.things, []
        usable = shown_often(label, groups[held_out]) & (label != "")
        reason = None if usable.any() else TOO_FEW
    if reason is None and (count := len(set(groups[held_out][usable].tolist()))) < FOLDS:
        name = {KIND: "kinds of picture", SENTENCE: "sentences"}[held_out]
        reason = f"there are {count} {name} to hold out, and it takes {FOLDS}"
    return label, usable, balance, reason


def estimated(
    fitted: Probe, index: int, label: np.ndarray, usable: Bool[np.ndarray, " case"], estimator: Resamples
) -> Row:
    """Return what a probe reads at one layer: the AUROC of two classes, the balanced accuracy of more."""
    about: Row = {"classes": len(fitted.classes), "reason": fitted.reason}
    if label.dtype == bool:
        return about | {"measure": "AUROC", **estimator.auroc(spread(fitted.score[index], usable), label)}
    accuracy = estimator.balanced_accuracy(fitted.predicted[index], label[usable], usable)
    return about | {"measure": "balanced accuracy", **accuracy}


def _compared(
    probes: Sequence[Probe], index: int, label: np.ndarray, usable: Bool[np.ndarray, " case"], estimator: Resamples
) -> Row:
    """Return what the first probe reads, compared with shuffled labels and with the probes of untrained models."""
    if label.dtype == bool:
        scores = [spread(fitted.score[index], usable) for fitted in probes]
        gains = [estimator.auroc_change(score, scores[0], label) for score in scores[1:]]
        shuffled, values = probes[0].control_auroc[index], [fitted.auroc[index] for fitted in probes[1:]]
    else:
        _, codes, counts = np.unique(label[usable], return_inverse=True, return_counts=True)
        # Cases weigh so that a mean over them is one over classes.
        weight = len(codes) / (len(counts) * counts[codes])
        scores = [spread((fitted.predicted[index] == codes) * weight, usable) for fitted in probes]
        gains = [estimator.effect(scores[0] - score) for score in scores[1:]]
        shuffled, values = probes[0].control[index], [fitted.balanced_accuracy[index] for fitted in probes[1:]]
    return estimated(probes[0], index, label, usable, estimator) | {
        "shuffled": float(shuffled),
        "untrained": [{"value": float(value), "gain": gain} for value, gain in zip(values, gains, strict=True)],
    }


def spread(values: np.ndarray, usable: Bool[np.ndarray, " case"]) -> Float[np.ndarray, " case"]:
    """Return ``values`` of the ``usable`` cases, NaN for all others."""
    everywhere = np.full(len(usable), np.nan)
    everywhere[usable] = values
    return everywhere


def of_claim(rows: Iterable[Mapping[str, Any]], quantity: str, place: str, layer: int) -> list[Mapping[str, Any]]:
    """The rows of one claim, one for each way of holding out."""
    return [row for row in rows if (row["quantity"], row["place"], row["layer"]) == (quantity, place, layer)]


def holds(rows: Sequence[Mapping[str, Any]]) -> Answer:
    """Whether a claim holds against all its controls: YES, else CANNOT_TELL, TOO_FEW or NOT_SHOWN.

    NOT_SHOWN also where no untrained model was read.
    """
    if not rows or any(row["value"] is None for row in rows):
        return Answer.CANNOT_TELL
    if any(row["clusters"] < FEWEST for row in rows):
        return Answer.TOO_FEW
    return Answer.YES if all(map(_clear, rows)) else Answer.NOT_SHOWN


def above_guess(row: Mapping[str, Any]) -> bool:
    """Whether the whole interval lies above a guess and above the same probe with shuffled labels."""
    guess = 0.5 if row["measure"] == "AUROC" else 1 / max(row["classes"], 1)
    return side(row, max(guess, row["shuffled"])) > 0


def _clear(row: Mapping[str, Any]) -> bool:
    gains = [one["gain"]["statement"] for one in row["untrained"]]
    return above_guess(row) and bool(gains) and all(gain == Answer.ROSE.value for gain in gains)


def holds_from(rows: Sequence[Mapping[str, Any]], quantity: str, place: str, layers: Sequence[int]) -> int | None:
    """The first layer from which on, to the last, the claim holds; None where it does not at the last."""
    told = [int(holds(of_claim(rows, quantity, place, layer)) is Answer.YES) for layer in layers]
    first = first_lasting(told, 1)
    return None if first is None else layers[first]
