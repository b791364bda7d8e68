"""Any method with a threshold of its own choosing: a constant on the Yes/No margin that the method arrives at.

Methods with a field ``shift`` answer through ``with_shift``; ``Shifted`` does the same around any other, such as VCD.
Importing this module loads neither torch nor transformers; generating does.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

from interp.errors import UserError
from mitigation.asked import AskedVLM
from mitigation.controls import Sampled
from mitigation.ranges import check_shift

if TYPE_CHECKING:
    from interp.vlm import VLM, Generation, Prompt


@dataclass(frozen=True)
class Shifted:
    """``method`` with ``shift`` logits added to its Yes/No margin at the first answer token, half on each side.

    The verdict then follows the returned margin: where the method's likeliest first token is an answer, a plausibility
    cutoff does not hold between the two answers, also at a shift of 0. ``Shifted(Baseline(), s)`` is
    ``ConstantShift(s)``. To draw tokens, sample the shifted method: ``Sampled(Shifted(method, shift))``.
    """

    method: Any  # a Method; the type of a Hydra node that is built by itself
    shift: float = 0.0
    yes_no_only: ClassVar[bool] = True  # an open answer has no such margin

    def __post_init__(self) -> None:
        """UserError unless the shift is a finite number and the method one that can be shifted."""
        check_shift(self.shift)
        if not callable(getattr(self.method, "generate", None)) or isinstance(self.method, Sampled):
            raise UserError(
                f"method={self.method!r}; what is shifted is a method such as VCD(), before its tokens are drawn; name "
                "one, and sample the shifted one"
            )

    def generate(self, vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> "Generation":
        """The method's answers with the shift; margins are the method's plus ``shift``. UserError as ``with_shift``."""
        return with_shift(
            vlm, self.shift, lambda shifting: self.method.generate(shifting, prompts, max_new_tokens=max_new_tokens)
        )


def with_shift(vlm: "VLM", shift: float, answer: "Callable[[VLM], Generation]") -> "Generation":
    """What ``answer`` gives for a VLM whose ``generate`` shifts the first token's scores, as ``Shifted`` says.

    Raises:
        UserError: ``answer`` does not go through ``vlm.generate``, or knows no margins (a lazy branch).
    """
    shifting = _ShiftingVLM(vlm, shift)
    generation = answer(cast("VLM", shifting))
    if not shifting.asked:
        raise UserError(
            "the method decodes in a loop of its own, whose scores cannot be shifted; shift a method that answers "
            "through vlm.generate"
        )
    if bool(generation.margins.isnan().any()):
        raise UserError(
            "the method knows no margins to shift (branch=lazy leaves the second branch out); take branch=sequential"
        )
    return replace(generation, margins=generation.margins + shift)


class _ShiftingVLM(AskedVLM):
    """Shifts the first token's scores."""

    def __init__(self, vlm: "VLM", shift: float) -> None:
        super().__init__(vlm)
        self._shift = shift

    def added(self, prompts: "Sequence[Prompt]", encoded: Mapping[str, Any], own: Sequence[Any]) -> list[Any]:
        from mitigation.verdict import VerdictShiftLogitsProcessor

        return [VerdictShiftLogitsProcessor(self._vlm.answer_ids, shift=self._shift, after=own)]
