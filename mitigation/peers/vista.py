"""VISTA: towards what the picture put into the residual stream, and towards what earlier layers would say.

Importing this module loads neither torch nor transformers; generating does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from mitigation.branches import BranchLogits, BranchMethod
from mitigation.method import Work
from mitigation.validation import check_count, check_number, check_pictured

if TYPE_CHECKING:
    from torch import Tensor

    from interp.vlm import VLM, Generation, Prompt


@dataclass(frozen=True)
class VISTA(BranchMethod):
    """VISTA (Li et al., ICML 2025, arXiv 2502.03628): a visual steering vector, and self-logits augmentation.

    The vector of layer l is the prompt's last state after it, with the picture less without (equation 4). ``strength``
    (λ) times this is added to every state after every layer, which keeps its length (equations 5 and 6); a case has
    vectors of its own. Then the logits are (1 − γ)·f + γ·the mean over the ``window`` layers before the last of the
    output head's logits (equations 7 and 8; γ is ``gamma``). ``gamma`` = 0 or ``strength`` = 0 leaves a part out.

    λ = 0.17 (LLaVA-1.5, captions), γ = 0.3 and five layers are the paper's. Sources disagree: the authors' code
    (github.com/LzVv123456/VISTA) adds λ times the normalised vector to the normalised output of each MLP, more where
    the two point apart; for POPE it has λ = 0.01, and it takes six layers. Here the paper's is followed; we have its
    equations from others' descriptions, not from its text. In the code the layers' states go through the output head
    without the final norm, and so they do here. Which columns of the prompt are steered is that of the code: all. For a
    model with few layers, choose a smaller ``window``.
    """

    strength: float = 0.17
    gamma: float = 0.3
    window: int = 5
    work: ClassVar[Work] = Work(prompts=3)  # the states with and without the picture come first
    pictured: ClassVar[str] = "VISTA steers towards what it adds"
    other: ClassVar[str] = "earlier_layers"

    def __post_init__(self) -> None:
        check_number("strength", self.strength, 0.0)
        check_number("gamma", self.gamma, 0.0, 1.0)
        check_count("window", self.window, 1, hint="it counts layers before the last one")

    def generate(self, vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> "Generation":
        """Greedy answers with margins of the augmented logits.

        Raises:
            UserError: a prompt has no image, the family does not support prompts without a picture (unless
                ``strength`` is 0), or it has too few layers.
        """
        from mitigation.peers.vista_states import steered_by_picture

        check_pictured(prompts, self.pictured)
        with steered_by_picture(vlm, prompts, self.strength, window=self.window if self.gamma else 0) as branch:
            return self.answers(vlm, prompts, vlm.encode(prompts), [branch] if self.gamma else [], max_new_tokens)

    def scores(self, logits: BranchLogits, step: int) -> "Tensor":
        """(1 − γ)·f + γ·the layers' mean."""
        return (1 - self.gamma) * logits.clean + self.gamma * logits.others[0]
