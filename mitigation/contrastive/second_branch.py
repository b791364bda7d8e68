"""The second branch of contrastive decoding: the same continuation after another prompt, with its own KV cache.

It shares no state with the running ``generate``. Positions are computed once for the prompt and then incremented, so
that no state of the model (Qwen's ``rope_deltas``) is read or written. The first forward creates the cache.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from interp.errors import UserError
from interp.generation import cache_in, with_cache
from interp.hooks.forward import paused
from interp.module_map import ModuleMap, module_map_of

Prefill = Callable[[Mapping[str, Any], Callable[[], Any]], Any]
"""(inputs, run) → the result of ``run``, or a copy of an earlier result for the same inputs."""


class SecondBranch:
    """The same text after another picture, run step by step by ``model`` (transformers, or a peft wrapper).

    ``inputs`` are the processor's outputs for the batch, with the pictures replaced. They are ``input_ids`` and
    ``attention_mask`` (left-padded), ``pixel_values``, and the other inputs of the family's first forward. ``blind``
    allows prompts without a picture. ``prefill`` runs the prompts, or copies an earlier result (``VLM.prefill``).

    Raises:
        UserError: right padding or missing images.
    """

    def __init__(
        self, model: Any, inputs: Mapping[str, Any], *, blind: bool = False, prefill: Prefill | None = None
    ) -> None:
        model, self._prefill = bare(model), prefill
        module_map = module_map_of(model)
        check_inputs(model, inputs, blind=blind)
        self._model, self._along, self.speaker = model, module_map.along, speaker_of(model)
        self._prompts = _prompts(model, module_map, inputs)
        self.reset()

    @property
    def prompt_ids(self) -> Int[Tensor, "row position"]:
        """Return token ids of this branch's prompts."""
        return self._prompts.inputs["input_ids"]

    def reset(self) -> None:
        """Discard the cache and all tokens after the prompt."""
        self._cache: Any = None
        self._seen: dict[str, Any] = {}
        self._mask = self._prompts.mask
        self._next = self._prompts.positions[..., -1:] + 1

    def start(self) -> Float[Tensor, "row vocab"]:
        """Run the prompt from scratch and return raw float32 logits for the first token after it."""
        self.reset()
        prompts = self._prompts

        def run() -> tuple[Tensor, Any, dict[str, Any]]:
            return self._forward(self._model, prompts.positions, **prompts.inputs), self._cache, self._seen

        inputs = {**prompts.inputs, "mask": prompts.mask, "positions": prompts.positions}
        logits, self._cache, self._seen = run() if self._prefill is None else self._prefill(inputs, run)
        return cast("Tensor", logits)

    def extend(self, tokens: Int[Tensor, "row new"]) -> Float[Tensor, "row vocab"]:
        """Append ``tokens`` (one or several per row) and return the raw float32 logits after them."""
        count = tokens.shape[1]
        positions = self._next if count == 1 else self._next + torch.arange(count, device=tokens.device)
        self._next = positions[..., -1:] + 1
        if self._prompts.padded:
            self._mask = torch.cat([self._mask, self._mask.new_ones(tokens.shape)], dim=1)
        return self._forward(self.speaker, positions, input_ids=tokens, **self._of_the_picture(count))

    def _of_the_picture(self, count: int) -> dict[str, Any]:
        """Return cross-attention masks for ``count`` new tokens, equal to the mask of the prompt's last token."""
        given = self._prompts.inputs
        masks = {name: given[name][:, -1:] for name in self._along if given.get(name) is not None}
        rows = {name: mask.expand(-1, count, *mask.shape[2:]) for name, mask in masks.items()}
        return rows | self._seen

    @torch.no_grad()
    def _forward(
        self, module: Any, positions: Int[Tensor, "*axis row new"], **inputs: Any
    ) -> Float[Tensor, "row vocab"]:
        def run(cache: Any) -> Any:
            return module(
                # Like generate(), drop a mask of ones, so that both branches use the same attention path.
                attention_mask=self._mask if self._prompts.padded else None,
                position_ids=positions,
                **with_cache(cache),
                use_cache=True,
                logits_to_keep=1,
                return_dict=True,
                **inputs,
            )

        with paused():  # attention is recorded and edited in the main branch only
            outputs = run(self._cache)
            # Created by the first forward, so not shared.
            self._cache = cache_in(getattr(outputs, "language_model_outputs", outputs))
            if self._cache is None:  # a model that fills a cache and makes none
                self._cache = DynamicCache(config=self._model.config.get_text_config())
                outputs = run(self._cache)
        if (
            "image_attention_mask" in self._along
        ):  # IDEFICS does not cache the picture's keys and needs its features again
            resampled = self._model.config.use_resampler
            name = "perceiver_embeddings" if resampled else "image_encoder_embeddings"
            self._seen = {name: _features_in(outputs)}
        # Where the decoder's forward is called alone, its logits stay on the device of its head.
        return outputs.logits[:, -1].to(self._prompts.mask.device, torch.float32)


def _features_in(outputs: Any) -> Any:
    """Return a picture's features in a forward's output, which transformers keeps elsewhere from 5.24 on."""
    encoded = getattr(outputs, "image_outputs", None)
    return outputs.image_hidden_states if encoded is None else encoded.pooler_output


@dataclass(frozen=True)
class _Prompts:
    """A batch of prompts: the processor's ``inputs`` without the mask, and the position of every token."""

    inputs: dict[str, Any]
    mask: Int[Tensor, "row position"]
    positions: Int[Tensor, "*axis row position"]  # Qwen: text position, then frame, row and column
    padded: bool


def _prompts(model: PreTrainedModel, module_map: ModuleMap, inputs: Mapping[str, Any]) -> _Prompts:
    """Return the prompts with positions as in generate(): from 0 at the first real token; 0 for padding."""
    rest = dict(inputs)
    mask: Tensor = rest.pop("attention_mask")
    positions = (mask.long().cumsum(dim=1) - 1).masked_fill(mask == 0, 0)
    if module_map.position_kind == "mrope":
        with _kept_deltas(model):
            prepared: Any = model._prepare_position_ids_for_generation
            positions = prepared(rest["input_ids"], {**rest, "attention_mask": mask})
    return _Prompts(rest, mask, positions, padded=bool((mask == 0).any()))


@contextmanager
def _kept_deltas(model: PreTrainedModel) -> Iterator[None]:
    """Restore what generate() keeps of positions in the model: the main branch is still decoding with it."""
    held = [(module, module.rope_deltas) for module in model.modules() if hasattr(module, "rope_deltas")]
    try:
        yield
    finally:
        for module, deltas in held:
            module.rope_deltas = deltas


def bare(model: Any) -> Any:
    """Return the model inside a peft wrapper, whose layers contain the adapter's; another model as it is."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def speaker_of(model: Any) -> Any:
    """Return the module with the output head. Nested in InstructBLIP: the outer forward embeds, the inner decodes."""
    model = bare(model)
    return model.get_submodule(module_map_of(model).lm_head.rpartition(".")[0])


def check_inputs(model: PreTrainedModel, inputs: Mapping[str, Any], *, blind: bool = False) -> None:
    """Check the processor's outputs.

    Raises:
        UserError: missing inputs, right padding or (unless ``blind``) prompts without a picture.
    """
    module_map = module_map_of(model)
    needed = ("input_ids", "attention_mask") if blind else ("input_ids", "attention_mask", "pixel_values")
    absent = [key for key in needed if inputs.get(key) is None]
    if absent:
        raise UserError(
            f"no {' and no '.join(absent)} in the inputs; contrasting pictures needs them; pass all that the "
            f"processor returns for a text with an image"
        )
    # Check the last column only: InstructBLIP's processor puts the image tokens before the padding.
    if not bool(inputs["attention_mask"][:, -1].all()):
        raise UserError(
            "the prompts are padded on the right; generate() continues from the last column; set padding_side='left'"
        )
    if blind:
        return
    if module_map.cross_attended:
        without = ~torch.stack([inputs[name].flatten(1).any(dim=1) for name in module_map.along]).any(dim=0)
    else:
        without = (inputs["input_ids"] != module_map.image_token_id(model.config)).all(dim=1)
    if bool(without.any()):
        rows = without.nonzero().flatten().tolist()
        raise UserError(
            f"no image in the prompts of rows {rows}; contrasting pictures needs one a prompt; remove these rows"
        )
