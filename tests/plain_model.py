"""The plain model's checksum: whatever an arm does to a model that others share, afterwards it is bit-equal again."""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from transformers import GenerationConfig, PretrainedConfig

from interp.vlm import VLM

State = dict[str, Any]


def state(vlm: VLM) -> State:
    """All that decides an answer and is shared between arms, by name.

    Of each module: its identity, the names of its attributes, its hooks of every kind and its settings; of each
    parameter and buffer its bits. Of the process: the state of random numbers, gradients, the default type.
    """
    kept = [name for name in vars(vlm) if not isinstance(getattr(type(vlm), name, None), cached_property)]
    found: State = {"vlm": sorted(kept), "process": _process()}
    found |= {f"{name} of the processor": value for name, value in _words(vlm).items()}
    for name, module in vlm.model.named_modules(remove_duplicate=False):
        found[f"module {name}"] = (id(module), module.training, sorted(vars(module)))
        for key, value in vars(module).items():
            if "_hooks" in key and isinstance(value, Mapping):
                found[f"{key} of {name}"] = [(place, id(hook)) for place, hook in value.items()]
            elif isinstance(value, GenerationConfig | PretrainedConfig):
                found[f"{key} of {name}"] = repr(_plain(value))
    tensors = [
        *vlm.model.named_parameters(remove_duplicate=False), *vlm.model.named_buffers(remove_duplicate=False)
    ]  # fmt: skip
    for name, tensor in tensors:
        bits = tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
        found[f"tensor {name}"] = (
            id(tensor),
            tensor.requires_grad,
            str(tensor.dtype),
            hashlib.sha256(bits).hexdigest(),
        )
    return found


@contextmanager
def plain_afterwards(vlm: VLM) -> Iterator[None]:
    """Fails where the model is another one when the block ends, also by an exception, and names what differs."""
    before = state(vlm)
    try:
        yield
    finally:
        after = state(vlm)
        other = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
        assert not other, f"not as it was: {', '.join(other)}"


def _process() -> tuple[Any, ...]:
    drawn = hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest()
    return drawn, torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype()


def _words(vlm: VLM) -> dict[str, Any]:
    sides = {name: getattr(vlm.tokenizer, name, None) for name in ("padding_side", "truncation_side", "chat_template")}
    return {**sides, "own template": getattr(vlm.processor, "chat_template", None)}


def _plain(config: Any) -> dict[str, Any]:
    """The settings, with the way attention is computed, which ``to_dict`` leaves out."""
    own = {"attention": getattr(config, "_attn_implementation", None), **config.to_dict()}
    parts = getattr(config, "sub_configs", None) or {}
    return own | {name: _plain(getattr(config, name)) for name in parts if getattr(config, name, None) is not None}
