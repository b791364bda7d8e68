"""Drift correction: takes off the states what a picture adds to them, so that they lie where words are read.

One family of three published ideas, each with its controls:

- ``mean``: the mean of states with pictures of random colours, less that without a picture (the re-centring of MARS,
  arXiv 2606.31876; its steering afterwards is not here);
- ``caption``: for each case, its state with the picture less that with the model's own caption in the sentence and no
  picture, along the direction of safety (ShiftDC, Zou et al., NeurIPS 2025, arXiv 2502.13095);
- ``map``: the state less what a ridge regression predicts of its state in words (closes the drift of arXiv 2605.18104).

Importing this module loads neither torch nor transformers; learning and generating do.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from interp.errors import UserError
from interp.tensor_file import check_model, write_tensors
from mitigation.method import TrainedFile, Work
from mitigation.validation import (
    check_choice,
    check_count,
    check_layers,
    check_number,
    check_pictured,
    check_seed,
    question_halves,
)
from mitigation.verbalise import DESCRIBES, Verbalise

if TYPE_CHECKING:
    from interp.vlm import VLM, Generation, Prompt

CORRECTIONS = ("mean", "caption", "map")
POSITIONS = ("image", "after", "last")
PARTS = ("whole", "along", "across")
CONTROLS = ("none", "random", "shuffled")
WITHOUT_PICTURE = "a drift is what a picture adds to a state; prompts need one"


@dataclass(frozen=True)
class DriftCorrection:
    """Learns the drift of a model's states on labelled cases, and answers with ``strength`` times of it taken off.

    ``positions``: ``image`` (the image tokens, each by their mean's drift), ``after`` (every token behind the picture,
    the answer's too) or ``last`` (the verdict's and the answer's). ``layers`` are of the residual stream, from 1; of
    several each is fitted with those before it corrected. ``part`` of the drift that is taken off: the ``whole``, its
    component ``along`` the direction of safety, or what is left ``across`` it (None: along for captions, else whole).
    What is None (``positions``, ``layers``, ``strength``) is chosen: the setting with the largest AUROC on teaching
    cases, with all that is fitted fitted to other questions; of layers one.

    The direction of safety comes from text alone: from unsafe to safe cases in words, each with its own caption in its
    sentence. Labels teach that direction and choose; what is subtracted sees none. ``describe`` is who captions, as
    in ``mitigation.verbalise``.

    ``control``: ``random`` subtracts as much in a direction drawn with ``seed``; ``shuffled`` takes another case's
    caption in the sentence. The third control is ``mitigation.threshold.CalibratedShift``: a mean at the verdict is the
    same vector for every case, to first order a constant on the margin.
    """

    correction: str = "mean"
    positions: str | None = None
    layers: Any = None  # a sequence of indices, stored as a tuple; a list in a configuration
    strength: float | None = None
    part: str | None = None
    control: str = "none"
    describe: str = "model"
    description_tokens: int = 64
    seed: int = 0
    drops_image: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_choice("correction", self.correction, CORRECTIONS)
        if self.positions is not None:
            check_choice("positions", self.positions, POSITIONS)
        check_layers(self.layers)
        if self.layers is not None:
            object.__setattr__(self, "layers", tuple(self.layers))
            if 0 in self.layers:
                raise UserError(f"layers={self.layers}; the drift is taken off after a decoder layer; count from 1")
        if self.strength is not None:
            check_number("strength", self.strength)
        if self.part is not None:
            check_choice("part", self.part, PARTS)
        check_choice("control", self.control, CONTROLS)
        if self.control == "shuffled" and self.correction == "mean":
            raise UserError("control=shuffled; the mean drift reads no caption to be shuffled; take control=random")
        check_choice("describe", self.describe, DESCRIBES)
        check_count("description_tokens", self.description_tokens, 1, hint="take 64")
        check_seed(self.seed)

    @property
    def needs_description(self) -> bool:
        """See ``mitigation.method.Abilities``."""
        return self.describe == "oracle"

    @property
    def taken(self) -> str:
        """The part of the drift that is taken off."""
        return self.part or ("along" if self.correction == "caption" else "whole")

    @property
    def words(self) -> Verbalise:
        """What puts a case into words."""
        return Verbalise(describe=self.describe, description_tokens=self.description_tokens)

    def check_cases(self, questions: Sequence[str], safe: Sequence[bool]) -> None:
        """Checks, before any weights load, that these cases can teach it.

        Raises:
            UserError: not both labels in each half of the questions.
        """
        question_halves(questions, safe, self.seed)

    def learn(self, vlm: "VLM", prompts: "Sequence[Prompt]", safe: Sequence[bool], *, out: Path) -> "LearnedDrift":
        """Fits the correction to all cases, at the chosen setting.

        Raises:
            UserError: a prompt without a picture, a family that cannot be asked without one or whose states cannot be
                read, or cases that cannot teach it.
        """
        from mitigation.learned.drift_fitting import learn_drift
        from mitigation.steps import check_words

        check_pictured(prompts, WITHOUT_PICTURE)
        vlm.require("residuals")
        check_words(vlm, "take another method for it")
        tensors, about = learn_drift(vlm, prompts, safe, self)
        write_tensors(out, LearnedDrift.KIND, tensors, about, vlm=vlm, learned_from=prompts)
        return self.read(out)

    def read(self, out: Path) -> "LearnedDrift":
        """Reads what ``learn`` wrote to ``out``.

        Raises:
            UserError: the file belongs to another method.
        """
        return LearnedDrift.of(out, settings=self)


@dataclass(frozen=True)
class LearnedDrift(TrainedFile):
    """A trained ``DriftCorrection`` with those ``settings``.

    ``about`` has the ``positions``, ``layers`` and ``strength`` that it answers with, the AUROC of every setting that
    was tried, the ``plain`` model's on the same cases, that of the ``direction`` on words of other questions, and of
    the drift at each place and layer its ``norm`` beside that of the states, and its ``cosine`` with the direction.
    """

    KIND: ClassVar[str] = "DriftCorrection"
    settings: Any = DriftCorrection()

    @property
    def captioned(self) -> bool:
        """Whether every case is captioned and read in words first."""
        return bool(self.settings.correction == "caption")

    @property
    def needs_description(self) -> bool:
        """See ``mitigation.method.Abilities``."""
        return self.captioned and bool(self.settings.needs_description)

    @property
    def drops_image(self) -> bool:
        """See ``mitigation.method.Abilities``."""
        return self.captioned

    @property
    def work(self) -> Work:
        """See ``mitigation.method.Abilities``."""
        if not self.captioned:
            return Work()
        asked = int(self.settings.describe == "model")
        return Work(prompts=2 + asked, step_tokens=asked * self.settings.description_tokens)

    def generate(self, vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> "Generation":
        """Greedy answers and margins with the drift taken off.

        Raises:
            UserError: it was learned on another model, or a prompt has no picture.
        """
        from interp.hooks.residual import edit_residual
        from mitigation.learned.drift_fitting import DriftEdit, corrections_of, states_in_words
        from mitigation.steps import Steps

        check_pictured(prompts, WITHOUT_PICTURE)
        check_model(vlm, self._vectors, int(self.about["width"]))
        steps, targets = Steps(vlm, len(prompts)), None
        if self.captioned:
            targets = states_in_words(vlm, prompts, self.settings, self.about, steps)
        edit = DriftEdit(corrections_of(self._vectors), float(self.about["strength"]), targets)
        with edit_residual(vlm, edit.edit, layers=self.about["layers"]):
            generation = vlm.generate(prompts, max_new_tokens=max_new_tokens)
        return steps.noted(generation) if self.captioned else generation
