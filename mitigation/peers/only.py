"""ONLY: the model against its own shortcut, in which one layer's most textual heads speak alone.

Importing this module loads neither torch nor transformers; generating does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from mitigation.branches import BranchLogits, BranchMethod
from mitigation.method import Work
from mitigation.validation import check_beta, check_count, check_number, check_pictured

if TYPE_CHECKING:
    from torch import Tensor

    from interp.vlm import VLM, Generation, Prompt


@dataclass(frozen=True)
class ONLY(BranchMethod):
    """ONLY (Wan et al., ICCV 2025, arXiv 2507.00898): f + α₁·f̃ where f̃ agrees, else (1 + α₂)·f − α₂·f̃.

    f are the model's logits, f̃ textually enhanced ones from the same forward. f̃ agrees where Σ|p − p̃| over the
    vocabulary is below ``gamma``. Of attention ``layer`` only the heads count whose text-to-visual entropy ratio is at
    least the mean of the layer's heads; their output skips to the last layer and the output head
    (``mitigation.peers.only_logits`` has every step). Tokens below the cutoff ``beta`` are excluded.

    α₁ = 3 (``alpha_1``), α₂ = 1 (``alpha_2``), γ = 0.2, β = 0.1 and layer 0 are the settings of the authors' script for
    POPE on LLaVA-1.5 (github.com/zifuwan/ONLY, ``pope_eval.sh``); theirs for CHAIR has γ = 0.25, and for MME γ = 0.25
    and β = 0.4. Sources: the ratio, the choice of heads and both rules as others describe the paper, whose text and
    equation numbers we could not check; the code agrees. How f̃ gets from that layer to the logits (shares 0.2 and 0.5
    of the model's own states) follows the code. The authors sample; here it is greedy. Layers without a norm behind the
    sublayer are assumed, so Gemma 2 and 3 are refused, as are families that read the picture by cross-attention.
    """

    alpha_1: float = 3.0
    alpha_2: float = 1.0
    gamma: float = 0.2
    layer: int = 0
    beta: float | None = 0.1
    work: ClassVar[Work] = Work()  # its branch is of the same forward
    pictured: ClassVar[str] = "ONLY compares attention to the picture with attention to the text"
    other: ClassVar[str] = "text_enhanced"

    def __post_init__(self) -> None:
        check_number("alpha_1", self.alpha_1, 0.0)
        check_number("alpha_2", self.alpha_2, 0.0)
        check_number("gamma", self.gamma, 0.0, 2.0)  # two distributions are at most 2 apart
        check_beta(self.beta)
        check_count("layer", self.layer, 0, hint="ONLY intervenes in one layer")

    def generate(self, vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> "Generation":
        """Greedy answers with margins by this rule, before the cutoff.

        Raises:
            UserError: a prompt has no image, the family has no image tokens in its sequence or norms behind its
                sublayers, or there is no such layer.
        """
        from mitigation.peers.only_logits import text_enhanced

        check_pictured(prompts, self.pictured)
        with text_enhanced(vlm, self.layer) as branch:
            return self.answers(vlm, prompts, vlm.encode(prompts), [branch], max_new_tokens)

    def scores(self, logits: BranchLogits, step: int) -> "Tensor":
        """f + α₁·f̃ in rows where Σ|p − p̃| < γ, else (1 + α₂)·f − α₂·f̃."""
        clean, other = logits.clean, logits.others[0]
        distance = (clean.softmax(-1) - other.softmax(-1)).abs().sum(-1, keepdim=True)
        agreeing, apart = clean + self.alpha_1 * other, (1 + self.alpha_2) * clean - self.alpha_2 * other
        return agreeing.where(distance < self.gamma, apart)
