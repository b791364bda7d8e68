"""Verbalise, distilled: an adapter whose verdict with the picture is the model's own without it and with its caption.

``mitigation.verbalise`` judges in words: it asks the model for a caption, puts that in the sentence and leaves the
picture out, which takes two more calls a case. Here a LoRA learns that verdict from the picture itself, so that one
forward is left. No label is read; the model is its own teacher (self-distillation, Hinton et al. 2015,
arXiv 1503.02531, eq. 1 without a temperature). Importing this module loads neither torch nor transformers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from interp.errors import UserError
from interp.tensor_file import write_tensors
from mitigation.method import TrainedFile
from mitigation.validation import check_choice, check_count, check_number, check_pictured, check_seed
from mitigation.verbalise import DESCRIBES, Verbalise
from mitigation.vrtuning.method import VRTuning

if TYPE_CHECKING:
    from interp.vlm import VLM, Generation, Prompt

CONTROLS = ("none", "shuffled")
HELD = ("What is in the image?", "Is there {thing} in the image?", "{request}")
WITHOUT_PICTURE = "the adapter learns to judge a picture as its caption is judged; prompts need one"


@dataclass(frozen=True)
class Distillation:
    """Trains a LoRA of ``rank`` by ``steps`` of ``batch_size`` rows, half of them verdicts, half of them held.

    A verdict's target is the model's own distribution with Yes and No shared out as its margin in words says. A held
    row is one of the questions ``held`` about a teaching picture, answered by the model itself: its own distribution
    at every token is the target, with weight ``hold``. ``{thing}`` stands for what a caption names, the picture's own
    or another's by turns, ``{request}`` for what the case asks about. ``describe`` is who captions, as in
    ``mitigation.verbalise``, with at most ``description_tokens``, which bounds the held answers too.

    ``control=shuffled`` takes another case's caption in the sentence.

    Raises:
        UserError: a number outside its range, an unknown name, or no question to hold.
    """

    steps: int = 100
    batch_size: int = 8
    rank: int = 16
    learning_rate: float = 5e-4
    hold: float = 1.0
    held: Any = HELD  # a sequence of questions, stored as a tuple; a list in a configuration
    control: str = "none"
    describe: str = "model"
    description_tokens: int = 24
    seed: int = 0
    drops_image: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "rank", "description_tokens"):
            check_count(name, getattr(self, name), 1)
        check_number("learning_rate", self.learning_rate, 1e-9, 1.0, hint="take 5e-4")
        check_number("hold", self.hold, 0.0, hint="0 lets all other answers go")
        if not self.held or isinstance(self.held, str) or not all(isinstance(one, str) and one for one in self.held):
            raise UserError(f"held={self.held!r}; these are the questions whose answers are held; name one or more")
        object.__setattr__(self, "held", tuple(self.held))
        check_choice("control", self.control, CONTROLS)
        check_choice("describe", self.describe, DESCRIBES)
        check_seed(self.seed)

    @property
    def needs_description(self) -> bool:
        """See ``mitigation.method.Abilities``."""
        return self.describe == "oracle"

    @property
    def words(self) -> Verbalise:
        """What puts a case into words."""
        return Verbalise(describe=self.describe, description_tokens=self.description_tokens)

    def learn(self, vlm: "VLM", prompts: "Sequence[Prompt]", safe: Sequence[bool], *, out: Path) -> "DistilledVerdicts":
        """Trains on all cases; ``safe`` is not read. The adapter's folder lies beside ``out``, in peft's own format.

        Raises:
            UserError: a prompt without a picture, a family that cannot be asked without one, or a training that fails.
        """
        from mitigation.learned.distillation import distil
        from mitigation.steps import check_words

        check_pictured(prompts, WITHOUT_PICTURE)
        check_words(vlm, "take another method for it")
        tensors, about = distil(vlm, prompts, self, out.parent, out.stem.removesuffix(".part"))
        write_tensors(out, DistilledVerdicts.KIND, tensors, about, vlm=vlm, learned_from=prompts)
        return self.read(out)

    def read(self, out: Path) -> "DistilledVerdicts":
        """Reads what ``learn`` wrote to ``out`` and beside it.

        Raises:
            UserError: the file belongs to another method, or its adapter is gone or is another.
        """
        return DistilledVerdicts.of(out, settings=self)


@dataclass(frozen=True)
class DistilledVerdicts(TrainedFile):
    """A trained ``Distillation`` with those ``settings``: one forward a case, as the plain model.

    The file has the ``teacher``'s margins of the teaching cases, in words, beside the model's own (``plain``) and
    those with the adapter (``distilled``). ``about`` has ``folder`` and ``adapter`` (its hash), the ``losses`` and
    ``seconds`` of the training, and how many rows were verdicts and held.
    """

    KIND: ClassVar[str] = "Distillation"
    settings: Any = Distillation()

    @cached_property
    def adapter(self) -> VRTuning:
        """The method that answers: the trained adapter alone.

        Raises:
            UserError: its folder is gone, or holds another adapter.
        """
        folder = self.path.parent / str(self.about["folder"])
        method = VRTuning(str(folder))
        if method.revision != self.about["adapter"]:
            raise UserError(
                f"{folder} holds the adapter {method.revision}; {self.path.name} was written with "
                f"{self.about['adapter']}; delete both and learn it again"
            )
        return method

    def generate(self, vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> "Generation":
        """Greedy answers and margins with the adapter in effect.

        Raises:
            UserError: it was trained on another model, or its folder is gone.
        """
        return self.adapter.generate(vlm, prompts, max_new_tokens=max_new_tokens)
