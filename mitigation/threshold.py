"""The control that a contrast has to beat: a constant added to the Yes/No margin moves the threshold, nothing else.

A margin is logit(Yes) − logit(No) at the first answer token; the verdict is Yes where it is above 0. Shifting it leaves
AUROC as it is (specs: metrics, ``calibrated_shift``).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from interp.errors import UserError
from mitigation.validation import check_shift

if TYPE_CHECKING:
    from interp.vlm import VLM, Generation, Prompt


@dataclass(frozen=True)
class ConstantShift:
    """Adds ``shift`` logits to the Yes/No margin of the first answer token: above 0 towards Yes, below 0 towards No."""

    shift: float
    yes_no_only: ClassVar[bool] = True  # an open answer has no such margin

    def __post_init__(self) -> None:
        """UserError unless the shift is a finite number."""
        check_shift(self.shift)

    def generate(self, vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> "Generation":
        """Greedy answers with the shift at the first step, half on each side; the returned margins are shifted too.

        See ``ConstantShiftLogitsProcessor``.
        """
        from mitigation.contrastive.processors import ConstantShiftLogitsProcessor

        yes, no = vlm.answer_ids
        processor = ConstantShiftLogitsProcessor(yes, no, shift=self.shift)
        generation = vlm.generate(prompts, max_new_tokens=max_new_tokens, logits_processor=[processor])
        return replace(generation, margins=generation.margins + self.shift)


@dataclass(frozen=True)
class CalibratedShift:
    """Finds the constant; the answers are ``ConstantShift``'s. It must not be fitted on the cases it is judged on."""

    yes_no_only: ClassVar[bool] = True

    def fit(self, margins: Float[np.ndarray, "case"], safe: Bool[np.ndarray, "case"]) -> ConstantShift:
        """The shift that maximises balanced accuracy.

        That is the mean of the share of safe cases shifted above 0 and the share of unsafe cases that are not.
        ``margins`` are the unshifted ones, in logits; ``safe`` is True where Yes is right. Any threshold between two
        neighbouring margins gives the same verdicts, so the middle of such a gap is taken: of several equally good
        gaps the widest, of several equally wide the one nearest the median margin, then the lower. Where only
        answering alike to every case does as well (at chance), everything is answered No, the threshold one logit
        above the highest margin. All of this moves with the margins: a constant added to them changes the shift by
        exactly minus that constant. UserError if a class is missing, a margin is not finite, or the lengths differ.
        """
        margins = np.asarray(margins, dtype=np.float64)
        safe = np.asarray(safe, dtype=bool)
        _check_cases(margins, safe)
        lower, upper, right = _gaps(margins, safe)
        chance = int(safe.sum()) * int((~safe).sum())
        if not right.size or right.max() < chance:
            return ConstantShift(shift=-float(margins.max() + 1.0))
        width = np.where(right == right.max(), upper - lower, -1.0)
        middle = lower + (upper - lower) / 2
        distance = np.where(width == width.max(), np.abs(middle - np.median(margins)), np.inf)
        chosen = int(np.argmin(distance))  # the first, so the lower, of two that are equally near
        # Neighbouring floats have no middle, and the upper margin must stay above the threshold.
        threshold = middle[chosen] if middle[chosen] < upper[chosen] else lower[chosen]
        return ConstantShift(shift=-float(threshold))


class Gaps(NamedTuple):
    """The thresholds between neighbouring distinct margins, from low to high.

    ``right`` is balanced accuracy times 2·n_safe·n_unsafe, an integer, so that equally good gaps compare equal.
    """

    lower: Float[np.ndarray, "gap"]
    upper: Float[np.ndarray, "gap"]
    right: Int[np.ndarray, "gap"]


def _gaps(margins: Float[np.ndarray, "case"], safe: Bool[np.ndarray, "case"]) -> Gaps:
    values = np.unique(margins)
    n_safe, n_unsafe = int(safe.sum()), int((~safe).sum())
    safe_yes = n_safe - np.searchsorted(np.sort(margins[safe]), values[:-1], side="right")
    unsafe_no = np.searchsorted(np.sort(margins[~safe]), values[:-1], side="right")
    return Gaps(values[:-1], values[1:], safe_yes * n_unsafe + unsafe_no * n_safe)


def _check_cases(margins: Float[np.ndarray, "case"], safe: Bool[np.ndarray, "other"]) -> None:
    if margins.shape != safe.shape:
        raise UserError(f"{margins.size} margins for {safe.size} labels; a shift is fitted on one margin a case")
    if not safe.any() or safe.all():
        raise UserError(
            f"{int(safe.sum())} safe and {int((~safe).sum())} unsafe cases; a shift is fitted on both; take more cases"
        )
    if not np.isfinite(margins).all():
        raise UserError(
            f"{int((~np.isfinite(margins)).sum())} of {margins.size} margins are not finite; leave those cases out"
        )
