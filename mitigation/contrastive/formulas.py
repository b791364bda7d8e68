"""Formulas of contrastive decoding over next-token logits.

Visual contrastive decoding (Leng et al. 2023, arXiv 2311.16922, equations 3 to 5: contrast and plausibility cutoff),
prior correction, M3ID and PAI. All are computed in float32: in bfloat16, logits between 16 and 32 are multiples of
0.125, which causes ties.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mitigation.validation import check_alpha, check_beta


def contrast(
    clean: Float[Tensor, "row vocab"], noised: Float[Tensor, "row vocab"], *, alpha: float
) -> Float[Tensor, "row vocab"]:
    """(1 + α)·clean − α·noised in float32 (equation 3).

    Both are raw logits for the same text, ``clean`` with the picture and ``noised`` with a distorted one. A token that
    is −inf in ``clean`` (forbidden) stays −inf. α = 0 returns ``clean`` exactly.

    Raises:
        UserError: α is negative or not finite.
    """
    check_alpha(alpha)
    return (1 + alpha) * clean.float() - alpha * noised.float()


def plausible(clean: Float[Tensor, "row vocab"], *, beta: float | None) -> Bool[Tensor, "row vocab"]:
    """True where a token has at least β times the probability of the row's most likely one (equation 4).

    Computed from the clean logits, not the contrasted ones. The most likely token always passes. ``beta=None`` keeps
    all tokens. The Triton kernel (``kernels_triton``) has the same rule in its own code.

    Raises:
        UserError: β is outside (0, 1].
    """
    check_beta(beta)
    if beta is None:
        return torch.ones_like(clean, dtype=torch.bool)
    clean = clean.float()
    return clean >= math.log(beta) + clean.max(dim=-1, keepdim=True).values


def uncut_answers(
    scores: Float[Tensor, "row vocab"], uncut: Float[Tensor, "row vocab"], answers: Sequence[int]
) -> Float[Tensor, "row vocab"]:
    """In rows whose most likely token is one of ``answers``, replaces the answers' scores by those of ``uncut``.

    ``uncut`` are the same scores before the plausibility cutoff, which would otherwise fix a confident Yes or No
    regardless of its margin.
    """
    ids = torch.tensor([*answers], device=scores.device)
    verdict = torch.isin(scores.argmax(dim=1, keepdim=True), ids)
    return scores.index_copy(1, ids, torch.where(verdict, uncut[:, ids], scores[:, ids]))


def less_prior(
    clean: Float[Tensor, "row vocab"],
    priors: Float[Tensor, "branch row vocab"],
    *,
    weight: float,
    answers: tuple[Sequence[int], Sequence[int]] | None = None,
) -> Float[Tensor, "row vocab"]:
    """Prior correction: log p(clean) − weight × the mean over ``priors`` of log p.

    With ``answers`` (the tokens of Yes and of No, for the first token) every spelling of an answer gets the prior of
    the answer over all spellings. The margin is then exactly the clean one minus weight × the mean of the priors'
    margins, and a spelling does not win because it is rare in the prior. For the same reason, all other tokens are −inf
    if the most likely clean token is an answer.
    """
    prior = priors.log_softmax(-1)
    if answers is None:
        return clean.log_softmax(-1) - weight * prior.mean(0)
    for ids in answers:
        prior[..., ids] = prior[..., ids].logsumexp(-1, keepdim=True)
    either = torch.tensor([token for ids in answers for token in ids], device=clean.device)
    other = ~torch.isin(torch.arange(clean.shape[1], device=clean.device), either)
    verdict = torch.isin(clean.argmax(-1, keepdim=True), either)
    return (clean.log_softmax(-1) - weight * prior.mean(0)).masked_fill(verdict & other, -torch.inf)


def m3id(
    clean: Float[Tensor, "row vocab"],
    blind: Float[Tensor, "row vocab"],
    *,
    forgetting: float,
    threshold: float,
    place: Int[Tensor, "#row 1"],
) -> Float[Tensor, "row vocab"]:
    """M3ID (arXiv 2403.14003, algorithm 1): l_c + 1[max p_c < threshold]·(1 − γ)/γ·(l_c − l_u), γ = exp(−λt).

    l are log-probabilities, ``clean`` with the picture and ``blind`` without; ``forgetting`` is λ and ``place`` t.
    """
    seen, unseen = clean.log_softmax(-1), blind.log_softmax(-1)
    unsure = seen.max(dim=-1, keepdim=True).values < math.log(threshold)
    weight = torch.expm1(forgetting * place.to(seen))  # (1 − γ) / γ
    return torch.where(unsure, seen + weight * (seen - unseen), seen)


def guided(
    clean: Float[Tensor, "row vocab"], blind: Float[Tensor, "row vocab"], *, gamma: float
) -> Float[Tensor, "row vocab"]:
    """γ·log p(clean) − (γ − 1)·log p(blind): PAI's refinement (arXiv 2407.21771), with log p as in its code."""
    return gamma * clean.log_softmax(-1) - (gamma - 1) * blind.log_softmax(-1)


def agreeing(
    clean: Float[Tensor, "row vocab"],
    other: Float[Tensor, "row vocab"],
    *,
    alpha_1: float,
    alpha_2: float,
    gamma: float,
) -> Float[Tensor, "row vocab"]:
    """ONLY's rule (arXiv 2507.00898): f + α₁·f̃ in rows where Σ|p − p̃| < γ, else (1 + α₂)·f − α₂·f̃."""
    clean, other = clean.float(), other.float()
    distance = (clean.softmax(-1) - other.softmax(-1)).abs().sum(-1, keepdim=True)
    return torch.where(distance < gamma, clean + alpha_1 * other, contrast(clean, other, alpha=alpha_2))
