"""What a mitigation is: a value that answers prompts with a model that is passed in."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from interp.vlm import VLM, Generation, Prompt


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
