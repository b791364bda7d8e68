"""The formulas of visual contrastive decoding over logits (Leng et al. 2023, arXiv 2311.16922, equations 3 to 5).

Pure, and in float32: in bfloat16 logits of 16 to 32 sit on a grid of 0.125 and ties appear. Knows nothing of images,
models or caches.
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mitigation.validation import check_alpha, check_beta


def contrast(
    clean: Float[Tensor, "row vocab"], noised: Float[Tensor, "row vocab"], *, alpha: float
) -> Float[Tensor, "row vocab"]:
    """(1 + α)·clean − α·noised in float32: what the picture adds, counted α times more (equation 3).

    Both are raw logits for the same text, ``clean`` with the picture and ``noised`` with a worse one. A token that is
    −inf in ``clean`` (forbidden) stays so. α = 0 returns ``clean`` exactly. UserError if α is negative or not finite.
    """
    check_alpha(alpha)
    return (1 + alpha) * clean.float() - alpha * noised.float()


def plausible(clean: Float[Tensor, "row vocab"], *, beta: float | None) -> Bool[Tensor, "row vocab"]:
    """True where a token has at least β times the probability of the row's likeliest one (equation 4).

    Asked of the clean logits, not of the contrasted ones. The likeliest token is always kept; ``beta=None`` keeps all.
    UserError if β is outside (0, 1].
    """
    check_beta(beta)
    if beta is None:
        return torch.ones_like(clean, dtype=torch.bool)
    clean = clean.float()
    return clean >= math.log(beta) + clean.max(dim=-1, keepdim=True).values
