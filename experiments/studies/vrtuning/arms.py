"""An arm whose adapter the run itself trains. Imports neither torch nor transformers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from interp.errors import UserError
from mitigation.vrtuning.method import VRTuning

if TYPE_CHECKING:
    from interp.vlm import VLM, Generation, Prompt


@dataclass(frozen=True)
class NewAdapter(VRTuning):
    """Replaces ``VRTuning`` until there is an adapter: ``adapter`` is a name among the task's ``adapters``."""

    def _revision(self) -> str:
        return ""

    @property
    def learned_in(self) -> str:
        """Check nothing: the training data is compared with the cases before training."""
        return ""

    def trained(self, folder: Path) -> VRTuning:
        """Return the arm with the adapter in ``folder``."""
        return VRTuning(str(folder), inner=self.inner, answer=self.answer)

    def generate(self, vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> "Generation":
        """Refuse to answer: only its task trains the adapter.

        Raises:
            UserError: always.
        """
        raise UserError(
            f"the adapter {self.adapter!r} is not trained; task=vrtuning trains it first; run that task, or give a "
            "saved adapter with method=vrtuning method.adapter=<dir>"
        )


def new_adapters(arms: Mapping[str, Any]) -> dict[str, NewAdapter]:
    """Return the arms that answer with an adapter of this run."""
    return {arm: method for arm, method in arms.items() if isinstance(method, NewAdapter)}
