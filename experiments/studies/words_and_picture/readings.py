"""What is read of the runs, layer by layer: the thing and the truth, at "this" and at the verdict, in words and beside.

Linear probes, held out by cluster: in the run with the picture, in the run in words (pointing), and *crossed*, fitted
in words and tested with the picture. Without any fit: whether the vocabulary lens names the thing, and whether the
nearest state of another case is that of the same thing.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from experiments.metrics.estimates import Resamples, shown_often
from experiments.studies.words_and_picture.conditions import thing_of
from experiments.types import Sample
from interp.tools.lens import lens_logits
from interp.tools.probes import Probe, probe_balanced

if TYPE_CHECKING:
    from interp.vlm import VLM

PLACES = ("this", "verdict")
THING, TRUTH, NAMED = "thing", "truth", "named"
NEAR, FAR = "near", "far"
PICTURE, WORDS, CROSSED = RUNS = ("picture", "words", "crossed")
States = Float[Tensor, "place layer row width"]
Row = dict[str, Any]


class Readings:
    """The labels of some cases, and the bootstrap of their clusters."""

    def __init__(self, samples: Sequence[Sample], layers: Sequence[int], *, seed: int, draws: int) -> None:
        self.layers, self.seed = list(layers), seed
        self.things = np.array([thing_of(sample).concept for sample in samples])
        self.clusters = np.array([sample.cluster for sample in samples])
        self.safe = np.array([sample.gold == "yes" for sample in samples])
        self.template = np.array([sample.tags.get("template", "") for sample in samples])
        self.request = np.unique([sample.text for sample in samples], return_inverse=True)[1]
        self.kept = shown_often(self.things, self.clusters)
        self.estimator = Resamples.of_names(self.clusters, draws=draws, seed=seed)

    def probes(self, states: States, run: str = PICTURE, *, tested: States | None = None) -> list[Row]:
        """A row a quantity, place and layer: the thing and the truth (safe or not), at "this" and at the verdict.

        The *thing* is read with balanced accuracy among the classes with enough cases, beside the same for shuffled
        labels (``control``); the *truth* with AUROC, its fitting cases balanced within template and thing. No case is
        read by a probe that saw its cluster. With ``tested``, states of the same cases, the probe is fitted on
        ``states`` and tested on these; of both the mean over cases is taken away first, so that a shift that all cases
        share does no harm.
        """
        if tested is not None:
            states, tested = (some - some.mean(2, keepdim=True) for some in (states, tested))
        rows = []
        for at, place in enumerate(PLACES):
            here, there = states[at], None if tested is None else tested[at]
            rows += self.thing(here, place, run, tested=there)
            truth = probe_balanced(here, self.safe, self.clusters, balance=[self.template, self.things], tested=there,
                           seed=self.seed)  # fmt: skip
            rows += self._read(truth, TRUTH, place, run)
        return rows

    def thing(
        self, states: Float[Tensor, "layer row width"], place: str, run: str, *,
        tested: Float[Tensor, "layer row width"] | None = None,
    ) -> list[Row]:  # fmt: skip
        """The rows of the thing at one place."""
        other = None if tested is None else tested[:, self.kept]
        found = probe_balanced(states[:, self.kept], self.things[self.kept], self.clusters[self.kept], tested=other,
                       seed=self.seed)  # fmt: skip
        return self._read(found, THING, place, run)

    def named(self, vlm: "VLM", states: States, run: str) -> list[Row]:
        """A row a place and layer: balanced accuracy of the likeliest of the things' nouns by the vocabulary lens.

        Of a noun's logit (its first token's) the mean over all cases is taken away, which says how likely the noun is
        anywhere. Chance is one of ``classes``.
        """
        names = sorted(set(self.things[self.kept].tolist()))
        if not names:
            return []
        tokens = [vlm.tokenizer(f" {name}", add_special_tokens=False).input_ids[0] for name in names]
        rows = []
        for place, by_layer in zip(PLACES, states, strict=True):
            for layer, hidden in zip(self.layers, by_layer, strict=True):
                logits = lens_logits(vlm, hidden, tokens).double().numpy()
                guess = (logits - logits.mean(0)).argmax(1)
                rows.append(self._row(NAMED, place, run, layer, len(names)) | self._accuracy(guess[self.kept]))
        return rows

    def neighbours(self, states: States, run: str) -> list[Row]:
        """A row a place, layer and side: how often the nearest state of another case is one of the same thing.

        ``NEAR`` looks among the same sentence in other words around it (wrappers), where the thing is there at all,
        ``FAR`` among all other sentences. Of each state the mean over its request's cases is taken away. A thing that
        is written in one form for all sentences is found on both sides, one whose form belongs to the sentence on
        ``NEAR`` alone. ``control`` is what a case drawn at random would show.
        """
        members = self.request == self.request[:, None]
        known = (members & (self.things != self.things[:, None])).any(1)  # a request with one thing has no direction
        same = self.template == self.template[:, None]
        rows = []
        for side, among in ((NEAR, same & ~members), (FAR, ~same)):
            among = among & known & known[:, None]
            alike = among & (self.things == self.things[:, None])
            used = (alike if side == NEAR else among).any(1)
            chance = float((alike[used].sum(1) / among[used].sum(1)).mean()) if used.any() else None
            for place, by_layer in zip(PLACES, states, strict=True):
                for layer, hidden in zip(self.layers, by_layer, strict=True):
                    row = self._row(side, place, run, layer, 0) | {"n": int(used.sum()), "control": chance}
                    rows.append(row | (self._nearest(hidden, members, among, used) if used.any() else {}))
        return rows

    def _nearest(
        self, hidden: Float[Tensor, "row width"], members: np.ndarray, among: np.ndarray, used: np.ndarray
    ) -> Row:
        values = hidden.double().numpy()
        apart = values - members @ values / members.sum(1, keepdims=True)
        squares = (apart**2).sum(1)
        distance = np.where(among, squares - 2 * apart @ apart.T, np.inf)  # + squares[:, None]: the same for all
        return self.estimator.mean((self.things[distance.argmin(1)] == self.things).astype(float), used)

    def _read(self, found: Probe, quantity: str, place: str, run: str) -> list[Row]:
        """A probe's rows; of what it could not read ``value`` is None and ``reason`` says why."""
        rows = []
        layers = self.layers if len(self.layers) == len(found.accuracy) else self.layers[-len(found.accuracy) :]
        for index, layer in enumerate(layers):
            row = self._row(quantity, place, run, layer, len(found.classes)) | {"reason": found.reason}
            rows.append(row)
            if found.reason is not None:
                continue
            if quantity == TRUTH:
                row |= self.estimator.auroc(found.score[index], self.safe)
            else:
                row |= self._accuracy(found.predicted[index]) | {"control": float(found.control[index])}
        return rows

    def _row(self, quantity: str, place: str, run: str, layer: int, classes: int) -> Row:
        clusters = self.estimator.bootstrap.clusters(self.kept)
        return {"run": run, "quantity": quantity, "place": place, "layer": layer, "classes": classes,
                "n": int(self.kept.sum()), "clusters": clusters, "value": None, "low": None, "high": None,
                "control": None, "reason": None}  # fmt: skip

    def _accuracy(self, guess: np.ndarray) -> Row:
        """Balanced accuracy of the things guessed of the kept cases, by their sorted names' numbers."""
        return self.estimator.balanced_accuracy(guess, self.things[self.kept], self.kept)
