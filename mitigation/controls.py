"""What a contrast must be shown beside, or its result is a mirage (arXiv 2504.10020).

Two moves that a contrast may be mistaken for: what the words alone say (``TextOnly``) and a constant towards Yes
(``YesBias``). Two that change nothing: the cutoff alone (``CutoffOnly``) and the contrast with the same picture
(``SelfContrast``). Under greedy decoding the latter equal the baseline by law and check the machinery; with sampling
(``Sampled``) the cutoff makes answers nearly greedy, and they are arms. Importing this module loads neither torch nor
transformers; generating does.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from jaxtyping import Float

from interp.errors import UserError
from mitigation.threshold import ConstantShift
from mitigation.validation import check_alpha, check_beta

if TYPE_CHECKING:
    from interp.vlm import VLM, Generation, Prompt


@dataclass(frozen=True)
class TextOnly:
    """Contrasts with the same prompt without its picture: (1 + α)·l(picture, text) − α·l(text), over the plausible.

    ``alpha`` and ``beta`` as in ``mitigation.vcd.VCD``. What VCD gains beyond this is due to the worse picture.
    """

    alpha: float = 1.0
    beta: float | None = 0.1

    def __post_init__(self) -> None:
        """UserError naming the value and its range."""
        check_alpha(self.alpha)
        check_beta(self.beta)

    def generate(self, vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> "Generation":
        """Greedy answers with margins of the contrasted scores before the cutoff.

        UserError where a prompt has no image, and where the family cannot be asked without one or contrasted at all.
        """
        from mitigation.contrastive.corruption import NONE, corrupt_inputs

        blind = corrupt_inputs(vlm, prompts, kind=NONE, step=0, seed=0)
        return _contrasted(vlm, prompts, blind, self.alpha, self.beta, max_new_tokens)


@dataclass(frozen=True)
class SelfContrast:
    """Contrasts with the same picture: the logits cancel, and the cutoff is all that is left.

    Costs a second forward per token, as VCD does; under greedy decoding it must answer as the baseline.
    """

    alpha: float = 1.0
    beta: float | None = 0.1

    def __post_init__(self) -> None:
        """UserError naming the value and its range."""
        check_alpha(self.alpha)
        check_beta(self.beta)

    def generate(self, vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> "Generation":
        """Greedy answers with margins of the contrasted scores; UserError where contrasting is impossible."""
        return _contrasted(vlm, prompts, vlm.encode(prompts), self.alpha, self.beta, max_new_tokens)


@dataclass(frozen=True)
class CutoffOnly:
    """The plausibility cutoff without any contrast (α = 0), with one forward per token and code of its own."""

    beta: float | None = 0.1

    def __post_init__(self) -> None:
        """UserError naming the value and its range."""
        check_beta(self.beta)

    def generate(self, vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> "Generation":
        """Greedy answers; margins are the model's own, before the cutoff."""
        from mitigation.processors import PlausibilityLogitsProcessor

        processor = PlausibilityLogitsProcessor(beta=self.beta)
        return vlm.generate(prompts, max_new_tokens=max_new_tokens, logits_processor=[processor])


@dataclass(frozen=True)
class YesBias:
    """Finds the constant on the margin that says Yes as often as another method; the answers are ``ConstantShift``'s.

    It must be fitted on other cases than it is judged on. What that method gains beyond this is no mere readiness to
    say Yes.
    """

    yes_no_only: ClassVar[bool] = True

    def fit(self, margins: Float[np.ndarray, "case"], target_yes_share: float) -> ConstantShift:
        """The shift after which the share of ``margins`` above 0 is nearest to ``target_yes_share``, a fraction of 1.

        ``margins`` are the unshifted ones, in logits. Equal margins move together; of two shares equally near the lower
        is taken, and of the shifts that give it the one in the middle of the gap (one logit beyond the outermost margin
        where all or none say Yes). UserError for no margins, one that is not finite, or a share outside 0 to 1.
        """
        margins = np.sort(np.asarray(margins, dtype=np.float64))
        if not margins.size or not np.isfinite(margins).all():
            raise UserError(
                f"{int((~np.isfinite(margins)).sum())} of {margins.size} margins are not finite; a bias is fitted on "
                "one finite margin a case, of one case at least; leave the others out"
            )
        if not 0 <= target_yes_share <= 1:
            raise UserError(f"target_yes_share={target_yes_share!r}; a share of answers lies between 0 and 1")
        values = np.unique(margins)
        # Thresholds from above all margins (nobody says Yes) down to below all of them.
        edges = np.concatenate([[values[0] - 2.0], values, [values[-1] + 2.0]])[::-1]
        lower, upper = edges[1:], edges[:-1]
        shares = 1 - np.searchsorted(margins, lower, side="right") / margins.size
        chosen = int(np.argmin(np.abs(shares - target_yes_share)))
        middle = lower[chosen] + (upper[chosen] - lower[chosen]) / 2
        # Neighbouring floats have no middle, and the upper margin must stay above the threshold.
        return ConstantShift(shift=-float(middle if middle < upper[chosen] else lower[chosen]))


def _contrasted(
    vlm: "VLM",
    prompts: "Sequence[Prompt]",
    second: Any,
    alpha: float,
    beta: float | None,
    max_new_tokens: int,
) -> "Generation":
    """Greedy answers contrasted with the inputs ``second``, whose text may be another than the prompts'."""
    from mitigation.contrastive.processors import VisualContrastiveLogitsProcessor

    encoded = vlm.encode(prompts)
    processor = VisualContrastiveLogitsProcessor(
        vlm.model, second, alpha=alpha, beta=beta, prompt_ids=encoded["input_ids"]
    )
    generation = vlm.generate(prompts, max_new_tokens=max_new_tokens, logits_processor=[processor], encoded=encoded)
    return replace(generation, margins=vlm.margin(processor.first_scores).cpu())
