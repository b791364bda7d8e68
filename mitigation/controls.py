"""Controls for visual contrastive decoding (arXiv 2504.10020).

Two effects that may explain the gain of a contrast: the prior of the words alone (``TextOnly``) and a constant towards
Yes (``YesBias``). Two null controls: the cutoff alone (``CutoffOnly``) and the contrast with the same picture
(``SelfContrast``). Under greedy decoding both must equal the baseline, so they test the code. With sampling
(``Sampled``) the cutoff makes answers nearly greedy, so they are proper arms. Importing this module loads neither torch
nor transformers; generating does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from jaxtyping import Float

from mitigation.branches import Contrast, Inputs
from mitigation.method import SCORES, check_beta, set_images
from mitigation.threshold import ConstantShift, matching_shift

if TYPE_CHECKING:
    from interp.vlm import VLM, Generation, Prompt


@dataclass(frozen=True)
class TextOnly(Contrast):
    """Contrasts with the same prompt without its picture: (1 + α)·l(picture, text) − α·l(text), with the cutoff.

    VCD's gain over this control is due to the distorted picture. ``images`` are the numbers of the pictures to remove,
    from 1, if a prompt has several (None: all).
    """

    images: Any = None  # a sequence of numbers, stored as a tuple; a list in a configuration
    pictured: ClassVar[str] = "it contrasts with the same words without theirs"
    other: ClassVar[str] = "no_picture"

    def __post_init__(self) -> None:
        super().__post_init__()
        set_images(self)

    def branches(self, vlm: "VLM", prompts: "Sequence[Prompt]", encoded: Inputs) -> list[Inputs]:
        """Return the inputs without pictures.

        Raises:
            UserError: the family does not support prompts without one.
        """
        from mitigation.contrastive.corruption import blind_inputs

        return [blind_inputs(vlm, prompts, self.images or ())]


@dataclass(frozen=True)
class SelfContrast(Contrast):
    """Contrasts with the same picture: the logits cancel, and only the cutoff remains.

    Costs a second forward per token, as VCD does. Under greedy decoding its answers must equal the baseline's.
    """

    other: ClassVar[str] = "same_picture"

    def branches(self, vlm: "VLM", prompts: "Sequence[Prompt]", encoded: Inputs) -> list[Inputs]:
        """Return the same inputs."""
        return [encoded]


@dataclass(frozen=True)
class CutoffOnly:
    """The plausibility cutoff without contrast (α = 0), with one forward per token and independent code."""

    beta: float | None = 0.1
    needs: ClassVar[str] = SCORES

    def __post_init__(self) -> None:
        check_beta(self.beta)

    def generate(self, vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> "Generation":
        """Return greedy answers; margins are the model's own, before the cutoff."""
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
