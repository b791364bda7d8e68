"""Activation steering along a direction learned from labelled cases (activation addition, arXiv 2308.10248;
contrastive, arXiv 2312.06681).

Importing this module loads neither torch nor transformers; learning and generating do.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from interp.tensor_file import digest_of
from mitigation.method import check_choice, check_layer, check_number, check_seed, check_teaches

if TYPE_CHECKING:
    from torch import Tensor

    from interp.device_copies import Copies
    from interp.hooks.residual import LayerStates
    from interp.tools.directions import Direction
    from interp.vlm import VLM, Generation, Prompt

KINDS = ("mean_difference", "discriminant")
TOWARDS = ("safe", "yes")
COLUMNS = ("answer", "prompt", "all")


@dataclass(frozen=True)
class DirectionSteering:
    """Learns a direction at the verdict, and adds it, scaled by ``strength``, at one ``layer`` of the residual stream.

    ``towards`` ``safe`` points from unsafe to safe cases (the truth), ``yes`` from those that the model calls unsafe to
    those that it calls safe (its own verdict). ``kind`` is how the direction is fitted (``interp.tools.directions``).
    ``layer`` None selects the layer with the best accuracy on held-out questions. A strength of 1 is the distance
    between the two class means along the direction, so that strengths are comparable across models; 0 changes nothing.
    ``columns`` are those that the direction is added at: ``answer`` (the verdict and all generated tokens), ``prompt``,
    or ``all``.

    Every case gets the same vector: to first order a constant on the margin, like ``ConstantShift``. The AUROC shows
    whether it does more.
    """

    strength: float = 1.0
    towards: str = "safe"
    kind: str = "mean_difference"
    columns: str = "answer"
    layer: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice("towards", self.towards, TOWARDS)
        check_choice("kind", self.kind, KINDS)
        check_layer(self.layer)
        check_seed(self.seed)
        LearnedSteering(Path(), "", self.strength, self.columns)

    @property
    def follows_margin(self) -> bool:
        """See ``mitigation.method.Abilities``."""
        return self.towards == "yes"

    def check_cases(self, questions: Sequence[str], safe: Sequence[bool]) -> None:
        """Check, before any weights load, that these cases can teach it; of its own verdicts that is not known yet.

        Raises:
            UserError: too few of a class, or of different texts.
        """
        if self.towards == "safe":
            check_teaches(questions, safe, seed=self.seed)

    def learn(self, vlm: "VLM", prompts: "Sequence[Prompt]", safe: Sequence[bool], *, out: Path) -> "LearnedSteering":
        """Fit the direction on all cases, at the chosen layer.

        Raises:
            UserError: one of the two classes is missing.
        """
        from interp.hooks.residual import last_layer, residuals
        from interp.tools.directions import fit_direction, save_directions

        layers = tuple(range(1, last_layer(vlm) + 1)) if self.layer is None else (self.layer,)
        read = residuals(vlm, prompts, layers=layers)
        labels = list(safe) if self.towards == "safe" else says_yes(vlm, prompts)
        questions = [prompt.text for prompt in prompts]
        fitted = [
            fit_direction(
                read.select("verdict", layer), labels, questions, name=self.towards, position="verdict", layer=layer,
                kind=self.kind, seed=self.seed,
            )
            for layer in layers
        ]  # fmt: skip
        save_directions(out, [max(fitted, key=lambda direction: direction.auroc)], vlm=vlm, learned_from=prompts)
        return self.read(out)

    def read(self, out: Path) -> "LearnedSteering":
        """Read what ``learn`` wrote to ``out``.

        Raises:
            UserError: the file does not exist.
        """
        return LearnedSteering(out, digest_of(out), self.strength, self.columns)


@dataclass(frozen=True)
class LearnedSteering:
    """A trained ``DirectionSteering``. ``digest`` is the hash of the file ``path``."""

    path: Path = field(repr=False, compare=False)
    digest: str
    strength: float = 1.0
    columns: str = "answer"

    def __post_init__(self) -> None:
        check_number("strength", self.strength)
        check_choice("columns", self.columns, COLUMNS)

    @property
    def learned_in(self) -> str:
        """See ``mitigation.method.Abilities``."""
        return str(self.path)

    def direction(self, vlm: "VLM") -> "Direction":
        """Return the learned direction.

        Raises:
            UserError: it was learned on another model.
        """
        from interp.tools.directions import load_directions

        return load_directions(self.path, vlm=vlm)[0]

    def generate(self, vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> "Generation":
        """Greedy answers and margins of the steered model.

        Raises:
            UserError: it was learned on another model.
        """
        from interp.device_copies import Copies
        from interp.hooks.residual import edit_residual

        direction = self.direction(vlm)
        added = Copies(self.strength * direction.gap * direction.vector)
        with edit_residual(vlm, partial(self._steered, added=added), layers=[direction.layer]):
            return vlm.generate(prompts, max_new_tokens=max_new_tokens)

    def _steered(self, here: "LayerStates", added: "Copies") -> "Tensor":
        vector = added.like(here.hidden)
        if self.columns == "all":
            return here.hidden + vector
        answer = here.indices("verdict", "generated")
        if self.columns == "prompt":
            edited = here.hidden + vector
            edited[answer] = here.hidden[answer]
        else:
            edited = here.hidden.clone()
            edited[answer] += vector
        return edited


def says_yes(vlm: "VLM", prompts: "Sequence[Prompt]") -> list[bool]:
    """Return whether the model's own margin is above 0, for each prompt."""
    return [margin > 0 for margin in vlm.batches.scores(prompts).tolist()]
