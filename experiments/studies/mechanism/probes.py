"""What a linear probe reads of concept, truth and verdict, by position and layer, and what may be claimed of it.

Curves (rule "") are read on clusters that the probe never saw. They follow MOSSBench's three stages (perception,
intent, decision; arXiv 2406.17806, section 5) inside the model. A claim needs more. If a few kinds of picture have one
truth each, a probe may read the kind. A probe that is tested on its own sentences may read the sentence. So a claim
rests on probes that never saw a kind of picture, or never saw a sentence. It holds if their intervals are above a guess
and above shuffled labels, and if the same probes of untrained models are shown to read less.

Within a sentence, no constant of the sentence helps. So a second question is asked there: how often does the probe that
never saw the sentence put a safe case above an unsafe one, and how often does the model's own margin?
"""

from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from experiments.metrics.bootstrap import FEWEST
from experiments.metrics.estimates import HIGHER, TOO_FEW, Entry, Resamples, first_lasting, shown_often, side
from experiments.runs.results_table import Results, Row, group_of, row
from experiments.studies.mechanism.cases import ARM, AnsweredCases
from experiments.types import SCORED_SUBSETS
from interp.errors import UserError
from interp.hooks.residual import Residuals
from interp.tools.held_out import FOLDS
from interp.tools.probes import SHUFFLES, Probe, probe

UNTRAINED = 3  # random models: a single one may by chance read as much as a trained one or next to nothing
CLUSTER, KIND, SENTENCE = "", "other kinds of picture", "other sentences"  # what a probe is tested on
CLAIMED = {
    ("truth", "verdict"): (KIND, SENTENCE),
    ("concept", "image"): (SENTENCE,),
    ("concept", "verdict"): (SENTENCE,),
}
"""Target and position of every claim, and what its probes are tested on. Truth at every layer, else at the last."""
Wanted = tuple[str, str, str]  # target, position, what probes are tested on
CLAIMS: list[Wanted] = [(*claim, rule) for claim, rules in CLAIMED.items() for rule in rules]

TARGETS = ("concept", "truth", "verdict")
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


class Labels(NamedTuple):
    """What a probe is fitted to: the label of each case, the usable cases, groups to hold out, columns to balance."""

    label: np.ndarray
    usable: Bool[np.ndarray, " case"]
    groups: np.ndarray
    balance: list[np.ndarray]


def mixed(values: np.ndarray, safe: Bool[np.ndarray, " case"]) -> Bool[np.ndarray, " case"]:
    """Return the cases whose value occurs with both truths."""
    return np.isin(values, np.intersect1d(values[safe], values[~safe]))


def probe_rows(
    states: Residuals,
    untrained: Sequence[Residuals],
    cases: AnsweredCases,
    margins: Float[np.ndarray, " case"],
    estimator: Resamples,
    *,
    wanted: Sequence[Wanted],
    seed: int,
) -> tuple[list[Row], dict[str, str]]:
    """Return rows for each target, position and rule that is ``wanted``, and why there are none: key → reason.

    *concept* is one of many classes, read with balanced accuracy; *truth* (safe) and *verdict* (says Yes) are read with
    AUROC. Each has a level, a guess, and shuffled labels (of curves always balanced accuracy). Curves of two classes
    have the difference from the AUROC of the model's margin. Claims have the levels of the ``untrained`` models, and
    the difference from them. Probes of the truth on other sentences also order the pairs within a sentence.
    """
    rows: list[Row] = []
    reasons: dict[str, str] = {}
    for target, position, rule in wanted:
        layers = states.layers if rule == CLUSTER or target == "truth" else states.layers[-1:]
        try:
            labels = _labels(target, rule, cases)
            label, usable, groups, balance = labels
            fitted = partial(probe, labels=label[usable], groups=groups[usable], seed=seed,
                             balance=[column[usable] for column in balance])  # fmt: skip
            probes = []
            for number, model in enumerate((states, *(untrained if rule else ()))):
                values = model.values[model.places.index(position)][[model.layers.index(layer) for layer in layers]]
                probes.append(fitted(values[:, usable], shuffles=0 if number else SHUFFLES))
            if probes[0].reason:
                raise UserError(probes[0].reason)
        except UserError as error:
            reasons[f"{target}, {position}, {rule}"] = str(error)
            continue
        for index, layer in enumerate(layers):
            group = group_of(target=target, position=position, layer=layer)
            rows += _compared(probes, index, labels, estimator, group=group, rule=rule)
            score = everywhere(probes[0].score[index], usable)
            if rule == CLUSTER and label.dtype == bool:
                change = estimator.auroc_change(margins, score, label)
                rows.append(row(AUROC, arm=ARM, against=MARGIN, group=group, entry=change))
            if (target, rule) == ("truth", SENTENCE):
                rows += _ordered(cases.within_sentences, score, margins, estimator, group=group, rule=rule)
    return rows, reasons


def _labels(target: str, rule: str, cases: AnsweredCases) -> Labels:
    """Return what a probe is fitted to.

    For truth, both classes weigh alike within templates and kinds of picture, so that neither can replace it.

    Raises:
        UserError: no probe can be fitted.
    """
    groups = {CLUSTER: np.array(cases.clusters), KIND: cases.kinds, SENTENCE: cases.templates}
    held_out, everyone = groups[rule], np.full(len(cases.samples), True)
    if target == "verdict":
        return Labels(cases.says_yes, everyone, held_out, [])
    if target == "truth":
        usable = everyone
        for name in (KIND, SENTENCE) if rule else (KIND,):
            usable = usable & mixed(groups[name], cases.safe)
            if not usable.any():
                raise UserError(ONE_TRUTH[name])
        if not rule:
            tags = [column for name in ("template", "concept") if (column := cases.tag(name)) is not None]
            return Labels(cases.safe, everyone, held_out, tags)
        labels = Labels(cases.safe, usable, held_out, [groups[SENTENCE], groups[KIND]])
    elif cases.things is None:
        raise UserError(NO_CONCEPT)
    else:
        labels = Labels(cases.things, shown_often(cases.things, held_out) & (cases.things != ""), held_out, [])
        if not labels.usable.any():
            raise UserError(TOO_FEW_SHOWN)
    if rule and (count := len(set(held_out[labels.usable].tolist()))) < FOLDS:
        raise UserError(f"there are {count} {rule.removeprefix('other ')} to hold out, and {FOLDS} are needed")
    return labels


def _compared(probes: Sequence[Probe], index: int, labels: Labels, estimator: Resamples, **key: Any) -> list[Row]:
    """Return what the first probe reads, the references, and its difference from the probes of untrained models."""
    label, usable, trained = labels.label, labels.usable, probes[0]
    gains: list[Entry]
    if label.dtype == bool:
        quantity, guess, values = AUROC, 0.5, [fitted.auroc[index] for fitted in probes[1:]]
        scores = [everywhere(fitted.score[index], usable) for fitted in probes]
        level = estimator.auroc(scores[0], label)
        gains = [estimator.auroc_change(score, scores[0], label) for score in scores[1:]]
    else:
        quantity, guess = ACCURACY, 1 / len(trained.classes)
        values = [fitted.balanced_accuracy[index] for fitted in probes[1:]]
        level = estimator.balanced_accuracy(trained.predicted[index], label[usable], usable)
        _, codes, counts = np.unique(label[usable], return_inverse=True, return_counts=True)
        # Cases weigh so that a mean over them is a mean over classes.
        weight = len(codes) / (len(counts) * counts[codes])
        scores = [everywhere((fitted.predicted[index] == codes) * weight, usable) for fitted in probes]
        gains = [estimator.effect(scores[0] - score) for score in scores[1:]]
    curve = quantity == ACCURACY or key["rule"] == CLUSTER
    shuffled = (ACCURACY, trained.control[index]) if curve else (AUROC, trained.control_auroc[index])
    random = {f"{RANDOM} {number}": value for number, value in enumerate(values, 1)}
    references = {GUESS: (quantity, guess), SHUFFLED: shuffled} | {name: (quantity, random[name]) for name in random}
    return [
        row(quantity, arm=ARM, entry=level, **key),
        *(row(name, arm=arm, value=value, n=level["n"], **key) for arm, (name, value) in references.items()),
        *(row(quantity, arm=ARM, against=arm, entry=gain, **key) for arm, gain in zip(random, gains, strict=True)),
    ]


def _ordered(
    pairs: Int[np.ndarray, "pair 2"], score: np.ndarray, margins: np.ndarray, estimator: Resamples, **key: Any
) -> list[Row]:
    """Return how often the probe and the margin put the safe case of a pair first; nothing without pairs."""
    order, beyond = estimator.paired_order(pairs, score, margins)
    margin, _ = estimator.paired_order(pairs, np.where(np.isnan(score), np.nan, margins))
    entries = {(ARM, ""): order, (MARGIN, ""): margin, (ARM, MARGIN): beyond} if len(pairs) else {}
    return [row(ORDERED, arm=arm, against=against, entry=entry, n=entry["pairs"], **key)
            for (arm, against), entry in entries.items()]  # fmt: skip


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


def lens_rows(
    lens: Float[np.ndarray, "layer case"], layers: Sequence[int], cases: AnsweredCases, estimator: Resamples
) -> list[Row]:
    """Return the mean margin by layer of each subset's failures and successes, and the AUROC by layer."""
    rows = []
    for layer, margins in zip(layers, lens, strict=True):
        auroc = estimator.auroc(margins, cases.safe)
        rows.append(row("lens_auroc", arm=ARM, group=group_of(layer=layer), entry=auroc))
        for subset, failed in product(SCORED_SUBSETS, (True, False)):
            where = cases.in_subset(subset) & (cases.failed == failed)
            group = group_of(cases="failures" if failed else "successes", layer=layer)
            if where.any():
                mean = estimator.mean(margins, where)
                rows.append(row("lens_margin", arm=ARM, subset=subset, group=group, entry=mean))
    return rows
