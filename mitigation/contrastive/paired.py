"""Contrastive decoding in one batch: the clean rows, then as many noised ones; each pair gets the same token.

A decoding step then reads the weights only once. ``generate`` is not changed. A logits processor contrasts the two
halves of the scores and returns the same row for both. So both get the same token.

The noised rows stay in this module. Whoever generates a paired batch gives and gets the clean rows only
(``PairedBatch``): inputs, other logits processors, stopping criteria, streamed tokens and sequences.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, PreTrainedModel, StoppingCriteria, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

from interp.errors import UserError
from interp.families import PER_TOKEN
from interp.generation import AnswerScores
from interp.hooks.attention import is_intercepted
from interp.module_map import module_map_of
from interp.output_head import float32_head
from mitigation.contrastive.processors import UNEVEN, ContrastLogitsProcessor, check_inputs, contrast, cut
from mitigation.method import check_alpha, check_beta

# Left padding values of tensors by token, for halves whose prompts differ in length. Other processor outputs are by
# picture, or (the Q-Former's text) not padded on the left.
_FILL = {"input_ids": None, "attention_mask": 0, "token_type_ids": 0, "mm_token_type_ids": 0}
_FILL |= dict.fromkeys(PER_TOKEN, 0)
_PLAIN: dict[str, Any] = {"do_sample": False, "temperature": 1.0, "top_k": None, "top_p": 1.0}
_ONE = ("num_beams", "num_return_sequences")

Run = Callable[[Mapping[str, Any], dict[str, Any]], Any]
"""Runs ``generate`` with inputs and options, and returns its output."""


class PairedOutput(NamedTuple):
    """``sequences`` of ``generate`` for the clean rows; ``first_scores`` are contrasted, before the cutoff."""

    sequences: Int[Tensor, "row position"]
    first_scores: Float[Tensor, "row vocab"]


def generate_paired(
    model: PreTrainedModel,
    inputs: Mapping[str, Any],
    noised: Mapping[str, Any],
    *,
    alpha: float,
    beta: float | None,
    streamer: BaseStreamer | None = None,
    max_new_tokens: int,
    logits_processor: Sequence[LogitsProcessor] | None = None,
    **generate_kwargs: Any,
) -> PairedOutput:
    """Visual contrastive decoding (arXiv 2311.16922) of ``inputs`` against ``noised``, both from the processor.

    The tokens are the same as with ``VisualContrastiveLogitsProcessor``. ``logits_processor`` run after the contrast,
    on the clean rows: end them with a ``mitigation.processors.CaseSampler`` (a key for each row) to sample. The
    checkpoint's own sampling settings are ignored. Needs memory for twice the rows; adds no synchronisation with the
    device. ``streamer`` receives the clean rows.

    Raises:
        UserError: settings out of range, beams or several sequences per prompt, right padding, or prompts without
            image. A penalty or bias (also from ``model.generation_config``: pass ``repetition_penalty=1.0``). The
            inputs do not fit together. Attention is being recorded or edited, which would see both halves.
    """
    refuse_recording(model)
    options: dict[str, Any] = dict.fromkeys(_ONE, 1) | generate_kwargs
    for name in _ONE:
        if options[name] != 1:
            raise UserError(f"{name}={options[name]}; a pair of rows follows one sequence a prompt; remove {name}")
    both = pair_inputs(model, inputs, noised)
    pairing = PairedContrastLogitsProcessor(model, both["input_ids"], alpha=alpha, beta=beta)
    generate: Any = model.generate
    options |= {**_PLAIN, "max_new_tokens": max_new_tokens, "streamer": streamer}
    options["logits_processor"] = [pairing, *(logits_processor or ())]
    with float32_head(model):
        sequences = PairedBatch(both, pairing)(lambda rows, chosen: generate(**rows, **chosen), inputs, options)
    return PairedOutput(sequences, pairing.first_scores)


@dataclass(frozen=True)
class PairedBatch:
    """Decodes ``inputs``, clean rows above noised rows (``pair_inputs``), for a caller that sees the clean rows only.

    Pass it to ``VLM.generate`` as ``decode``, with the clean rows' inputs and ``pairing`` among the logits processors.
    """

    inputs: Mapping[str, Any]
    pairing: "PairedContrastLogitsProcessor"

    def __call__(self, run: Run, clean: Mapping[str, Any], options: Mapping[str, Any]) -> Int[Tensor, "row position"]:
        """Return the clean rows' sequences.

        Args:
            run: is called with the inputs and options for both halves.
            clean: the clean rows' inputs.
            options: the clean rows' options of ``generate``.
        """
        rows, width = clean["input_ids"].shape
        prompts = self.inputs["input_ids"]
        padding = prompts.shape[1] - width  # columns that the clean rows lack
        processors = list(options["logits_processor"])
        index = processors.index(self.pairing)
        self.pairing.before = LogitsProcessorList(processors[:index])
        self.pairing.after = LogitsProcessorList(processors[index + 1 :])
        self.pairing.padding = padding
        doubled: dict[str, Any] = {"logits_processor": LogitsProcessorList([self.pairing])}
        if stops := options.get("stopping_criteria"):
            doubled["stopping_criteria"] = StoppingCriteriaList([_CleanStop(stop, rows, padding) for stop in stops])
        if (streamer := options.get("streamer")) is not None:
            doubled["streamer"] = _CleanRows(streamer)
        try:
            output = run(self.inputs, {**options, **doubled})
        finally:  # a processor after the contrast may refer to it: a cycle would keep the hook
            self.pairing.before, self.pairing.after = LogitsProcessorList(), LogitsProcessorList()
        sequences: Any = getattr(output, "sequences", output)
        begins = torch.equal(sequences[:, : prompts.shape[1]].to(prompts.device), prompts)  # in some families
        clean_rows: Tensor = sequences[:rows, padding if begins else 0 :]
        return clean_rows


class PairedContrastLogitsProcessor(ContrastLogitsProcessor):
    """Contrasts the first half of the rows with the second and returns the result for both halves.

    ``prompt_ids`` has both halves (``pair_inputs``). ``branches`` keeps both halves' scores before the contrast.
    ``before`` and ``after`` are processors that run on the clean rows; those before may only read scores or forbid
    tokens. ``padding`` is how many columns of padding both halves have left of the clean rows' own prompts.

    Raises:
        UserError: settings out of range; while generating, as ``VisualContrastiveLogitsProcessor``.
    """

    def __init__(
        self,
        model: Any,
        prompt_ids: Int[Tensor, "row position"],
        *,
        alpha: float,
        beta: float | None,
        branches: AnswerScores | None = None,
    ) -> None:
        check_alpha(alpha)
        check_beta(beta)
        self.alpha, self.beta, self._branches = alpha, beta, branches
        self.before, self.after, self.padding = LogitsProcessorList(), LogitsProcessorList(), 0
        super().__init__(model, prompt_ids)

    def __call__(
        self, input_ids: Int[Tensor, "row position"], scores: Float[Tensor, "row vocab"]
    ) -> Float[Tensor, "row vocab"]:
        """Return the pairs' contrasted scores, for both halves."""
        generated = self._steps.follow(input_ids, scores)
        clean, noised = scores.chunk(2)
        ids: Any = input_ids[: len(clean), self.padding :]
        raw, clean = clean, cast("Tensor", self.before(ids, cast(Any, clean)))
        if clean is not raw and bool(((clean != raw) & clean.isfinite()).any()):  # to compare waits for the device
            raise UserError(UNEVEN)
        step = generated.shape[1]
        if self._branches is not None:
            self._branches.add(step, clean, noised)
        # For a token that is forbidden in both halves, −inf − (−inf) would give NaN.
        noised = noised.clamp(min=torch.finfo(noised.dtype).min / max(1.0, self.alpha))
        contrasted = contrast(clean, noised, alpha=self.alpha)
        self._keep(step, contrasted)
        result: Any = self.after(ids, cast(Any, cut(contrasted, clean, beta=self.beta)))
        return torch.cat([result, result])


def pair_inputs(model: PreTrainedModel, inputs: Mapping[str, Any], noised: Mapping[str, Any]) -> dict[str, Any]:
    """Return one batch of twice the rows: all of ``inputs``, then all of ``noised``.

    If the noised prompts differ in length (another picture, or none), the shorter half gets more left padding. Tiled
    pictures are padded to the larger number of tiles.

    Raises:
        UserError: right padding, clean prompts without image, or halves that do not fit together.
    """
    check_inputs(model, inputs)
    check_inputs(model, noised, blind=True)
    _refuse_bare_rows(model, noised)
    rows, other = len(inputs["input_ids"]), len(noised["input_ids"])
    if rows != other:
        raise UserError(f"{other} noised prompts for {rows} clean ones; each row is contrasted with its own; pair them")
    both: dict[str, Any] = {}
    for name, clean in inputs.items():
        worse = noised.get(name)
        if worse is None and name not in _FILL:
            both[name] = clean  # noised prompts without a picture use no image features
        elif isinstance(clean, Tensor):
            both[name] = _joined(name, clean, torch.zeros_like(noised["input_ids"]) if worse is None else worse)
    return both


def _refuse_bare_rows(model: PreTrainedModel, noised: Mapping[str, Any]) -> None:
    """Reject noised rows without pictures for Llama 3.2, which skips cross-attention layers for whole batches only."""
    module_map = module_map_of(model)
    if module_map.cross_attended and noised.get("pixel_values") is None:
        raise UserError(
            f"the noised prompts have no picture, and {module_map.model_type} skips layers for a whole batch without "
            "pictures; prompts with and without cannot be one batch; contrast them in two branches "
            "(branch='sequential', VisualContrastiveLogitsProcessor)"
        )


def _joined(name: str, clean: Tensor, worse: Tensor) -> Tensor:
    if name in _FILL:
        width = max(clean.shape[1], worse.shape[1])
        # Masked tokens are never read; repeat the first token, since 0 may not be a valid id.
        halves = [_widen(half, width, _FILL[name]) for half in (clean, worse)]
    elif clean.ndim > 3 and clean.shape[2:] == worse.shape[2:]:
        tiles = max(clean.shape[1], worse.shape[1])
        halves = [
            torch.cat([half, half.new_zeros(len(half), tiles - half.shape[1], *half.shape[2:])], dim=1)
            for half in (clean, worse)
        ]
    else:
        halves = [clean, worse]
    try:
        return torch.cat(halves)
    except RuntimeError as error:
        raise UserError(
            f"{name} is {tuple(clean.shape)} for the clean and {tuple(worse.shape)} for the noised prompts; these "
            f"cannot be one batch; contrast them in two branches (VisualContrastiveLogitsProcessor)"
        ) from error


def _widen(tokens: Int[Tensor, "row _ *rest"], width: int, fill: int | None) -> Int[Tensor, "row width *rest"]:
    missing = width - tokens.shape[1]
    if not missing:
        return tokens
    left = tokens[:, :1].expand(-1, missing, *tokens.shape[2:])
    return torch.cat([left if fill is None else torch.full_like(left, fill), tokens], dim=1)


def refuse_recording(model: PreTrainedModel) -> None:
    """Reject a paired batch while attention of ``model`` is recorded or edited: half of the rows are noised.

    Raises:
        UserError: attention is being recorded or edited.
    """
    if is_intercepted(model):
        raise UserError(
            "attention is being recorded or edited, and a paired batch also has the noised rows; generate with two "
            "branches (branch='sequential') while it is"
        )


class _CleanStop(StoppingCriteria):
    """Asks ``stop`` about the clean rows, and ends both rows of a pair together."""

    def __init__(self, stop: Any, rows: int, padding: int) -> None:
        self._stop, self._rows, self._padding = stop, rows, padding

    def __call__(self, input_ids: Int[Tensor, "row position"], scores: Any, **options: Any) -> Bool[Tensor, " row"]:
        """Return which rows have ended."""
        ended: Tensor = self._stop(input_ids[: self._rows, self._padding :], scores, **options)
        return torch.cat([ended, ended])


class _CleanRows(BaseStreamer):
    """Forwards the first half of the rows that ``generate`` streams."""

    def __init__(self, streamer: BaseStreamer) -> None:
        self._streamer = streamer

    def put(self, value: Tensor) -> None:
        self._streamer.put(value[: len(value) // 2])

    def end(self) -> None:
        self._streamer.end()
