"""Next-token scores by a rule over the prompt's own scores and those of the same answer after other prompts.

The formulas of prior correction, instruction contrast, M3ID and PAI, and one logits processor that forwards the other
prompts beside a running ``generate`` (``mitigation.contrastive.second_branch``). All in float32. Knows nothing of how
prompts were made.

What the ``generate`` that calls a logits processor is about, read off its frames.

A processor is handed tokens and scores, not generate()'s settings, and what was done to the scores does not show in
them. The functions that call it know; where it is called by anything else, there is nothing to know.

Logits processors for plain ``model.generate(..., logits_processor=[...])``.

The contrast's processor brings its own second branch: another forward of the same model over the noised picture
(``mitigation.contrastive.second_branch``), eager or lazy (``mitigation.contrastive.second_branch``). The running
``generate`` gives it the tokens so far and the clean scores. Knows nothing of benchmarks, caches, or how a picture
was made worse.
"""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import (
    EncoderRepetitionPenaltyLogitsProcessor,
    ExponentialDecayLengthPenalty,
    GenerationMixin,
    LogitsProcessor,
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)

from interp.errors import UserError
from interp.vlm import AnswerIds
from mitigation.contrastive.formulas import contrast, plausible
from mitigation.contrastive.kernels import fused
from mitigation.contrastive.second_branch import LazyBranch, SecondBranch, Skips
from mitigation.validation import check_alpha, check_beta, check_shift

# What generate() may put before custom processors and moves finite scores: the contrast would amplify it by 1 + α, as
# only the clean branch has it. Processors that only forbid tokens (−inf) are harmless: forbidden stays forbidden.
_UNEVEN = {
    RepetitionPenaltyLogitsProcessor: "repetition_penalty=1.0",
    EncoderRepetitionPenaltyLogitsProcessor: "encoder_repetition_penalty=1.0",
    SequenceBiasLogitsProcessor: "sequence_bias=None",
    UnbatchedClassifierFreeGuidanceLogitsProcessor: "guidance_scale=1.0",
    ExponentialDecayLengthPenalty: "exponential_decay_length_penalty=None",
}


def refuse_uneven_neighbours(processor: LogitsProcessor) -> None:
    """UserError if something in the same ``LogitsProcessorList`` moves finite scores before ``processor`` sees them."""
    for other in _local(LogitsProcessorList.__call__, "self") or ():
        if other is processor:
            return
        if type(other) in _UNEVEN:
            raise UserError(
                f"{type(other).__name__} runs before contrastive decoding, which would contrast changed scores with "
                f"unchanged ones; set {_UNEVEN[type(other)]}, or list that processor after this one"
            )


def unfinished() -> Int[Tensor, "row"] | None:
    """1 for rows that the calling ``generate`` still decodes, 0 for those that are only padded; None outside of one."""
    return _local(GenerationMixin._sample, "unfinished_sequences")


def _local(function: Callable[..., Any], name: str) -> Any:
    """The variable ``name`` of the innermost running call of ``function``, None if there is none."""
    code, frame = function.__code__, sys._getframe(1)
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back  # type: ignore[assignment]
    return None if frame is None else frame.f_locals.get(name)


class VisualContrastiveLogitsProcessor(LogitsProcessor):
    """Visual contrastive decoding (Leng et al. 2023, arXiv 2311.16922) in plain ``generate``::

        noised = diffuse_images(inputs, ["my-photo"], step=500, seed=0)
        vcd = VisualContrastiveLogitsProcessor(model, noised, alpha=1.0, beta=0.1)
        model.generate(**inputs, logits_processor=[vcd])

    ``noised`` is ``inputs`` with a worse picture. Greedy, sampled and streamed decoding all apply it. One processor
    serves one batch of prompts, any number of ``generate`` calls: each call starts clean. Costs a second forward per
    token; of its own it never waits for the device.

    ``lazy`` leaves that forward out wherever a single token passes the cutoff, since the contrast then cannot change
    the choice: every chosen token is the eager one's, the scores of such a row and step are the clean ones, and each
    step waits for the device once. ``prompt_ids`` are the prompts that generation starts from where ``noised`` has
    others: it may then also be text alone. ``kernel`` (``mitigation.contrastive.kernels``) is the eager steps'.

    UserError for: settings out of range; lazy without a cutoff; right padding; prompts without image; other prompts or
    rows than ``noised`` has (so beam search and several sequences a prompt); steps out of order (assisted decoding); a
    penalty or bias that runs before it. On an accelerator other prompts of the same shape are found out a step late.
    """

    def __init__(
        self,
        model: Any,
        noised: Mapping[str, Any],
        *,
        alpha: float = 1.0,
        beta: float | None = 0.1,
        lazy: bool = False,
        prompt_ids: Int[Tensor, "row position"] | None = None,
        kernel: str = "torch",
    ) -> None:
        check_alpha(alpha)
        check_beta(beta)
        self._fused = fused(kernel)
        if lazy and beta is None:
            raise UserError("lazy=True with beta=None; without a cutoff no step can be skipped; set beta or lazy=False")
        self.alpha, self.beta = alpha, beta
        self.branch = SecondBranch(model, noised, blind=prompt_ids is not None)
        self._lazy = LazyBranch(self.branch) if lazy else None
        self._steps = Steps(self.branch.prompt_ids if prompt_ids is None else prompt_ids)
        if len(self.branch.prompt_ids) != self._steps.rows:
            raise UserError(
                f"{len(self.branch.prompt_ids)} noised prompts for {self._steps.rows} clean ones; each row is "
                f"contrasted with its own; hand over as many"
            )
        self._first_scores: Tensor | None = None
        self._skips = Skips()

    @property
    def first_scores(self) -> Float[Tensor, "row vocab"]:
        """The last call's contrasted scores of the first step, float32, before the cutoff; UserError without a call.

        Lazy: the clean scores of the rows whose first step was skipped.
        """
        if self._first_scores is None:
            raise UserError("no scores yet; they are kept at the first step of generate(); generate first")
        self._steps.check()
        return self._first_scores

    @property
    def skips(self) -> Skips:
        """What the last call cost. Eager: nothing is skipped, and rows that have ended are counted on."""
        return self._skips

    def __call__(
        self, input_ids: Int[Tensor, "row position"], scores: Float[Tensor, "row vocab"]
    ) -> Float[Tensor, "row vocab"]:
        """The contrasted scores in float32, −inf where the clean ``scores`` find a token implausible."""
        generated = self._steps.follow(input_ids)
        first = not generated.shape[1]
        if first:
            refuse_uneven_neighbours(self)
            self._skips = Skips()
        if self._lazy is None:
            noised = self._consult(generated, len(scores))
            if first:
                self._first_scores = contrast(scores, noised, alpha=self.alpha)
            return self._fused(scores, noised, alpha=self.alpha, beta=self.beta)
        kept = plausible(scores, beta=self.beta)
        contrasted = self._where_needed(self._lazy, generated, scores, kept)
        if first:
            self._first_scores = contrasted
        return contrasted.masked_fill(~kept, -torch.inf)

    def _consult(self, generated: Int[Tensor, "row new"], rows: int) -> Float[Tensor, "row vocab"]:
        self._skips = Skips(steps=self._skips.steps + rows, prefills=rows)
        return self.branch.extend(generated[:, -1:]) if generated.shape[1] else self.branch.start()

    def _where_needed(
        self,
        lazy: LazyBranch,
        generated: Int[Tensor, "row new"],
        scores: Float[Tensor, "row vocab"],
        kept: Bool[Tensor, "row vocab"],
    ) -> Float[Tensor, "row vocab"]:
        """The clean scores, contrasted in the rows of which several tokens are plausible (and their groups)."""
        if not generated.shape[1]:
            lazy.reset()
        going = unfinished()
        several = kept.sum(dim=1) > 1
        unsure, alive = _true_rows(several, torch.ones_like(several) if going is None else going.bool())
        contrasted, asked = scores.float(), 0
        for rows, where, logits in lazy.consult(generated, unsure=set(unsure) & set(alive), alive=alive):
            asked += len(rows & set(alive))
            if where is None:
                contrasted = contrast(scores, logits, alpha=self.alpha)
            else:
                own = contrast(scores.index_select(0, where), logits, alpha=self.alpha)
                contrasted = contrasted.index_copy(0, where, own)
        before = self._skips
        self._skips = Skips(
            steps=before.steps + len(alive),
            skipped=before.skipped + len(alive) - asked,
            prefills=lazy.started,
            skipped_prefills=len(scores) - lazy.started,
        )
        return contrasted


class ConstantShiftLogitsProcessor(LogitsProcessor):
    """Adds ``shift`` logits to the Yes/No margin of the first answer token, half to each side, and nothing later.

    ``yes_ids`` and ``no_ids`` are the token ids of either answer. The first step is one that does not append a single
    token to the step before, so each ``generate`` call starts clean, whatever its prompts; it never waits for the
    device. UserError if the shift is not finite or no such token is given.
    """

    def __init__(self, yes_ids: Sequence[int], no_ids: Sequence[int], *, shift: float) -> None:
        check_shift(shift)
        yes, no = list(dict.fromkeys(yes_ids)), list(dict.fromkeys(no_ids))
        if not yes or not no:
            raise UserError(f"yes_ids={yes}, no_ids={no}; a shift needs a token for either answer")
        self._ids = torch.tensor([*yes, *no])
        self._halves = torch.tensor([shift / 2] * len(yes) + [-shift / 2] * len(no))
        self._seen: Tensor | None = None

    def __call__(
        self, input_ids: Int[Tensor, "row position"], scores: Float[Tensor, "row vocab"]
    ) -> Float[Tensor, "row vocab"]:
        """The scores, shifted at the first step."""
        seen, self._seen = self._seen, input_ids
        self._ids, self._halves = (t.to(scores.device, non_blocking=True) for t in (self._ids, self._halves))
        shift = self._halves.to(scores.dtype)
        if seen is not None and len(input_ids) == len(seen) and input_ids.shape[1] == seen.shape[1] + 1:
            # Another call's prompts may by chance be one token longer; which it is stays on the device.
            shift = shift * (input_ids[:, :-1] != seen).any()
        return scores.index_add(1, self._ids, shift.expand(len(scores), -1))


class Steps:
    """Follows the tokens of one ``generate`` call after another: the prompts, then one more for every row a step.

    Shapes are checked at once. Contents are compared on their own device, which writes the answer down when it gets
    there; it is read without waiting, so that on an accelerator an error may come a step late.
    """

    def __init__(self, prompt_ids: Int[Tensor, "row position"]) -> None:
        self._prompts = prompt_ids
        self._seen: Tensor | None = None
        self._strange = torch.zeros((), dtype=torch.bool, device=prompt_ids.device)
        self._written = torch.zeros((), dtype=torch.bool, pin_memory=prompt_ids.is_cuda)

    @property
    def rows(self) -> int:
        return len(self._prompts)

    def follow(self, input_ids: Int[Tensor, "row position"]) -> Int[Tensor, "row new"]:
        """The tokens generated so far, none at the first step. UserError for a step that is not the next."""
        (rows, length), width = input_ids.shape, self._prompts.shape[1]
        if rows != self.rows:
            raise UserError(
                f"{rows} rows for {self.rows} prompts; contrastive decoding follows one sequence a prompt, no beam "
                f"search and no num_return_sequences; set num_beams=1 and num_return_sequences=1"
            )
        if length == width:
            self._strange, self._seen = torch.zeros_like(self._strange), None
        elif self._seen is None or length != self._seen.shape[1] + 1:
            raise self._error()
        expected = self._prompts if self._seen is None else self._seen
        if input_ids is not expected:
            # Kept from step to step, for the next copy may come before this one is read.
            self._strange = self._strange | (input_ids[:, : expected.shape[1]] != expected).any()
            self._written.copy_(self._strange, non_blocking=True)
        self.check()
        self._seen = input_ids
        return input_ids[:, width:]

    def check(self) -> None:
        """UserError if other tokens than expected are known to have come."""
        if self._written:
            self._written.zero_()
            self._strange = torch.zeros_like(self._strange)
            raise self._error()

    def _error(self) -> UserError:
        return UserError(
            "generation starts from other prompts than the noised inputs', or a step neither starts from them nor "
            "continues the last one; build one processor for each batch, without assisted decoding and inputs_embeds"
        )


def _true_rows(*masks: Bool[Tensor, "row"]) -> list[list[int]]:
    """The rows where each mask is true, for one wait for the device."""
    return [[row for row, true in enumerate(mask) if true] for mask in torch.stack(masks).tolist()]


Rule = Callable[[Tensor, Tensor, int], Tensor]
"""(clean [row vocab], others [branch row vocab], step from 0) → scores [row vocab]; raw logits in, no cutoff."""


class RuleLogitsProcessor(LogitsProcessor):
    """``rule`` over the scores of ``generate`` and those after the prompts ``others``, then the plausibility cutoff.

    ``prompt_ids`` are the prompts that generation starts from, ``others`` the inputs of each further branch (with other
    pictures, other words, or none; a row for every row). Costs a forward a branch and token. UserError as
    ``mitigation.contrastive.processors.VisualContrastiveLogitsProcessor``.
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
