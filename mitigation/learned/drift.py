"""Drift correction: subtract what a picture adds to the verdict's state, so that it lies where words are read.

Three corrections, each with its controls:

- ``mean``: the mean state with pictures of random colours minus that without a picture (the re-centring of MARS,
  arXiv 2606.31876; its steering afterwards is not here);
- ``caption``: for each case, its state with the picture minus that with the model's caption in the sentence and no
  picture, along the direction of safety (ShiftDC, Zou et al., NeurIPS 2025, arXiv 2502.13095);
- ``map``: the state minus what ridge regression predicts of its state in words (after arXiv 2605.18104).

Importing this module loads neither torch nor transformers; learning and generating do.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from interp.errors import UserError
from interp.tensor_file import check_model, write_tensors
from mitigation.method import (
    TrainedFile,
    Work,
    check_choice,
    check_layer,
    check_number,
    check_pictured,
    check_seed,
    question_halves,
)
from mitigation.steps import Steps
from mitigation.verbalise import DESCRIBES, Verbalise
from mitigation.wrappers import unwrapped

if TYPE_CHECKING:
    from interp.vlm import VLM, Generation, Prompt

WITHOUT_PICTURE = "a drift is what a picture adds to a state; prompts need one"


@dataclass(frozen=True)
class DriftCorrection:
    """Learn the drift of the verdict's state on labelled cases, and answer with ``strength`` times it subtracted.

    The answer's tokens get the verdict's correction. ``layer`` is of the residual stream, from 1; None takes the layer
    with the largest AUROC on teaching cases, with all that is fitted fitted to other questions.

    The direction of safety comes from text: from unsafe to safe cases in words, each with its caption in its sentence.
    Labels teach that direction and choose the layer; what is subtracted sees none. ``describe`` is who captions, as
    in ``mitigation.verbalise``.

    ``control``: ``random`` subtracts as much in a direction drawn with ``seed``; ``shuffled`` takes another case's
    caption. The third control is ``mitigation.threshold.CalibratedShift``: the mean drift is the same vector for every
    case, to first order a constant on the margin.
    """

    correction: str = "mean"
    layer: int | None = None
    strength: float = 1.0
    control: str = "none"
    describe: str = "model"
    seed: int = 0
    drops_image: ClassVar[bool] = True
    follows_margin: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_choice("correction", self.correction, ("mean", "caption", "map"))
        check_layer(self.layer)
        check_number("strength", self.strength)
        check_choice("control", self.control, ("none", "random", "shuffled"))
        if self.control == "shuffled" and self.correction == "mean":
            raise UserError("control=shuffled; the mean drift reads no caption to be shuffled; take control=random")
        check_choice("describe", self.describe, DESCRIBES)
        check_seed(self.seed)

    @property
    def needs_description(self) -> bool:
        """See ``mitigation.method.Abilities``."""
        return self.describe == "oracle"

    @property
    def words(self) -> Verbalise:
        """The method that puts a case into words."""
        return Verbalise(describe=self.describe)

    def check_cases(self, questions: Sequence[str], safe: Sequence[bool]) -> None:
        """Check, before any weights load, that these cases can teach it.

        Raises:
            UserError: not both labels in each half of the questions.
        """
        question_halves(questions, safe, self.seed)

    def learn(self, vlm: "VLM", prompts: "Sequence[Prompt]", safe: Sequence[bool], *, out: Path) -> "LearnedDrift":
        """Fit the correction to all cases, at the chosen layer.

        Raises:
            UserError: a prompt without a picture, a family that cannot be asked without one or whose states cannot be
                read, or cases that cannot teach it.
        """
        from mitigation.learned.state_edits import learn_drift

        check_pictured(prompts, WITHOUT_PICTURE)
        correction, about = learn_drift(vlm, prompts, safe, self)
        tensors = {name: part for name, part in vars(correction).items() if part is not None}
        write_tensors(out, LearnedDrift.KIND, tensors, about, vlm=vlm, learned_from=prompts)
        return self.read(out)

    def read(self, out: Path) -> "LearnedDrift":
        """Read what ``learn`` wrote to ``out``.

        Raises:
            UserError: the file belongs to another method.
        """
        return LearnedDrift.from_file(out, settings=self)


@dataclass(frozen=True)
class LearnedDrift(TrainedFile):
    """A trained ``DriftCorrection`` with those ``settings``.

    ``about`` has the ``layer``, the AUROC of each layer that was tried and of the ``plain`` model on the same cases,
    and the mean drift's ``norm`` and its ``cosine`` with the direction of safety.
    """

    KIND: ClassVar[str] = "DriftCorrection"
    settings: Any = DriftCorrection()

    @property
    def drops_image(self) -> bool:
        """Return whether every case is captioned and read in words first. See ``mitigation.method.Abilities``."""
        return bool(self.settings.correction == "caption")

    @property
    def needs_description(self) -> bool:
        """See ``mitigation.method.Abilities``."""
        return self.drops_image and bool(self.settings.needs_description)

    @property
    def work(self) -> Work:
        """See ``mitigation.method.Abilities``."""
        words = self.settings.words.work
        return Work(1 + words.prompts, step_tokens=words.step_tokens) if self.drops_image else Work()

    def generate(self, vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> "Generation":
        """Answer greedily with the drift subtracted; margins are of these answers.

        Raises:
            UserError: it was learned on another model, or a prompt has no picture.
        """
        from interp.hooks.residual import residuals
        from mitigation.learned.state_edits import Correction, corrected, exchanged

        check_pictured(prompts, WITHOUT_PICTURE)
        correction, layer = Correction(**self._vectors.tensors), int(self.about["layer"])
        check_model(vlm, self._vectors)
        settings, steps, targets = self.settings, Steps(vlm, len(prompts)), None
        if self.drops_image:
            answers = settings.words.descriptions(steps, prompts)
            captions = [answers.get(row, "") for row in range(len(prompts))]
            if settings.control == "shuffled":
                captions = exchanged(captions, prompts, self.about["captions"], settings.seed)
            words = settings.words.in_words(prompts, captions)
            targets = residuals(unwrapped(vlm), words, layers=[layer]).select("verdict", layer)
        with corrected(vlm, correction, layer, settings.strength, targets):
            generation = vlm.generate(prompts, max_new_tokens=max_new_tokens)
        return steps.noted(generation) if self.drops_image else generation
