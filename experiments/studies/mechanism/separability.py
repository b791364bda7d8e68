"""Separability by layer: how well safe and unsafe are told apart along the direction that the model has in words.

The same request in three forms: with its *picture*, with the model's own *caption* in the sentence instead, and in
*words*, what the benchmark says the picture shows. The direction is that from unsafe to safe cases in words (else with
captions) at the verdict, fitted without the sentences that it is read on. Where it tells them apart in words and not
with the picture, the picture's states lie where the aligned part of the model does not read ("modality drift",
arXiv 2605.18104; MARS, arXiv 2606.31876; ShiftDC, arXiv 2502.13095), and a correction has room.

A drift that is the same in every case moves no case past another along a direction: it is told as its size and cosine.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from sklearn.metrics import roc_auc_score

from experiments.metrics.pairs import hash_key
from experiments.studies.mechanism.cases import AnsweredCases
from experiments.studies.mechanism.controls import mixed
from interp.errors import UserError
from interp.hooks.residual import residuals
from interp.tools.held_out import FOLDS, grouped_folds, raked
from interp.tools.probes import SHUFFLES
from mitigation.steps import Steps, check_words
from mitigation.verbalise import Verbalise

if TYPE_CHECKING:
    from interp.vlm import VLM, Prompt

PICTURE, CAPTION, WORDS = "picture", "caption", "words"
FORMS = {PICTURE: "with the picture", CAPTION: "with its own caption", WORDS: "in words"}
POSITION = "verdict"
NOT_SHOWN = "the benchmark does not say what each picture shows; a table does, in a column “shows”"
NO_CAPTION = "the model wrote no caption"

States = Float[np.ndarray, "layer row width"]
Scores = Float[np.ndarray, " row"]
Row = dict[str, Any]


def whole_sentences(cases: AnsweredCases, most: int, *, seed: int) -> Int[np.ndarray, " chosen"]:
    """At most ``most`` cases, of whole sentences drawn by ``seed``; of one sentence at least."""
    found: list[int] = []
    for text in sorted(set(cases.questions.tolist()), key=lambda text: hash_key(seed, "separability", text)):
        own = np.flatnonzero(cases.questions == text).tolist()
        if found and len(found) + len(own) > most:
            break
        found += own
    return np.array(sorted(found), dtype=int)


@dataclass(frozen=True)
class InWords:
    """Requests without their pictures, by form; None where a case has no caption. ``missing``: form → why not."""

    prompts: "Mapping[str, Sequence[Prompt | None]]"
    missing: Mapping[str, str]

    def states(self, vlm: "VLM", layers: Sequence[int]) -> dict[str, States]:
        """The states at the verdict; NaN where there is no prompt."""
        found = {}
        for form, prompts in self.prompts.items():
            rows = [row for row, prompt in enumerate(prompts) if prompt is not None]
            read = residuals(vlm, [prompt for prompt in prompts if prompt is not None], layers=layers)
            values = torch.full((len(layers), len(prompts), read.values.shape[-1]), torch.nan)
            values[:, rows] = read.values[0].float()
            found[form] = values.double().numpy()
        return found


def in_words(vlm: "VLM", prompts: "Sequence[Prompt]") -> InWords:
    """The requests with the model's own captions (greedy), and with what the benchmark says the pictures show."""
    try:
        check_words(vlm, "take a model that can be asked in words")
    except UserError as error:
        return InWords({}, dict.fromkeys((CAPTION, WORDS), str(error)))
    found, missing = dict[str, list["Prompt | None"]](), {}
    for form, words in ((CAPTION, Verbalise()), (WORDS, Verbalise(describe="oracle"))):
        if form == WORDS and not all(prompt.shows.strip() for prompt in prompts):
            missing[WORDS] = NOT_SHOWN
            continue

        def worded(some: "list[Prompt]", words: Verbalise = words) -> "list[Prompt | None]":
            said = words.descriptions(Steps(vlm, len(some)), some)
            return [
                words.last_question(one, said[row]).prompt if said.get(row, "").strip() else None
                for row, one in enumerate(some)
            ]

        asked = vlm.batches.gathered(prompts, worded)
        if any(one is not None for one in asked):
            found[form] = asked
        else:
            missing[form] = NO_CAPTION
    return InWords(found, missing)


def separability_rows(
    states: Mapping[str, States],
    untrained: Sequence[Mapping[str, States]],
    cases: AnsweredCases,
    *,
    missing: Mapping[str, str],
    layers: Sequence[int],
    draws: int,
    seed: int,
) -> dict[str, Any]:
    """Rows by form and layer, the drift by layer, and one layer chosen on half of the sentences, stated on the others.

    Args:
        states: by form, those of ``cases`` at the verdict; ``untrained``: the same of models with random weights.
        missing: why there is no other form.

    Returns:
        ``rows``: ``auroc``; ``within``, how often the safe of two cases of one sentence comes first, and its ``change``
        from the picture's; ``gap``, of the means, in gaps that it was fitted to; ``shuffled`` and ``untrained``, the
        same AUROC with shuffled labels and from random weights. ``drift``: ``norm`` of the mean of picture less words,
        the mean norm of the ``states``, ``cosine`` with the direction. ``chosen``: ``layer``, and on the other half
        ``picture``, ``words`` and ``change``; None where no pair is left. Without rows a ``reason``.
    """
    about: dict[str, Any] = {"n": len(cases.samples), "missing": dict(missing), "reference": None, "rows": [],
                             "drift": [], "chosen": None, "reason": None}  # fmt: skip
    reference = next((form for form in (WORDS, CAPTION) if form in states), None)
    if reference is None:
        return about | {"reason": missing[WORDS] if missing[WORDS] != NOT_SHOWN else missing[CAPTION]}
    known = np.flatnonzero(~np.isnan(states[reference]).any((0, 2)))
    read = Reading(states[reference], cases.safe, cases.templates, cases.kinds, known, seed)
    try:
        folds = read.folds(known)
    except UserError as error:
        return about | {"reference": reference, "reason": str(error)}
    everywhere, shuffles = read.fold(known, known), read.shuffles(folds)
    estimator = cases.resamples(draws=draws, seed=seed)
    pairs, rows, drifts = cases.within_sentences, [], []
    for at, layer in enumerate(layers):
        scores, shuffled = read.scores(at, states, folds), read.aurocs(at, states, shuffles)
        random = [replace(read, states=one[reference]).aurocs(at, one, [folds]) for one in untrained]
        for form in (form for form in FORMS if form in states):
            score = scores[form]
            within, change = estimator.paired_order(pairs, score, scores[PICTURE])
            rows.append({
                "form": form,
                "layer": layer,
                "auroc": estimator.auroc(score, cases.safe),
                "within": within,
                "change": change,
                "gap": estimator.gap(score, cases.safe, ~cases.safe),
                "shuffled": shuffled[form],
                "untrained": [one[form] for one in random if form in one],
            })  # fmt: skip
        drifts.append({"layer": layer, **_drift(read, at, states[PICTURE], everywhere)})
    chosen = _chosen(read, states, reference, cases, pairs, estimator, layers)
    return about | {"reference": reference, "rows": rows, "drift": drifts, "chosen": chosen}


class Fold(NamedTuple):
    """Rows to fit on, with their labels and weights, and those held out."""

    train: Int[np.ndarray, " train"]
    safe: Bool[np.ndarray, " train"]
    weights: Float[np.ndarray, " train"]
    test: Int[np.ndarray, " test"]


@dataclass(frozen=True)
class Reading:
    """States in words, from which directions are fitted, and the rows that have them."""

    states: States
    safe: Bool[np.ndarray, " row"]
    families: np.ndarray
    kinds: np.ndarray
    rows: Int[np.ndarray, " known"]
    seed: int

    def fold(self, train: np.ndarray, test: np.ndarray, safe: Bool[np.ndarray, " row"] | None = None) -> Fold:
        """Both labels weigh alike within families of sentences, and within kinds of picture, where one has both."""
        label = (self.safe if safe is None else safe)[train]
        balance = [one for values in (self.families, self.kinds) if mixed(one := values[train], label).any()]
        return Fold(train, label, raked(label.astype(int), balance), test)

    def folds(self, rows: Int[np.ndarray, " some"]) -> list[Fold]:
        """Whole families of sentences are held out.

        Raises:
            UserError: too few families or cases of a label.
        """
        codes, names = self.safe[rows].astype(int), ("unsafe", "safe")
        some = grouped_folds(codes, self.families[rows], folds=FOLDS, seed=self.seed, names=names)
        return [self.fold(rows[train], rows[test]) for train, test in some]

    def shuffles(self, folds: Sequence[Fold]) -> list[list[Fold]]:
        """The same folds with shuffled labels, a few times."""
        rng, found = np.random.default_rng(self.seed), []
        for _ in range(SHUFFLES):
            dealt = self.safe.copy()
            dealt[self.rows] = rng.permutation(self.safe[self.rows])
            found.append([self.fold(fold.train, fold.test, dealt) for fold in folds])
        return found

    def direction(self, at: int, fold: Fold) -> tuple[Float[np.ndarray, " width"], float]:
        """From the mean of unsafe to that of safe cases, such that their gap along it is 1; and what lies midway."""
        ones, others = (
            np.average(self.states[at][fold.train[fold.safe == side]], axis=0, weights=fold.weights[fold.safe == side])
            for side in (True, False)
        )
        vector = ones - others
        vector = vector / max(float(vector @ vector), 1e-30)
        return vector, float(vector @ (ones + others) / 2)

    def scores(self, at: int, forms: Mapping[str, States], folds: Sequence[Fold]) -> dict[str, Scores]:
        """How far each row lies towards safe, in gaps of the fold's cases in words; NaN where it is not held out."""
        found = {form: np.full(len(self.safe), np.nan) for form in forms}
        for fold in folds:
            vector, midway = self.direction(at, fold)
            for form, states in forms.items():
                found[form][fold.test] = states[at][fold.test] @ vector - midway
        return found

    def aurocs(self, at: int, forms: Mapping[str, States], some: Sequence[Sequence[Fold]]) -> dict[str, float]:
        """The mean AUROC over several foldings, each by the labels that its folds were fitted to."""
        found: dict[str, list[float]] = {form: [] for form in forms}
        for folds in some:
            safe = np.zeros(len(self.safe), dtype=bool)
            for fold in folds:
                safe[fold.train] = fold.safe
            for form, score in self.scores(at, forms, folds).items():
                told = np.isfinite(score)
                found[form].append(float(roc_auc_score(safe[told], score[told])))
        return {form: float(np.mean(values)) for form, values in found.items()}


def _drift(read: Reading, at: int, pictured: States, everywhere: Fold) -> Row:
    moved = (pictured[at] - read.states[at])[read.rows].mean(0)
    vector, _ = read.direction(at, everywhere)
    size = float(np.linalg.norm(moved))
    lengths = size * float(np.linalg.norm(vector))
    return {
        "norm": size,
        "states": float(np.linalg.norm(pictured[at][read.rows], axis=-1).mean()),
        "cosine": float(moved @ vector) / lengths if lengths else 0.0,
    }


def _chosen(
    read: Reading,
    states: Mapping[str, States],
    reference: str,
    cases: AnsweredCases,
    pairs: Int[np.ndarray, "pair 2"],
    estimator: Any,
    layers: Sequence[int],
) -> Row | None:
    """The layer where words order more pairs than the picture on one half of the families, told on the other half.

    On the half that chooses, directions are fitted in folds; those that are told are fitted to the whole of it.
    """
    families = sorted(set(cases.templates[read.rows].tolist()), key=lambda one: hash_key(read.seed, "half", one))
    first = np.isin(cases.templates, families[::2])
    choosing, telling = read.rows[first[read.rows]], read.rows[~first[read.rows]]
    try:
        folds = read.folds(choosing)
    except UserError:
        return None
    both, ahead = {form: states[form] for form in (reference, PICTURE)}, []
    for at in range(len(layers)):
        words, picture = read.scores(at, both, folds).values()
        told = pairs[np.isfinite(words[pairs] + picture[pairs]).all(1)]
        if not len(told):
            return None
        order = [np.sign(one[told[:, 0]] - one[told[:, 1]]).mean() for one in (words, picture)]
        ahead.append(order[0] - order[1])
    best = int(np.argmax(ahead))
    words, picture = read.scores(best, both, [read.fold(choosing, telling)]).values()
    before, _ = estimator.paired_order(pairs, picture)
    after, change = estimator.paired_order(pairs, words, picture)
    if before["value"] is None:
        return None
    return {"layer": layers[best], PICTURE: before, WORDS: after, "change": change}
