"""A mitigation is a value that answers prompts with a model that is passed in.

Some have to see labelled cases first (``TrainableMethod``). What a study has to know of a method before it asks it, the
method declares (``Abilities``). Knows nothing of benchmarks or splits.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

from interp.tensor_file import NamedTensors, read_tensors

if TYPE_CHECKING:
    from interp.vlm import VLM, Generation, Prompt


@runtime_checkable
class Method(Protocol):
    """One arm of a study: a frozen dataclass in a module that imports neither torch nor transformers."""

    def generate(self, vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> "Generation":
        """Answers to ``prompts``, in order, with margins as this arm sees them.

        An answer depends on its prompt (with its key) and the method's settings, not on the others of the batch.

        Raises:
            UserError: the method cannot work on this model or prompt.
        """
        ...


@dataclass(frozen=True)
class Abilities:
    """What a study has to know of a method before it asks it, in the words of the method's own attributes.

    A method declares what differs from these defaults as a class attribute or a property of the same name; a method
    around another one asks ``abilities`` of that.
    """

    unscored: str = ""
    """Why a single token does not give its verdict; empty where it does."""
    yes_no_only: bool = False
    """It works on the margin between Yes and No, which an open answer does not have."""
    by_words: bool = False
    """It asks its model for nothing but ``generate(prompts, max_new_tokens=...)``, so it works over an API."""
    fitted_to: Literal["", "labels", "yes_share"] = ""
    """It finds a constant before it can answer: on the baseline's margins and the right answers (``fit(margins, safe)``
    as of ``CalibratedShift``), or and the share of Yes of the arm under study (``fit(margins, target_yes_share)`` as of
    ``YesBias``)."""


def abilities(method: Any) -> Abilities:
    """What ``method`` declares, with the defaults for what it does not mention."""
    declared: dict[str, Any] = {each.name: getattr(method, each.name, each.default) for each in fields(Abilities)}
    return Abilities(**declared)


@dataclass(frozen=True)
class Baseline:
    """The model as it is, decoded greedily."""

    by_words: ClassVar[bool] = True

    def generate(self, vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> "Generation":
        """See ``VLM.generate``."""
        return vlm.generate(prompts, max_new_tokens=max_new_tokens)


@runtime_checkable
class TrainableMethod(Protocol):
    """A method's settings before it has learned: a frozen dataclass that imports neither torch nor transformers."""

    def learn(self, vlm: "VLM", prompts: "Sequence[Prompt]", safe: Sequence[bool], *, out: Path) -> "Method":
        """The method as learned from ``prompts``, of which ``safe`` says where Yes is right.

        What was learned is written to ``out``, a safetensors file; the method's ``repr`` names it by a digest of its
        content and not by its place, so that equal runs are equal wherever they are. It must not be judged on the cases
        it has learned from.

        Raises:
            UserError: these cases cannot teach it, as when one kind is missing.
        """
        ...

    def read(self, out: Path) -> "Method":
        """The method as ``learn`` left it in ``out``.

        Raises:
            UserError: a file that is not this method's.
        """
        ...


@dataclass(frozen=True)
class TrainedFile:
    """What a trainable method has left in the file ``path``, named in ``repr`` by the ``digest`` of its content."""

    path: Path = field(repr=False, compare=False)
    digest: str
    KIND: ClassVar[str]  # of the file (``interp.tensor_file``)

    @cached_property
    def _vectors(self) -> NamedTensors:
        return read_tensors(self.path, self.KIND)

    @property
    def about(self) -> dict[str, Any]:
        """How it was trained: the cases, and what was chosen on them."""
        return self._vectors.about
