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
from jaxtyping import Bool, Float, Int

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
    rows = []
    for (quantity, place), held in CLAIMED.items():
        layers = states.layers if quantity == "truth" else states.layers[-1:]
        for out in held:
            rows += _rows(quantity, place, out, layers, states, untrained, cases, margins, estimator, seed)
    return rows


def _rows(
    quantity: str,
    place: str,
    out: str,
    layers: Sequence[int],
    states: Residuals,
    untrained: Sequence[Residuals],
    cases: AnsweredCases,
    margins: np.ndarray,
    estimator: Resamples,
    seed: int,
) -> list[Row]:
    keys = [{"quantity": quantity, "place": place, "held_out": out, "layer": layer} for layer in layers]
    groups = {KIND: cases.kinds, SENTENCE: cases.templates}
    if quantity == "truth":
        label, known, balance = cases.safe, np.ones(len(margins), dtype=bool), [groups[SENTENCE], groups[KIND]]
        for name, values in groups.items():
            known &= mixed(values, cases.safe)
            if not known.any():
                return [key | _without(ONE_TRUTH[name]) for key in keys]
    else:
        shown = cases.things
        if shown is None:
            return [key | _without(NO_CONCEPT) for key in keys]
        label, balance = shown, []
        known = shown_often(shown, groups[out]) & (shown != "")
        if not known.any():
            return [key | _without(TOO_FEW) for key in keys]
    held = groups[out][known]
    if (count := len(set(held.tolist()))) < FOLDS:
        name = {KIND: "kinds of picture", SENTENCE: "sentences"}[out]
        return [key | _without(f"there are {count} {name} to hold out, and it takes {FOLDS}") for key in keys]

    def fitted(of: Residuals, shuffles: int) -> Probe:
        values = of.values[of.places.index(place)][[of.layers.index(layer) for layer in layers]]
        return probe(values[:, known], label[known], held, balance=[one[known] for one in balance],
                     shuffles=shuffles, seed=seed)  # fmt: skip

    try:
        found, others = fitted(states, SHUFFLES), [fitted(one, 0) for one in untrained]
    except UserError as error:
        return [key | _without(str(error)) for key in keys]
    if found.reason is not None:
        return [key | _without(found.reason) for key in keys]
    pairs = cases.within_sentences if (quantity, out) == ("truth", SENTENCE) else None
    return [
        key | _read(found, others, at, label, known, estimator) | _within(found, at, known, margins, pairs, estimator)
        for at, key in enumerate(keys)
    ]


def _without(reason: str) -> Row:
    return {"measure": "", "value": None, "low": None, "high": None, "n": 0, "clusters": 0, "classes": 0,
            "shuffled": None, "untrained": [], "within": None, "reason": reason}  # fmt: skip


def _read(
    found: Probe, others: Sequence[Probe], at: int, label: np.ndarray, known: np.ndarray, estimator: Resamples
) -> Row:
    about: Row = {"classes": len(found.classes), "reason": None}
    if label.dtype == bool:
        score, *random = (_spread(one.score[at], known) for one in (found, *others))
        return about | {
            "measure": "AUROC",
            **estimator.auroc(score, label),
            "shuffled": float(found.control_auroc[at]),
            "untrained": [
                {"value": float(other.auroc[at]), "gain": estimator.auroc_change(one, score, label)}
                for other, one in zip(others, random, strict=True)
            ],
        }
    _, codes, counts = np.unique(label[known], return_inverse=True, return_counts=True)
    # Cases weigh so that a mean over them is one over classes.
    weight = len(codes) / (len(counts) * counts[codes])
    right, *random = (_spread((one.predicted[at] == codes) * weight, known) for one in (found, *others))
    return about | {
        "measure": "balanced accuracy",
        **estimator.balanced_accuracy(found.predicted[at], label[known], known),
        "shuffled": float(found.control[at]),
        "untrained": [
            {"value": float(other.balanced_accuracy[at]), "gain": estimator.effect(right - one)}
            for other, one in zip(others, random, strict=True)
        ],
    }


def _within(
    found: Probe,
    at: int,
    known: np.ndarray,
    margins: np.ndarray,
    pairs: Int[np.ndarray, "pair 2"] | None,
    estimator: Resamples,
) -> Row:
    if pairs is None or not len(pairs):
        return {"within": None}
    score = _spread(found.score[at], known)
    one, beyond = estimator.paired_order(pairs, score, margins)
    margin, _ = estimator.paired_order(pairs, np.where(np.isnan(score), np.nan, margins))
    return {"within": {"probe": one, "margin": margin, "beyond": beyond}}


def _spread(values: np.ndarray, known: np.ndarray) -> Float[np.ndarray, " case"]:
    """``values`` of the ``known`` cases, NaN for all others."""
    found = np.full(len(known), np.nan)
    found[known] = values
    return found


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
