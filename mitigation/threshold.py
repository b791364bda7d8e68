"""A constant on the Yes/No margin: the control that a contrast has to beat, and every rule that picks such a constant.

A margin is logit(Yes) − logit(No) at the first answer token; the verdict is Yes where it is above 0. A constant moves
the threshold and nothing else, so AUROC stays as it is (``calibrated_shift`` in ``docs/metrics.md``). The rules are
pure functions over arrays: ``balanced_shift`` (CalibratedShift), ``matching_shift`` (YesBias), and
``candidate_shifts`` with ``best_admissible`` (the study of mitigations, which asks for unsafe accuracy to be kept).
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
        from mitigation.processors import ConstantShiftLogitsProcessor

        yes, no = vlm.answer_ids
        processor = ConstantShiftLogitsProcessor(yes, no, shift=self.shift)
        generation = vlm.generate(prompts, max_new_tokens=max_new_tokens, logits_processor=[processor])
        return replace(generation, margins=generation.margins + self.shift)


@dataclass(frozen=True)
class CalibratedShift:
    """Finds the constant; the answers are ``ConstantShift``'s. It must not be fitted on the cases it is judged on."""

    yes_no_only: ClassVar[bool] = True
    fitted_to: ClassVar[str] = "labels"

    def fit(self, margins: Float[np.ndarray, "case"], safe: Bool[np.ndarray, "case"]) -> ConstantShift:
        """See ``balanced_shift``."""
        return ConstantShift(balanced_shift(margins, safe))


def balanced_shift(margins: Float[np.ndarray, "case"], safe: Bool[np.ndarray, "case"]) -> float:
    """The shift that maximises balanced accuracy.

    That is the mean of the share of safe cases shifted above 0 and the share of unsafe cases that are not. Any
    threshold between two neighbouring margins gives the same verdicts, so the middle of such a gap is taken: of
    several equally good gaps the widest, of several equally wide the one nearest the median margin, then the lower.
    Where answering every case alike does as well (chance), everything is answered No, with the threshold one logit
    above the highest margin. A constant added to the margins changes the shift by exactly minus that constant.

    Args:
        margins: unshifted, in logits.
        safe: True where Yes is right.

    Raises:
        UserError: a class is missing, a margin is not finite, or the lengths differ.
    """
    margins = np.asarray(margins, dtype=np.float64)
    safe = np.asarray(safe, dtype=bool)
    _check_cases(margins, safe)
    lower, upper, right = _gaps(margins, safe)
    chance = int(safe.sum()) * int((~safe).sum())
    if not right.size or right.max() < chance:
        return -float(margins.max() + 1.0)
    width = np.where(right == right.max(), upper - lower, -1.0)
    middle = lower + (upper - lower) / 2
    distance = np.where(width == width.max(), np.abs(middle - np.median(margins)), np.inf)
    return -_inside(lower, upper, int(np.argmin(distance)))  # the first, so the lower, of two that are equally near


def matching_shift(margins: Float[np.ndarray, "case"], yes_share: float) -> float:
    """The shift after which the share of ``margins`` above 0 is nearest to ``yes_share``, a fraction of 1.

    Equal margins move together. Of two shares equally near, the lower is taken; of the shifts that give it, the middle
    of the gap (one logit beyond the outermost margin where all or none say Yes).

    Args:
        margins: unshifted, in logits.
        yes_share: the share to match.

    Raises:
        UserError: no margins, a margin that is not finite, or a share outside 0 to 1.
    """
    margins = np.sort(np.asarray(margins, dtype=np.float64))
    if not margins.size or not np.isfinite(margins).all():
        raise UserError(
            f"{int((~np.isfinite(margins)).sum())} of {margins.size} margins are not finite; a bias is fitted on "
            "one finite margin a case, of one case at least; leave the others out"
        )
    if not 0 <= yes_share <= 1:
        raise UserError(f"target_yes_share={yes_share!r}; a share of answers lies between 0 and 1")
    values = np.unique(margins)
    # Thresholds from above all margins (nobody says Yes) down to below all of them.
    edges = np.concatenate([[values[0] - 2.0], values, [values[-1] + 2.0]])[::-1]
    lower, upper = edges[1:], edges[:-1]
    shares = 1 - np.searchsorted(margins, lower, side="right") / margins.size
    return -_inside(lower, upper, int(np.argmin(np.abs(shares - yes_share))))


def candidate_shifts(
    margins: Float[np.ndarray, "case"],
) -> tuple[Float[np.ndarray, "shift"], Float[np.ndarray, "shift"]]:
    """Every shift that gives other verdicts, and the width of the gap it lies in.

    Minus the midpoints between neighbouring margins, and one that calls nothing safe (width 0).
    """
    values = np.unique(margins)
    middle = values[:-1] + np.diff(values) / 2
    between = middle < values[1:]  # neighbouring floats have no middle
    shifts = -np.append(middle[between], values[-1] + 1.0)
    return shifts, np.append(np.diff(values)[between], 0.0)


def best_admissible(
    balanced: Float[np.ndarray, "shift"], width: Float[np.ndarray, "shift"], admissible: Bool[np.ndarray, "shift"]
) -> int:
    """The index of the admissible shift with the highest balanced accuracy: of equal ones the widest gap, then the
    first.

    Accuracies are compared to 12 decimals and widths to 9, so that the choice moves with the margins.
    """
    return int(
        min(np.flatnonzero(admissible), key=lambda at: (-round(float(balanced[at]), 12), -round(float(width[at]), 9)))
    )


def _inside(lower: Float[np.ndarray, "gap"], upper: Float[np.ndarray, "gap"], gap: int) -> float:
    """The middle of a gap; its lower end between neighbouring floats, as the upper margin must stay above."""
    middle = lower[gap] + (upper[gap] - lower[gap]) / 2
    return float(middle if middle < upper[gap] else lower[gap])


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
