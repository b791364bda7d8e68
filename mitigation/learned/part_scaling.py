"""Part scaling: what a few heads and MLPs write at the verdict, taken further from its mean or brought back to it.

The parts are those that carry the picture, or the sentence, in the cases that teach it (attribution patching, Nanda;
Syed et al., arXiv 2310.10348; ``interp.part_attribution``). A part's output o becomes mean + strength · (o − mean): a
strength above 1 turns the picture up, 0 replaces what the sentence wrote by its mean over sentences (mean ablation).
An experiment that may fail: random parts are its control. Importing this module loads neither torch nor transformers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from interp.errors import UserError
from interp.tensor_file import check_model, write_tensors
from mitigation.method import TrainedFile
from mitigation.validation import check_choice, check_count, check_number, check_seed

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from interp.hooks.residual import LayerStates
    from interp.tools.part_effects import Part
    from interp.vlm import VLM, Generation, Prompt

CARRIES = ("picture", "sentence")
STRENGTHS = {"picture": (1.5, 2.0, 3.0), "sentence": (0.0, 0.25, 0.5)}
PAIRS = 96  # of prompts that the parts are found on, at most
FOLDS = 2


@dataclass(frozen=True)
class PartScaling:
    """Finds ``parts`` heads and MLPs that carry the picture or the sentence, and scales what they write at the verdict.

    The picture's are found on pairs of teaching cases with one question, one safe and one unsafe; the sentence's on one
    picture under two of their questions. ``strength`` None takes the one of ``STRENGTHS`` with the largest AUROC on
    teaching cases, with parts found on other questions than those it is measured on. ``random`` takes other parts of
    the same kinds, as far as possible in the same layers, and chooses the strength for these: the control.
    """

    carries: str = "picture"
    parts: int = 4
    strength: float | None = None
    random: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice("carries", self.carries, CARRIES)
        check_count("parts", self.parts, 1)
        if self.strength is not None:
            check_number("strength", self.strength)
        check_seed(self.seed)

    def check_cases(self, questions: Sequence[str], safe: Sequence[bool]) -> None:
        """Checks, before any weights load, that there are pairs to find the parts on.

        Raises:
            UserError: fewer than two questions with a safe and an unsafe case.
        """
        _pairs(questions, safe, self.seed)

    def learn(self, vlm: "VLM", prompts: "Sequence[Prompt]", safe: Sequence[bool], *, out: Path) -> "LearnedScaling":
        """Finds the parts, their mean outputs over all prompts, and the strength.

        Raises:
            UserError: fewer than two questions with a safe and an unsafe case, or a place that the model does not have.
        """
        import numpy as np

        from interp.tools.part_effects import part_attribution

        pairs = _pairs([prompt.text for prompt in prompts], safe, self.seed)
        folds = np.array([fold for *_, fold in pairs])
        unsafe, other = self._prompts(prompts, pairs)
        effects = part_attribution(vlm, unsafe, other, place="verdict")
        if 2 * self.parts > len(effects.parts):
            raise UserError(
                f"parts={self.parts} of the {len(effects.parts)} of {vlm.name}; at most half, so that as many others "
                "can be their control"
            )
        moved, gap = effects.moved[0].double().numpy(), effects.gap[0].double().numpy()

        def best(rows: "np.ndarray") -> "list[Part]":
            slopes = (moved[:, rows] * gap[rows]).sum(1)
            order = np.argsort(-slopes, kind="stable")[: self.parts].tolist()
            return self._of([effects.parts[at] for at in order], effects.parts)

        chosen = best(np.ones(len(pairs), dtype=bool))
        by_fold = [best(folds != fold) for fold in range(FOLDS)]
        means = _means(vlm, prompts, {*chosen, *(part for parts in by_fold for part in parts)})
        strength, found = self.strength, {}
        if strength is None:
            found = self._aurocs(vlm, prompts, safe, pairs, by_fold, means)
            strength = max(found, key=lambda one: found[one])
        about = {"parts": [list(part) for part in chosen], "strength": strength, "n": len(prompts),
                 "pairs": len(pairs), "carries": self.carries, "random": self.random,
                 "width": int(vlm.model.config.get_text_config().hidden_size),
                 "auroc": {str(one): value for one, value in found.items()}}  # fmt: skip
        tensors = {str(part): means[part] for part in chosen}
        write_tensors(out, LearnedScaling.KIND, tensors, about, vlm=vlm, learned_from=prompts)
        return self.read(out)

    def read(self, out: Path) -> "LearnedScaling":
        """Reads what ``learn`` wrote to ``out``.

        Raises:
            UserError: the file belongs to another method.
        """
        return LearnedScaling.of(out)

    def _prompts(
        self, prompts: "Sequence[Prompt]", pairs: "Sequence[tuple[int, int, int]]"
    ) -> "tuple[list[Prompt], list[Prompt]]":
        """The prompts of the pairs, and what each is compared with: another picture, or another question."""
        clean = [prompts[unsafe] for unsafe, *_ in pairs]
        if self.carries == "picture":
            return clean, [prompts[safe] for _, safe, _ in pairs]
        texts = {fold: list(dict.fromkeys(clean[at].text for at, (*_, own) in enumerate(pairs) if own == fold))
                 for fold in range(FOLDS)}  # fmt: skip
        after = {text: own[(at + 1) % len(own)] for own in texts.values() for at, text in enumerate(own)}
        return clean, [replace(one, text=after[one.text], key=f"{one.key} with another question") for one in clean]

    def _of(self, carriers: "list[Part]", every: "Sequence[Part]") -> "list[Part]":
        """The carriers, or random parts in their place."""
        if not self.random:
            return carriers
        import numpy as np

        from interp.tools.part_effects import random_alike

        drawn = random_alike(every, [every.index(part) for part in carriers], np.random.default_rng(self.seed))
        return [every[at] for at in drawn]

    def _aurocs(
        self,
        vlm: "VLM",
        prompts: "Sequence[Prompt]",
        safe: Sequence[bool],
        pairs: "Sequence[tuple[int, int, int]]",
        by_fold: "Sequence[Sequence[Part]]",
        means: "dict[Part, Tensor]",
    ) -> dict[float, float]:
        """By strength the mean AUROC of the folds, each with the parts of the other."""
        from sklearn.metrics import roc_auc_score

        found = {}
        for strength in STRENGTHS[self.carries]:
            values = []
            for fold, parts in enumerate(by_fold):
                held_out = [at for unsafe, other, own in pairs if own == fold for at in (unsafe, other)]
                with scaled(vlm, {part: means[part] for part in parts}, strength):
                    margins = vlm.batches.scores([prompts[at] for at in held_out])
                values.append(float(roc_auc_score([safe[at] for at in held_out], margins.tolist())))
            found[strength] = sum(values) / len(values)
        return found


@dataclass(frozen=True)
class LearnedScaling(TrainedFile):
    """A trained ``PartScaling``; ``about`` has its parts, strength, and the AUROC on teaching cases by strength."""

    KIND: ClassVar[str] = "PartScaling"

    def generate(self, vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> "Generation":
        """Greedy answers and margins with the parts scaled at the verdict and in every token after it.

        Raises:
            UserError: it was learned on another model.
        """
        from interp.tools.part_effects import Part

        check_model(vlm, self._vectors, int(self.about["width"]))
        means = {Part(*part): self._vectors.tensors[str(Part(*part))] for part in self.about["parts"]}
        with scaled(vlm, means, float(self.about["strength"])):
            return vlm.generate(prompts, max_new_tokens=max_new_tokens)


def scaled(vlm: "VLM", means: "dict[Part, Tensor]", strength: float) -> Any:
    """A context in which each part's output o at the verdict and after is its mean + ``strength`` · (o − mean)."""
    from contextlib import ExitStack

    from interp.hooks.sublayers import edit_activations

    def edit(here: "LayerStates", kind: str) -> "Tensor":
        hidden, where = here.hidden.clone(), here.at("verdict", "generated")
        for part, mean in means.items():
            if (part.kind, part.layer) != (kind, here.layer):
                continue
            at = where if part.head is None else (*where, part.head)
            centre = mean.to(hidden)
            hidden[at] = centre + strength * (hidden[at] - centre)
        return hidden

    stack = ExitStack()
    for kind in sorted({part.kind for part in means}):
        layers = sorted({part.layer for part in means if part.kind == kind})
        stack.enter_context(edit_activations(vlm, partial(edit, kind=kind), what=kind, layers=layers))
    return stack


def _means(vlm: "VLM", prompts: "Sequence[Prompt]", parts: "set[Part]") -> "dict[Part, Tensor]":
    """The mean output of each part at the verdict."""
    from interp.hooks.sublayers import activations

    found = {}
    for kind in sorted({part.kind for part in parts}):
        layers = sorted({part.layer for part in parts if part.kind == kind})
        values = activations(vlm, prompts, what=kind, layers=layers).values[0]
        for part in parts:
            if part.kind == kind:
                mean = values[layers.index(part.layer)].mean(0)
                found[part] = mean if part.head is None else mean[part.head]
    return found


def _pairs(questions: Sequence[str], safe: Sequence[bool], seed: int) -> list[tuple[int, int, int]]:
    """Places of an unsafe and a safe case of one question, and the question's fold; questions take turns."""
    import random

    members: dict[str, tuple[list[int], list[int]]] = {}
    for at, (question, is_safe) in enumerate(zip(questions, safe, strict=True)):
        members.setdefault(question, ([], []))[is_safe].append(at)
    both = [one for one in members.values() if all(one)]
    if len(both) < FOLDS:
        raise UserError(
            f"{len(both)} questions with a safe and an unsafe case; parts are found on pairs of such cases, half of "
            "the questions at a time; teach it with a benchmark of pairs, such as iconworld"
        )
    random.Random(seed).shuffle(both)
    turns = max(min(len(unsafe), len(other)) for unsafe, other in both)
    found = [
        (unsafe[turn], other[turn], number % FOLDS)
        for turn in range(turns)
        for number, (unsafe, other) in enumerate(both)
        if turn < min(len(unsafe), len(other))
    ]
    return found[:PAIRS]
