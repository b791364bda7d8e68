"""Mitigations that have to see labelled cases before they can answer. Knows nothing of benchmarks or splits.

What a mitigation is: a value that answers prompts with a model that is passed in.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from interp.vlm import VLM, Generation, Prompt


@runtime_checkable
class Method(Protocol):
    """One arm of a study: a frozen dataclass in a module that imports neither torch nor transformers."""

    def generate(self, vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> "Generation":
        """Answers to ``prompts``, in order, with margins as this arm sees them.

        An answer depends on its prompt (with its key) and the method's settings, not on the others of the batch.
        UserError where the method cannot work on this model or prompt.
        """
        ...


@dataclass(frozen=True)
class Baseline:
    """The model as it is, decoded greedily."""

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
        it has learned from. UserError where these cases cannot teach it, as when one kind is missing.
        """
        ...

    def read(self, out: Path) -> "Method":
        """The method as ``learn`` left it in ``out``; UserError for a file that is not this method's."""
        ...
