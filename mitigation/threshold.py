"""A constant on the Yes/No margin, the control that a contrast has to beat, and the rules that choose the constant.

A margin is logit(Yes) − logit(No) at the verdict's token; the verdict is Yes if it is above 0. A constant only moves
the threshold, so AUROC does not change (``calibrated_shift`` in ``docs/metrics.md``). The rules are pure functions of
arrays: ``balanced_shift`` (CalibratedShift) and ``matching_shift`` (YesBias). The study of mitigations uses
``candidate_shifts`` with ``best_admissible``, which require that unsafe accuracy does not drop.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from jaxtyping import Bool, Float

from interp.errors import UserError
from mitigation.method import SCORES, Baseline, check_shift

if TYPE_CHECKING:
    from interp.vlm import VLM, Generation, Prompt


@dataclass(frozen=True)
class ConstantShift:
    """Adds ``shift`` logits to the Yes/No margin of the verdict: above 0 towards Yes, below 0 towards No."""

    shift: float
    yes_no_only: ClassVar[bool] = True  # open answers have no such margin
    needs: ClassVar[str] = SCORES

    def __post_init__(self) -> None:
        check_shift(self.shift)

    def generate(self, vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> "Generation":
        """Return greedy answers with the shift at the verdict (``mitigation.wrappers.Shifted``).

        Margins include it; ``unshifted`` are the margins of the unmodified model.
        """
        from mitigation.wrappers import Shifted

        return Shifted(Baseline(), self.shift).generate(vlm, prompts, max_new_tokens=max_new_tokens)


@dataclass(frozen=True)
class CalibratedShift:
    """Fits the constant on labelled cases; answers with ``ConstantShift``. Do not evaluate it on the same cases."""

    yes_no_only: ClassVar[bool] = True
    fitted_to: ClassVar[str] = "labels"

    def fit(self, margins: Float[np.ndarray, " case"], safe: Bool[np.ndarray, " case"]) -> ConstantShift:
        """See ``balanced_shift``."""
        return ConstantShift(balanced_shift(margins, safe))


def balanced_shift(margins: Float[np.ndarray, " case"], safe: Bool[np.ndarray, " case"]) -> float:
    """Return the shift that maximises balanced accuracy.

    Balanced accuracy is the mean of the share of safe cases shifted above 0 and the share of unsafe cases that are not.
    Any threshold between two neighbouring margins gives the same verdicts, so the middle of the gap is taken. Ties
    between gaps: the widest, then the one nearest the median margin, then the lower. If no gap beats answering every
    case alike (chance), everything is answered No, with the threshold one logit above the highest margin. A constant
    added to the margins changes the shift by exactly minus that constant.

    Args:
        margins: unshifted, in logits.
        safe: True where Yes is correct.

    Raises:
        UserError: a class is missing, a margin is not finite, or the lengths differ.
    """
    margins = np.asarray(margins, dtype=np.float64)
    safe = np.asarray(safe, dtype=bool)
    _check_cases(margins, safe)
    values = np.unique(margins)
    lower, upper = values[:-1], values[1:]  # of the gaps between neighbouring distinct margins
    n_safe, n_unsafe = int(safe.sum()), int((~safe).sum())
    safe_yes = n_safe - np.searchsorted(np.sort(margins[safe]), lower, side="right")
    unsafe_no = np.searchsorted(np.sort(margins[~safe]), lower, side="right")
    right = safe_yes * n_unsafe + unsafe_no * n_safe  # balanced accuracy × 2·n_safe·n_unsafe, so that ties are equal
    chance = n_safe * n_unsafe
    if not right.size or right.max() < chance:
        return -float(margins.max() + 1.0)
    width = np.where(right == right.max(), upper - lower, -1.0)
    middle = lower + (upper - lower) / 2
    distance = np.where(width == width.max(), np.abs(middle - np.median(margins)), np.inf)
    return -_inside(lower, upper, int(np.argmin(distance)))  # argmin takes the first, so the lower of two ties


def matching_shift(margins: Float[np.ndarray, " case"], yes_share: float) -> float:
    """Return the shift after which the share of ``margins`` above 0 is nearest to ``yes_share``, a fraction of 1.

    If two shares are equally near, take the lower. Return the middle of the gap that gives it. If all or none say Yes,
    return one logit beyond the outermost margin.

    Args:
        margins: unshifted, in logits.
        yes_share: the share to match.

    Raises:
        UserError: no margins, a margin that is not finite, or a share outside 0 to 1.
    """
    margins = np.sort(np.asarray(margins, dtype=np.float64))
    if not margins.size or not np.isfinite(margins).all():
        raise UserError(
            f"{int((~np.isfinite(margins)).sum())} of {margins.size} margins are not finite; a bias is fitted on at "
            "least one finite margin; remove the others"
        )
    if not 0 <= yes_share <= 1:
        raise UserError(f"target_yes_share={yes_share!r}; a share of answers lies between 0 and 1")
    values = np.unique(margins)
    # Thresholds from above all margins (no Yes) down to below all of them.
    edges = np.concatenate([[values[0] - 2.0], values, [values[-1] + 2.0]])[::-1]
    lower, upper = edges[1:], edges[:-1]
    shares = 1 - np.searchsorted(margins, lower, side="right") / margins.size
    return -_inside(lower, upper, int(np.argmin(np.abs(shares - yes_share))))


def candidate_shifts(
    margins: Float[np.ndarray, " case"],
) -> tuple[Float[np.ndarray, " shift"], Float[np.ndarray, " shift"]]:
    """Return all shifts that give distinct verdicts, and the width of the gap that each lies in.

    They are minus the midpoints between neighbouring margins, and one that calls nothing safe (width 0).
    """
    values = np.unique(margins)
    middle = values[:-1] + np.diff(values) / 2
    between = middle < values[1:]  # adjacent floats have no midpoint
    shifts = -np.append(middle[between], values[-1] + 1.0)
    return shifts, np.append(np.diff(values)[between], 0.0)


def best_admissible(
    balanced: Float[np.ndarray, " shift"], width: Float[np.ndarray, " shift"], admissible: Bool[np.ndarray, " shift"]
) -> int:
    """Return the index of the admissible shift with the highest balanced accuracy. Ties: widest gap, then first.

    Accuracies are compared to 12 decimals and widths to 9, so that adding a constant to the margins does not change the
    choice.
    """
    return int(
        min(np.flatnonzero(admissible), key=lambda at: (-round(float(balanced[at]), 12), -round(float(width[at]), 9)))
    )


def _inside(lower: Float[np.ndarray, " gap"], upper: Float[np.ndarray, " gap"], gap: int) -> float:
    """Return the middle of a gap, or its lower end between adjacent floats, so that the upper margin stays above."""
    middle = lower[gap] + (upper[gap] - lower[gap]) / 2
    return float(middle if middle < upper[gap] else lower[gap])


def _check_cases(margins: Float[np.ndarray, " case"], safe: Bool[np.ndarray, " other"]) -> None:
    if margins.shape != safe.shape:
        raise UserError(f"{margins.size} margins for {safe.size} labels; a shift is fitted on one margin a case")
    if not safe.any() or safe.all():
        raise UserError(
            f"{int(safe.sum())} safe and {int((~safe).sum())} unsafe cases; a shift is fitted on both; give more cases"
        )
    if not np.isfinite(margins).all():
        raise UserError(
            f"{int((~np.isfinite(margins)).sum())} of {margins.size} margins are not finite; remove those cases"
        )
