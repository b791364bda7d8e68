"""An arm whose adapter the run itself trains. Imports neither torch nor transformers."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from interp.errors import UserError
from mitigation.method import abilities
from mitigation.vrtuning.method import ORDERS, VERDICT_LAST, VRTuning

if TYPE_CHECKING:
    from interp.vlm import VLM, Generation, Prompt


@dataclass(frozen=True)
class NewAdapter:
    """Stands for ``VRTuning`` until there is an adapter: ``adapter`` is a name among the task's ``adapters``.

    ``inner`` and ``answer`` are those of ``VRTuning``.
    """

    adapter: str
    inner: Any = None
    answer: str = "first"

    def __post_init__(self) -> None:
        if self.answer not in ORDERS:
            raise UserError(f"answer={self.answer!r}; the verdict comes first or last in an answer; choose one")

    @property
    def unscored(self) -> str:
        """As of the arm once it is trained."""
        return VERDICT_LAST if self.answer == "last" else abilities(self.inner).unscored

    @property
    def wraps(self) -> Any:
        """See ``mitigation.method.Abilities``."""
        return self.inner

    def trained(self, folder: Path) -> VRTuning:
        """The arm as it answers, with the adapter in ``folder``."""
        return VRTuning(str(folder), inner=self.inner, answer=self.answer)

    def generate(self, vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> "Generation":
        """Refuses: without the task that trains it there is nothing to answer with.

        Raises:
            UserError: always.
        """
        raise UserError(
            f"the adapter {self.adapter!r} is not trained; task=vrtuning trains it first; run that task, or give a "
            "saved adapter with method=vrtuning method.adapter=<dir>"
        )
