"""A trained adapter as a method, and an adapter that a run trains first.

Importing this module loads neither torch nor transformers; generating does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from interp.errors import UserError
from mitigation.method import Baseline, abilities
from mitigation.vrtuning.checkpoint import adapter_hash, folder_of
from mitigation.wrappers import unwrapped

if TYPE_CHECKING:
    from interp.vlm import VLM, Generation, Prompt

ORDERS = ("first", "last")
VERDICT_LAST = "its verdict comes after its own reasoning, which a single token does not have"


@dataclass(frozen=True)
class VRTuning:
    """Answers with the adapter in the folder ``adapter`` active, and restores the model afterwards.

    ``inner`` is the method that answers with the adapted model (``VCD``, a prompt; None: greedily). ``answer`` is where
    the adapter puts its verdict. For ``"last"`` the margin is read after the answer's reasoning, at the token of the
    verdict, with ``inner`` applied. It is NaN if there is no verdict. ``revision`` is the adapter's hash, so that
    another adapter at the same path is another method.

    Raises:
        UserError: no adapter in the folder, or an unknown ``answer``.
    """

    adapter: str
    inner: Any = None
    answer: str = "first"
    revision: str = field(init=False, default="")

    def __post_init__(self) -> None:
        if self.answer not in ORDERS:
            raise UserError(f"answer={self.answer!r}; the verdict comes first or last in an answer; choose one")
        if self.inner is not None and not hasattr(self.inner, "generate"):
            raise UserError(f"inner={self.inner!r} is no method; choose one of conf/methods.yaml")
        object.__setattr__(self, "revision", self._revision())

    def _revision(self) -> str:
        return adapter_hash(folder_of(Path(self.adapter)))

    @property
    def unscored(self) -> str:
        """See ``mitigation.method.Abilities``."""
        return VERDICT_LAST if self.answer == "last" else abilities(self.inner).unscored

    @property
    def learned_in(self) -> str:
        """See ``mitigation.method.Abilities``."""
        return str(folder_of(Path(self.adapter)))

    @property
    def wraps(self) -> Any:
        """See ``mitigation.method.Abilities``."""
        return self.inner

    def generate(self, vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> "Generation":
        """See ``Method.generate``.

        Raises:
            UserError: the adapter does not fit this model, or ``inner`` raises it.
        """
        from interp.hooks.forward import replaced
        from mitigation.vrtuning.model import adapted

        inner = Baseline() if self.inner is None else self.inner
        plain = unwrapped(vlm)
        with adapted(plain, folder_of(Path(self.adapter)), self.revision), replaced(plain, "verdict", self.answer):
            generation: Generation = inner.generate(vlm, prompts, max_new_tokens=max_new_tokens)
            return generation


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
