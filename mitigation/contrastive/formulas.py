"""The formulas of visual contrastive decoding over next-token logits (Leng et al. 2023, arXiv 2311.16922).

Contrast and plausibility cutoff are its equations 3 to 5; other methods' formulas are their ``scores``. All are
computed in float32: in bfloat16, logits between 16 and 32 are multiples of 0.125, which causes ties.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mitigation.validation import check_alpha, check_beta


def contrast(
    clean: Float[Tensor, "row vocab"], noised: Float[Tensor, "row vocab"], *, alpha: float
) -> Float[Tensor, "row vocab"]:
    """Return (1 + α)·clean − α·noised in float32 (equation 3).

    Both are raw logits for the same text, ``clean`` with the picture and ``noised`` with a distorted one. A token that
    is −inf in ``clean`` (forbidden) stays −inf. α = 0 returns ``clean`` exactly.

    Raises:
        UserError: α is negative or not finite.
    """
    check_alpha(alpha)
    return (1 + alpha) * clean.float() - alpha * noised.float()


def plausible(clean: Float[Tensor, "row vocab"], *, beta: float | None) -> Bool[Tensor, "row vocab"]:
    """Return True where a token has at least β times the probability of the row's most likely one (equation 4).

    Computed from the clean logits, not the contrasted ones. The most likely token always passes. ``beta=None`` keeps
    all tokens.

    Raises:
        UserError: β is outside (0, 1].
    """
    check_beta(beta)
    if beta is None:
        return torch.ones_like(clean, dtype=torch.bool)
    clean = clean.float()
    return clean >= math.log(beta) + clean.max(dim=-1, keepdim=True).values


def cut(
    scores: Float[Tensor, "row vocab"], clean: Float[Tensor, "row vocab"], *, beta: float | None
) -> Float[Tensor, "row vocab"]:
    """Return ``scores`` where ``plausible(clean, beta)``, −inf elsewhere (equation 5).

    With a cutoff, a row with a NaN among its clean logits is all −inf.

    Raises:
        UserError: β is out of range.
    """
    return scores if beta is None else scores.masked_fill(~plausible(clean, beta=beta), -torch.inf)


def uncut_answers(
    scores: Float[Tensor, "row vocab"], uncut: Float[Tensor, "row vocab"], answers: Sequence[int]
) -> Float[Tensor, "row vocab"]:
    """Replace the answers' scores by their scores in ``uncut``, in rows whose most likely token is one of ``answers``.

    ``uncut`` are the same scores before the plausibility cutoff, which would otherwise fix a confident Yes or No
    regardless of its margin.
    """
    ids = torch.tensor([*answers], device=scores.device)
    verdict = torch.isin(scores.argmax(dim=1, keepdim=True), ids)
    return scores.index_copy(1, ids, torch.where(verdict, uncut[:, ids], scores[:, ids]))
