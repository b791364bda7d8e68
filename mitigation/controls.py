"""Controls for visual contrastive decoding (arXiv 2504.10020).

Two effects that may explain the gain of a contrast: the prior of the words alone (``TextOnly``) and a constant towards
Yes (``YesBias``). Two null controls: the cutoff alone (``CutoffOnly``) and the contrast with the same picture
(``SelfContrast``). Under greedy decoding both must equal the baseline, so they test the code. With sampling
(``Sampled``) the cutoff makes answers nearly greedy, so they are proper arms. Importing this module loads neither torch
nor transformers; generating does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from jaxtyping import Float

from mitigation.threshold import ConstantShift, matching_shift
from mitigation.validation import check_alpha, check_beta
from mitigation.vcd import contrasted

if TYPE_CHECKING:
    from interp.vlm import VLM, Generation, Prompt


@dataclass(frozen=True)
class _Contrast:
    """``alpha`` is the weight of the contrast, ``beta`` the plausibility cutoff, as in ``mitigation.vcd.VCD``."""

    alpha: float = 1.0
    beta: float | None = 0.1

    def __post_init__(self) -> None:
        check_alpha(self.alpha)
        check_beta(self.beta)

    def _answers(
        self, vlm: "VLM", prompts: "Sequence[Prompt]", second: Mapping[str, Any], max_new_tokens: int
    ) -> "Generation":
        return contrasted(
            vlm,
            prompts,
            vlm.encode(prompts),
            second,
            alpha=self.alpha,
            beta=self.beta,
            max_new_tokens=max_new_tokens,
        )


@dataclass(frozen=True)
class TextOnly(_Contrast):
    """Contrasts with the same prompt without its picture: (1 + α)·l(picture, text) − α·l(text), with the cutoff.

    VCD's gain over this control is due to the distorted picture.
    """

    def generate(self, vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> "Generation":
        """Greedy answers with margins of the contrasted scores before the cutoff.

        Raises:
            UserError: a prompt has no image, or the family does not support prompts without one or contrasting.
        """
        from mitigation.contrastive.corruption import NONE, corrupt_inputs

        blind = corrupt_inputs(vlm, prompts, kind=NONE, step=0, seed=0)
        return self._answers(vlm, prompts, blind, max_new_tokens)


@dataclass(frozen=True)
class SelfContrast(_Contrast):
    """Contrasts with the same picture: the logits cancel, and only the cutoff remains.

    Costs a second forward per token, as VCD does. Under greedy decoding its answers must equal the baseline's.
    """

    def generate(self, vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> "Generation":
        """Greedy answers with margins of the contrasted scores.

        Raises:
            UserError: the family does not support contrasting.
        """
        return self._answers(vlm, prompts, vlm.encode(prompts), max_new_tokens)


@dataclass(frozen=True)
class CutoffOnly:
    """The plausibility cutoff without contrast (α = 0), with one forward per token and independent code."""

    beta: float | None = 0.1

    def __post_init__(self) -> None:
        check_beta(self.beta)

    def generate(self, vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> "Generation":
        """Greedy answers; margins are the model's own, before the cutoff."""
        from mitigation.processors import PlausibilityLogitsProcessor

        processor = PlausibilityLogitsProcessor(beta=self.beta)
        return vlm.generate(prompts, max_new_tokens=max_new_tokens, logits_processor=[processor])


@dataclass(frozen=True)
class YesBias:
    """Fits the constant on the margin that matches another method's share of Yes; answers with ``ConstantShift``.

    Fit it on other cases than it is evaluated on. The other method's gain over this control is more than a bias
    towards Yes.
    """

    yes_no_only: ClassVar[bool] = True
    fitted_to: ClassVar[str] = "yes_share"

    def fit(self, margins: Float[np.ndarray, " case"], target_yes_share: float) -> ConstantShift:
        """See ``mitigation.threshold.matching_shift``; ``target_yes_share`` is a fraction of 1."""
        return ConstantShift(matching_shift(margins, target_yes_share))
