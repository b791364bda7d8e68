"""The controls of a probe's claim: other kinds of picture, other sentences, shuffled labels, random weights.

If a few kinds of picture have one truth each, a probe that is fitted to them reads the kind. If it is tested on the
sentences that it was fitted to, it reads the sentence. Random networks tell kinds and sentences apart, too. So a claim
rests on probes that never saw a kind of picture, or never saw a sentence. It holds if their intervals are above a guess
and above shuffled labels, and if the same probes of untrained models are shown to read less.

Within a sentence, no constant of the sentence helps. So a second question is asked there: how often does the probe that
never saw the sentence put a safe case above an unsafe one, and how often does the model's own margin?
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float

from experiments.metrics.bootstrap import FEWEST
from experiments.metrics.claims import HIGHER, TOO_FEW, side
from experiments.metrics.estimates import Entry, Resamples, first_lasting, shown_often
from experiments.runs.results_table import Results, Row, group_of, row
from experiments.studies.mechanism.cases import ARM, AnsweredCases
from interp.errors import UserError
from interp.hooks.residual import Residuals
from interp.tools.held_out import FOLDS
from interp.tools.probes import SHUFFLES, Probe, probe

UNTRAINED = 3  # random models: a single one may by chance read as much as a trained one or next to nothing
KIND, SENTENCE = "other kinds of picture", "other sentences"  # what a probe is tested on
CLAIMED = {
    ("truth", "verdict"): (KIND, SENTENCE),
    ("concept", "image"): (SENTENCE,),
    ("concept", "verdict"): (SENTENCE,),
}
"""Target and position of every claim, and what its probes are tested on. Truth at every layer, else at the last."""

AUROC, ACCURACY, ORDERED = "probe_auroc", "probe_accuracy", "pairs_ordered"
MARGIN, GUESS, SHUFFLED, RANDOM = "margin", "a guess", "shuffled labels", "random weights"  # compared with

YES, CANNOT_TELL = "yes", "cannot be told"
NO_GUESS, NO_RANDOM, AS_RANDOM = "not above a guess", "no random weights", "not above random weights"

NO_CONCEPT = "the benchmark says of no picture what it shows; a table says it in a column “shows”"
TOO_FEW_SHOWN = (
    "no thing is shown often enough for a held-out number; the same words in a column “shows” make pictures one thing"
)
ONE_TRUTH = {
    KIND: "no kind of picture is shown with both truths, so what a probe reads may be the kind; ask one picture with "
    "sentences of both truths, or name the kinds in a column “shows”",
    SENTENCE: "no sentence stands with pictures of both truths, so what a probe reads may be the sentence",
}
Read = tuple[list[Row], dict[str, str]]
"""Rows, and why something was not read, by target and position."""


def mixed(values: np.ndarray, safe: Bool[np.ndarray, " case"]) -> Bool[np.ndarray, " case"]:
    """Return the cases whose value occurs with both truths."""
    return np.isin(values, np.intersect1d(values[safe], values[~safe]))


def control_rows(
    states: Residuals,
    untrained: Sequence[Residuals],
    cases: AnsweredCases,
    margins: Float[np.ndarray, " case"],
    estimator: Resamples,
    *,
    seed: int,
) -> Read:
    """Return rows for each claim, what its probes are tested on (``rule``), and layer, and why there are none.

    Each has a level, the levels of a guess, of shuffled labels and of each of the ``untrained`` models, and its
    difference from these models. Probes of the truth on other sentences also order the pairs within a sentence.
    """
    rows: list[Row] = []
    reasons: dict[str, str] = {}
    pairs = cases.within_sentences
    for target, position, rule in [(*claim, rule) for claim, rules in CLAIMED.items() for rule in rules]:
        layers = states.layers if target == "truth" else states.layers[-1:]
        label, usable, balance, reason = _labelled(target, rule, cases)
        groups = (cases.kinds if rule == KIND else cases.templates)[usable]
        probes: list[Probe] = []
        try:
            for number, model in enumerate((states, *untrained) if reason is None else ()):
                values = model.values[model.places.index(position)][[model.layers.index(layer) for layer in layers]]
                probes.append(probe(values[:, usable], label[usable], groups, seed=seed,
                                    balance=[column[usable] for column in balance],
                                    shuffles=0 if number else SHUFFLES))  # fmt: skip
            reason = reason or probes[0].reason
        except UserError as error:
            reason = str(error)
        if reason is not None:
            reasons[f"{target}, {position}, {rule}"] = reason
            continue
        for index, layer in enumerate(layers):
            group = group_of(target=target, position=position, layer=layer)
            rows += _compared(probes, index, label, usable, estimator, group=group, rule=rule)
            if (target, rule) == ("truth", SENTENCE) and len(pairs):
                score = everywhere(probes[0].score[index], usable)
                order, beyond = estimator.paired_order(pairs, score, margins)
                margin, _ = estimator.paired_order(pairs, np.where(np.isnan(score), np.nan, margins))
                for arm, against, entry in ((ARM, "", order), (MARGIN, "", margin), (ARM, MARGIN, beyond)):
                    rows.append(row(ORDERED, arm=arm, against=against, group=group, rule=rule, entry=entry,
                                    n=entry["pairs"]))  # fmt: skip
    return rows, reasons


def _labelled(
    target: str, rule: str, cases: AnsweredCases
) -> tuple[np.ndarray, Bool[np.ndarray, " case"], list[np.ndarray], str | None]:
    """Return the labels, which cases can be used, the columns to balance, and why no probe can be fitted."""
    groups = {SENTENCE: cases.templates, KIND: cases.kinds}
    label, usable, balance, reason = cases.safe, np.full(len(cases.samples), True), list(groups.values()), None
    if target == "truth":
        for name in (KIND, SENTENCE):
            usable &= mixed(groups[name], cases.safe)
            reason = reason or (None if usable.any() else ONE_TRUTH[name])
    elif cases.things is None:
        reason = NO_CONCEPT
    else:
        label, balance = cases.things, []
        usable = shown_often(label, groups[rule]) & (label != "")
        reason = None if usable.any() else TOO_FEW_SHOWN
    if reason is None and (count := len(set(groups[rule][usable].tolist()))) < FOLDS:
        reason = f"there are {count} {rule.removeprefix('other ')} to hold out, and it takes {FOLDS}"
    return label, usable, balance, reason


def reading(
    fitted: Probe, index: int, label: np.ndarray, usable: Bool[np.ndarray, " case"], estimator: Resamples, **key: str
) -> Row:
    """Return what a probe reads at one layer: the AUROC of two classes, the balanced accuracy of more."""
    if label.dtype == bool:
        return row(AUROC, arm=ARM, entry=estimator.auroc(everywhere(fitted.score[index], usable), label), **key)
    accuracy = estimator.balanced_accuracy(fitted.predicted[index], label[usable], usable)
    return row(ACCURACY, arm=ARM, entry=accuracy, **key)


def _compared(
    probes: Sequence[Probe], index: int, label: np.ndarray, usable: Bool[np.ndarray, " case"], estimator: Resamples,
    **key: str,
) -> list[Row]:  # fmt: skip
    """Return what the first probe reads, the references, and its difference from the probes of untrained models."""
    gains: list[Entry]
    if label.dtype == bool:
        scores = [everywhere(fitted.score[index], usable) for fitted in probes]
        gains = [estimator.auroc_change(score, scores[0], label) for score in scores[1:]]
        guess, shuffled = 0.5, probes[0].control_auroc[index]
        values = [fitted.auroc[index] for fitted in probes[1:]]
    else:
        _, codes, counts = np.unique(label[usable], return_inverse=True, return_counts=True)
        # Cases weigh so that a mean over them is a mean over classes.
        weight = len(codes) / (len(counts) * counts[codes])
        scores = [everywhere((fitted.predicted[index] == codes) * weight, usable) for fitted in probes]
        gains = [estimator.effect(scores[0] - score) for score in scores[1:]]
        guess, shuffled = 1 / len(probes[0].classes), probes[0].control[index]
        values = [fitted.balanced_accuracy[index] for fitted in probes[1:]]
    read = reading(probes[0], index, label, usable, estimator, **key)
    random = {f"{RANDOM} {number}": value for number, value in enumerate(values, 1)}
    levels = {GUESS: guess, SHUFFLED: shuffled, **random}
    return [
        read,
        *(row(read.quantity, arm=arm, value=value, n=read.n, **key) for arm, value in levels.items()),
        *(row(read.quantity, arm=ARM, against=arm, entry=gain, **key) for arm, gain in zip(random, gains, strict=True)),
    ]


def everywhere(values: np.ndarray, usable: Bool[np.ndarray, " case"]) -> Float[np.ndarray, " case"]:
    """Return ``values`` of the ``usable`` cases, NaN for all others."""
    placed = np.full(len(usable), np.nan)
    placed[usable] = values
    return placed


def of_claim(results: Results, target: str, position: str, layer: int) -> list[Row | None]:
    """Return the levels that a claim rests on, one for each rule."""
    quantity = ACCURACY if target == "concept" else AUROC
    group = group_of(target=target, position=position, layer=layer)
    return [results.get(ARM, quantity, group=group, rule=rule) for rule in CLAIMED[target, position]]


def holds(results: Results, target: str, position: str, layer: int) -> str:
    """Return ``YES`` if a claim passes all its controls, else why not."""
    rows = [entry for entry in of_claim(results, target, position, layer) if entry and entry.value is not None]
    if len(rows) < len(CLAIMED[target, position]):
        return CANNOT_TELL
    if any((entry.clusters or 0) < FEWEST for entry in rows):
        return TOO_FEW
    if not all(_above_guess(results, entry) for entry in rows):
        return NO_GUESS
    gains = [[gain.claim for gain in _related(results, entry) if gain.against] for entry in rows]
    if not all(gains):
        return NO_RANDOM
    return YES if all(claim == HIGHER for claims in gains for claim in claims) else AS_RANDOM


def _above_guess(results: Results, entry: Row) -> bool:
    """Return whether the whole interval is above a guess and above the same probe with shuffled labels."""
    levels = [other.value for other in _related(results, entry) if other.arm in (GUESS, SHUFFLED)]
    return side(entry._asdict(), max(level for level in levels if level is not None)) > 0


def _related(results: Results, entry: Row) -> list[Row]:
    return results.select(quantity=entry.quantity, group=entry.group, rule=entry.rule)


def holds_from(results: Results, target: str, position: str, layers: Sequence[int]) -> int | None:
    """Return the first layer from which on, to the last, the claim holds; None if it does not at the last."""
    passed = [int(holds(results, target, position, layer) == YES) for layer in layers]
    first = first_lasting(passed, 1)
    return None if first is None else layers[first]
