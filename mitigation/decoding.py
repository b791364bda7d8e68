"""Logits processors for plain ``model.generate(..., logits_processor=[...])``.

The contrast's processor brings its own second branch: another forward of the same model over the noised picture, with
its own cache, positions and mask. It shares nothing with the running ``generate``, which gives it the tokens so far and
the clean scores. Knows nothing of prompts, benchmarks, or how a picture was made worse.
"""

import inspect
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import (
    EncoderRepetitionPenaltyLogitsProcessor,
    ExponentialDecayLengthPenalty,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)

from interp.capture import paused
from interp.errors import UserError
from interp.layout import layout_for
from mitigation.contrast import contrast, plausible
from mitigation.ranges import check_alpha, check_beta, check_shift

# What generate() may put before custom processors and moves finite scores: the contrast would amplify it by 1 + α, as
# only the clean branch has it. Processors that only forbid tokens (−inf) are harmless: forbidden stays forbidden.
_UNEVEN = {
    RepetitionPenaltyLogitsProcessor: "repetition_penalty=1.0",
    EncoderRepetitionPenaltyLogitsProcessor: "encoder_repetition_penalty=1.0",
    SequenceBiasLogitsProcessor: "sequence_bias=None",
    UnbatchedClassifierFreeGuidanceLogitsProcessor: "guidance_scale=1.0",
    ExponentialDecayLengthPenalty: "exponential_decay_length_penalty=None",
}


class SecondBranch:
    """The same text over another picture, forwarded step by step with a cache of its own.

    ``inputs`` is what the model's processor gave for the whole batch, the picture already exchanged: ``input_ids``
    and ``attention_mask`` (left padded), ``pixel_values``, and whatever else the first forward of the family needs.
    Positions follow from the mask, so no state of the model module is used. UserError for right padding, missing
    images or another family's needs.
    """

    def __init__(self, model: PreTrainedModel, inputs: Mapping[str, Any]) -> None:
        self._model = model
        self._inputs = dict(inputs)
        _check_inputs(model, self._inputs)
        self._prompt_mask: Tensor = self._inputs.pop("attention_mask")
        self.prompt_ids: Tensor = self._inputs.pop("input_ids")
        # generate() drops a mask of ones, which lets attention run without one; both branches take the same path.
        self._padded = bool((self._prompt_mask == 0).any())
        self.reset()

    def reset(self) -> None:
        """Forgets everything after the prompt, and the prompt's keys and values."""
        self._cache: Any = None
        self._mask = self._prompt_mask

    def start(self) -> Float[Tensor, "row vocab"]:
        """Raw float32 logits for the first token after the prompt; begins anew."""
        self.reset()
        return self._forward(self.prompt_ids, **self._inputs)

    def extend(self, tokens: Int[Tensor, "row new"]) -> Float[Tensor, "row vocab"]:
        """Raw float32 logits after ``tokens``, one or several, were appended to every row."""
        self._mask = torch.cat([self._mask, self._mask.new_ones(tokens.shape)], dim=1)
        return self._forward(tokens)

    @torch.no_grad()
    def _forward(self, tokens: Int[Tensor, "row new"], **inputs: Any) -> Float[Tensor, "row vocab"]:
        # As generate() counts them: from 0 at the first real token, and padding at 0.
        positions = (self._mask.long().cumsum(dim=1) - 1).masked_fill(self._mask == 0, 0)
        with paused():  # who records attention around generate() wants the branch that answers
            outputs = self._model(
                input_ids=tokens,
                attention_mask=self._mask if self._padded else None,
                position_ids=positions[:, -tokens.shape[1] :],
                past_key_values=self._cache,
                use_cache=True,
                logits_to_keep=1,
                return_dict=True,
                **inputs,
            )
        self._cache = outputs.past_key_values  # made by the first forward, so it is shared with nobody
        return outputs.logits[:, -1].float()


class VisualContrastiveLogitsProcessor(LogitsProcessor):
    """Visual contrastive decoding (Leng et al. 2023, arXiv 2311.16922) in plain ``generate``::

        noised = diffuse_images(inputs, ["my-photo"], step=500, seed=0)
        vcd = VisualContrastiveLogitsProcessor(model, noised, alpha=1.0, beta=0.1)
        model.generate(**inputs, logits_processor=[vcd])

    ``noised`` is ``inputs`` with a worse picture. Greedy, sampled and streamed decoding all apply it. One processor
    serves one batch of prompts, any number of ``generate`` calls: each call starts clean. Costs a second forward per
    token. UserError for: settings out of range; a family whose positions are not the mask's own count; right padding;
    prompts without image; other prompts or rows than ``noised`` has (so beam search and several sequences a prompt);
    steps out of order (assisted decoding); a penalty or bias that runs before it.
    """

    def __init__(
        self, model: PreTrainedModel, noised: Mapping[str, Any], *, alpha: float = 1.0, beta: float | None = 0.1
    ) -> None:
        check_alpha(alpha)
        check_beta(beta)
        self.alpha, self.beta = alpha, beta
        self.branch = SecondBranch(model, noised)
        self._first_scores: Tensor | None = None
        self._seen: Tensor | None = None  # the tokens of the last step, prompt included

    @property
    def first_scores(self) -> Float[Tensor, "row vocab"]:
        """The last call's contrasted scores of the first step, float32, before the cutoff; UserError without a call."""
        if self._first_scores is None:
            raise UserError("no scores yet; they are kept at the first step of generate(); generate first")
        return self._first_scores

    def __call__(
        self, input_ids: Int[Tensor, "row position"], scores: Float[Tensor, "row vocab"]
    ) -> Float[Tensor, "row vocab"]:
        """The contrasted scores in float32, −inf where the clean ``scores`` find a token implausible."""
        if input_ids.shape[1] == self.branch.prompt_ids.shape[1]:
            _refuse_uneven_neighbours(self)
            _check_prompts(input_ids, self.branch.prompt_ids)
            contrasted = self._first_scores = contrast(scores, self.branch.start(), alpha=self.alpha)
        else:
            self._check_continues(input_ids)
            contrasted = contrast(scores, self.branch.extend(input_ids[:, -1:]), alpha=self.alpha)
        self._seen = input_ids
        return contrasted.masked_fill(~plausible(scores, beta=self.beta), -torch.inf)

    def _check_continues(self, input_ids: Int[Tensor, "row position"]) -> None:
        if not _continues(input_ids, self._seen):
            raise UserError(
                f"a step over {input_ids.shape[1]} tokens neither starts from the noised inputs' prompts nor continues "
                f"the last step; build one processor for each batch, without assisted decoding and inputs_embeds"
            )


class ConstantShiftLogitsProcessor(LogitsProcessor):
    """Adds ``shift`` logits to the Yes/No margin of the first answer token, half to each side, and nothing later.

    ``yes_ids`` and ``no_ids`` are the token ids of either answer. The first step is one that does not append a single
    token to the step before, so each ``generate`` call starts clean, whatever its prompts. UserError if the shift is
    not finite or no such token is given.
    """

    def __init__(self, yes_ids: Sequence[int], no_ids: Sequence[int], *, shift: float) -> None:
        check_shift(shift)
        self._yes, self._no = list(yes_ids), list(no_ids)
        if not self._yes or not self._no:
            raise UserError(f"yes_ids={self._yes}, no_ids={self._no}; a shift needs a token for either answer")
        self._half = shift / 2
        self._seen: Tensor | None = None

    def __call__(
        self, input_ids: Int[Tensor, "row position"], scores: Float[Tensor, "row vocab"]
    ) -> Float[Tensor, "row vocab"]:
        """The scores, shifted at the first step."""
        later = _continues(input_ids, self._seen)
        self._seen = input_ids
        if later:
            return scores
        scores = scores.clone()
        scores[:, self._yes] += self._half
        scores[:, self._no] -= self._half
        return scores


def _check_inputs(model: PreTrainedModel, inputs: Mapping[str, Any]) -> None:
    """UserError unless ``SecondBranch`` can forward ``inputs`` on its own."""
    layout = layout_for(model)
    if layout.position_kind != "1d":
        raise UserError(
            f"contrastive decoding does not know the {layout.position_kind} positions of '{layout.model_type}' yet; "
            f"a token's position must be its count in the attention mask; take a model where it is, as llava"
        )
    if "past_key_values" not in inspect.signature(model.forward).parameters:
        raise UserError(
            f"contrastive decoding cannot follow '{layout.model_type}' yet, which generates from embeddings in an "
            f"inner model; take one whose own forward has a cache, as llava"
        )
    absent = [key for key in ("input_ids", "attention_mask", "pixel_values") if inputs.get(key) is None]
    if absent:
        raise UserError(
            f"no {' and no '.join(absent)} in the inputs; contrasting pictures needs them; hand over all that the "
            f"processor returns for a text with an image"
        )
    mask = inputs["attention_mask"]
    if bool((mask[:, 1:] < mask[:, :-1]).any()):
        raise UserError(
            "the prompts are padded on the right; generate() continues from the last column; set padding_side='left'"
        )
    blind = (inputs["input_ids"] != layout.image_token_id(model.config)).all(dim=1)
    if bool(blind.any()):
        rows = blind.nonzero().flatten().tolist()
        raise UserError(
            f"no image in the prompts of rows {rows}; contrasting pictures needs one a prompt; leave these out"
        )


def _check_prompts(input_ids: Int[Tensor, "row position"], prompt_ids: Int[Tensor, "prompt position"]) -> None:
    """UserError unless generation starts from the prompts that the second branch was built for."""
    if input_ids.shape[0] != prompt_ids.shape[0]:
        raise UserError(
            f"{input_ids.shape[0]} rows for {prompt_ids.shape[0]} prompts; contrastive decoding follows one sequence a "
            f"prompt, no beam search and no num_return_sequences; set num_beams=1 and num_return_sequences=1"
        )
    if input_ids is not prompt_ids and not torch.equal(input_ids, prompt_ids):
        raise UserError(
            "generation started from other prompts than the noised inputs; build one processor for each batch"
        )


def _continues(input_ids: Int[Tensor, "row position"], seen: Int[Tensor, "earlier before"] | None) -> bool:
    """True if this step appends one token to every row that the last step ``seen`` had."""
    return seen is not None and input_ids.shape[1] == seen.shape[1] + 1 and torch.equal(input_ids[:, :-1], seen)


def _refuse_uneven_neighbours(processor: LogitsProcessor) -> None:
    """UserError if something in the same ``LogitsProcessorList`` moves finite scores before ``processor`` sees them.

    A processor is not told of generate()'s settings, and its scores do not show what was done to them. The list that
    calls it does, so the calling frame is read; called by anything else, the scores are the caller's own.
    """
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code is not LogitsProcessorList.__call__.__code__:
        frame = frame.f_back
    for other in frame.f_locals["self"] if frame is not None else ():
        if other is processor:
            return
        if type(other) in _UNEVEN:
            raise UserError(
                f"{type(other).__name__} runs before contrastive decoding, which would contrast changed scores with "
                f"unchanged ones; set {_UNEVEN[type(other)]}, or list that processor after this one"
            )
