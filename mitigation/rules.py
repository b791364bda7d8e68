"""Next-token scores by a rule over the prompt's own scores and those of the same answer after other prompts.

The formulas of prior correction, instruction contrast, M3ID and PAI, and one logits processor that forwards the other
prompts beside a running ``generate`` (``mitigation.branch``). All in float32. Knows nothing of how prompts were made.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import LogitsProcessor

from interp.answers import AnswerIds
from mitigation.branch import SecondBranch
from mitigation.calling import refuse_uneven_neighbours
from mitigation.contrast import plausible
from mitigation.decoding import Steps

Rule = Callable[[Tensor, Tensor, int], Tensor]
"""(clean [row vocab], others [branch row vocab], step from 0) → scores [row vocab]; raw logits in, no cutoff."""


class RuleLogitsProcessor(LogitsProcessor):
    """``rule`` over the scores of ``generate`` and those after the prompts ``others``, then the plausibility cutoff.

    ``prompt_ids`` are the prompts that generation starts from, ``others`` the inputs of each further branch (with other
    pictures, other words, or none; a row for every row). Costs a forward a branch and token. UserError as
    ``mitigation.decoding.VisualContrastiveLogitsProcessor``.
    """

    def __init__(
        self,
        model: Any,
        prompt_ids: Int[Tensor, "row position"],
        others: Sequence[Mapping[str, Any]],
        rule: Rule,
        *,
        beta: float | None,
    ) -> None:
        self._branches = [SecondBranch(model, inputs, blind=True) for inputs in others]
        self._steps, self._rule, self._beta = Steps(prompt_ids), rule, beta
        self._first_scores: Tensor | None = None

    @property
    def first_scores(self) -> Float[Tensor, "row vocab"]:
        """The last call's scores of the first step, float32, before the cutoff."""
        assert self._first_scores is not None
        self._steps.check()
        return self._first_scores

    def __call__(
        self, input_ids: Int[Tensor, "row position"], scores: Float[Tensor, "row vocab"]
    ) -> Float[Tensor, "row vocab"]:
        """The rule's scores, −inf where the clean ``scores`` find a token implausible."""
        generated = self._steps.follow(input_ids)
        step = generated.shape[1]
        others = [branch.extend(generated[:, -1:]) if step else branch.start() for branch in self._branches]
        ruled = self._rule(scores.float(), torch.stack(others), step)
        if not step:
            refuse_uneven_neighbours(self)
            self._first_scores = ruled
        return ruled.masked_fill(~plausible(scores, beta=self._beta), -torch.inf)


def less_prior(
    clean: Float[Tensor, "row vocab"],
    priors: Float[Tensor, "branch row vocab"],
    *,
    weight: float,
    answers: AnswerIds | None = None,
) -> Float[Tensor, "row vocab"]:
    """log p(clean) − weight × the mean over ``priors`` of log p.

    With ``answers`` (at the first token) every spelling of an answer has the prior of that answer in any spelling:
    the margin is then exactly the clean one less weight × the mean of the priors' margins, and a spelling that the
    prior hardly knows does not win by its rarity. Where the likeliest clean token is an answer, all others are −inf:
    for the same reason a word that the sentence alone would never begin with must not win against a verdict.
    """
    prior = priors.log_softmax(-1)
    if answers is None:
        return clean.log_softmax(-1) - weight * prior.mean(0)
    for ids in answers:
        prior[..., ids] = prior[..., ids].logsumexp(-1, keepdim=True)
    either = torch.tensor([*answers.yes, *answers.no], device=clean.device)
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
    """γ·log p(clean) − (γ − 1)·log p(blind): PAI's refinement (arXiv 2407.21771), on logs as its code has it."""
    return gamma * clean.log_softmax(-1) - (gamma - 1) * blind.log_softmax(-1)
