"""The reference: whole attention matrices by transformers' eager implementation, keyed by layer, never by position."""

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from interp.module_map import switched
from interp.vlm import VLM


@contextmanager
def eager_weights(vlm: VLM) -> Iterator[dict[int, list[Tensor]]]:
    """Layer → weights (row, head, query, key) of each forward, the language model being eager meanwhile."""
    found: dict[int, list[Tensor]] = defaultdict(list)

    def keep(layer: int, module: Any, args: Any, output: Any) -> None:
        found[layer].append(output[1])

    hooks = [
        module.register_forward_hook(partial(keep, layer))
        for layer, module in vlm.module_map.attentions(vlm.model).items()
    ]
    try:
        with switched(vlm.module_map.module(vlm.model, "language_model"), "eager"):
            yield found
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def eager_masked(vlm: VLM, edit: Callable[[int, Tensor, Any, Any, dict[str, Any]], None]) -> Iterator[None]:
    """The language model is eager, and ``edit(layer, mask, query, key, options)`` changes each additive mask in place.

    A mask is (row, head, query, key), for which queries are the last columns.
    """
    attentions = {module: layer for layer, module in vlm.module_map.attentions(vlm.model).items()}
    source: Any = sys.modules[type(next(iter(attentions))).__module__]
    eager = source.eager_attention_forward

    def edited(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **options: Any) -> Any:
        if module in attentions:
            shape = (*query.shape[:3], key.shape[2])
            attention_mask = torch.zeros(shape) if attention_mask is None else attention_mask.expand(shape).clone()
            edit(attentions[module], attention_mask, query, key, options)
        return eager(module, query, key, value, attention_mask, **options)

    source.eager_attention_forward = edited
    try:
        with switched(vlm.module_map.module(vlm.model, "language_model"), "eager"):
            yield
    finally:
        source.eager_attention_forward = eager


def real_logits(vlm: VLM, encoded: Any) -> Tensor:
    """Of all tokens that are not padding."""
    with torch.no_grad():
        return vlm.model(**encoded).logits[encoded["attention_mask"].bool()].float()


def implementations(model: Any) -> list[tuple[Any, str | None]]:
    """Every config of the model and its parts, with its attention implementation."""
    # IDEFICS' gated layers have an attribute ``config`` that is a number.
    configs = {id(m.config): m.config for m in model.modules() if hasattr(getattr(m, "config", None), "sub_configs")}
    waiting = list(configs.values())
    while waiting:
        config = waiting.pop()
        for name in getattr(config, "sub_configs", {}):
            part = getattr(config, name, None)
            if part is not None and id(part) not in configs:
                configs[id(part)] = part
                waiting.append(part)
    return [(config, config._attn_implementation) for config in configs.values()]
