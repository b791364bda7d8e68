"""Ablation of the direction of "unsafe", with its controls.

After Arditi et al. 2024, "Refusal in Language Models Is Mediated by a Single Direction", arXiv 2406.11717. Importing
this module loads neither torch nor transformers; learning and generating do.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from interp.tensor_file import check_model, write_tensors
from mitigation.learned.activation_steering import says_yes
from mitigation.method import TrainedFile, check_choice, check_layer, check_seed, check_teaches

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from interp.vlm import VLM, Generation, Prompt

BY = ("verdict", "truth")
TO = ("zero", "safe")
DEEPEST = 0.8  # share of the layers: Arditi et al. skip the last fifth, which represents the output tokens
CHOOSING_CASES = 128


@dataclass(frozen=True)
class AblateDirection:
    """Learn the direction from cases called safe to cases called unsafe, and answer without it.

    The direction is the difference of means at the verdict's column. It is between the cases that the model itself
    calls unsafe and those that it calls safe (``by`` verdict), or between unsafe and safe cases (``by`` truth).
    It is taken at ``layer``, or else at the layer of the first four fifths whose removal raises the margin of cases
    called unsafe the most. Arditi et al.'s second criterion, unchanged harmless answers, is not applied; the tables
    report it. ``shuffle`` permutes the labels with this seed: the control for the effect of any such direction.

    ``to`` zero is the published ablation: the component is removed from every state, at every position and layer. Zero
    may lie far outside the range of the states. ``to`` safe instead sets the component at the verdict and at generated
    tokens to the mean of the cases called safe, layer by layer (arXiv 2411.09003).
    """

    by: str = "verdict"
    to: str = "zero"
    layer: int | None = None
    shuffle: int | None = None
    follows_margin: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_choice("by", self.by, BY)
        check_choice("to", self.to, TO)
        check_layer(self.layer)
        if self.shuffle is not None:
            check_seed(self.shuffle)

    def check_cases(self, questions: Sequence[str], safe: Sequence[bool]) -> None:
        """Checks, before any weights load, that these cases can teach it; of its own verdicts that is not known yet.

        Raises:
            UserError: too few of a class, or of different texts.
        """
        if self.by == "truth":
            check_teaches(questions, safe, seed=0)

    def learn(self, vlm: "VLM", prompts: "Sequence[Prompt]", safe: Sequence[bool], *, out: Path) -> "LearnedAblation":
        """Fit the direction on all cases, at the best layer.

        Raises:
            UserError: one of the two classes is missing.
        """
        from interp.hooks.residual import last_layer, residuals
        from interp.tools.directions import fit_direction

        last = last_layer(vlm)
        layers = tuple(range(1, max(1, int(DEEPEST * last)) + 1)) if self.layer is None else (self.layer,)
        unsafe = [not yes for yes in (says_yes(vlm, prompts) if self.by == "verdict" else safe)]
        suspects = [prompt for prompt, label in zip(prompts, unsafe, strict=True) if label]
        if self.shuffle is not None:
            random.Random(self.shuffle).shuffle(unsafe)
        read = residuals(vlm, prompts, layers=range(1, last + 1))
        questions = [prompt.text for prompt in prompts]
        fitted = [
            fit_direction(
                read.select("verdict", layer), unsafe, questions, name="unsafe", position="verdict", layer=layer
            )
            for layer in layers
        ]
        suspects = suspects[:: max(1, len(suspects) // CHOOSING_CASES)]
        chosen = max(fitted, key=lambda direction: _bypass(vlm, suspects, direction.vector))
        calm = [row for row, label in enumerate(unsafe) if not label]
        levels = (read.values[0][:, calm] @ chosen.vector).mean(1)
        about = {name: getattr(chosen, name) for name in ("auroc", "gap", "n", "positives")} | {"layer": chosen.layer}
        tensors = {"vector": chosen.vector, "levels": levels}
        write_tensors(out, LearnedAblation.KIND, tensors, about, vlm=vlm, learned_from=prompts)
        return self.read(out)

    def read(self, out: Path) -> "LearnedAblation":
        """Read what ``learn`` wrote to ``out``.

        Raises:
            UserError: the file belongs to another method.
        """
        return LearnedAblation.from_file(out, to=self.to)


@dataclass(frozen=True)
class LearnedAblation(TrainedFile):
    """A trained ``AblateDirection``.

    ``about`` holds ``layer``, ``n``, ``positives``, the held-out ``auroc`` and the ``gap`` between the means.
    """

    KIND: ClassVar[str] = "AblateDirection"
    to: str = "zero"

    def direction(self, vlm: "VLM") -> "Float[Tensor, ' width']":
        """Return the unit vector.

        Raises:
            UserError: it was learned on another model.
        """
        vector = self._vectors.tensors["vector"]
        check_model(vlm, self._vectors)
        return vector

    def generate(self, vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> "Generation":
        """Greedy answers and margins without the direction.

        Raises:
            UserError: it was learned on another model.
        """
        from mitigation.learned.state_edits import levelled, projected

        direction = self.direction(vlm)
        levels = self._vectors.tensors["levels"]
        with projected(vlm, direction) if self.to == "zero" else levelled(vlm, direction, levels):
            return vlm.generate(prompts, max_new_tokens=max_new_tokens)


@dataclass(frozen=True)
class AblateRandom:
    """The control: projects out a direction drawn uniformly from the sphere with ``seed``."""

    seed: int = 0

    def __post_init__(self) -> None:
        check_seed(self.seed)

    def generate(self, vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> "Generation":
        """Greedy answers and margins without the drawn direction."""
        import torch

        from mitigation.learned.state_edits import projected

        width = vlm.model.config.get_text_config().hidden_size
        drawn = torch.randn(width, generator=torch.Generator().manual_seed(self.seed))
        with projected(vlm, drawn):
            return vlm.generate(prompts, max_new_tokens=max_new_tokens)


def _bypass(vlm: "VLM", prompts: "Sequence[Prompt]", direction: "Tensor") -> float:
    """Return the mean margin of ``prompts`` without the direction: high if cases called unsafe are then called safe."""
    from mitigation.learned.state_edits import projected

    with projected(vlm, direction):
        return float(vlm.batches.scores(prompts).double().mean())
