"""The reference: whole attention matrices by transformers' eager implementation, keyed by layer, never by position."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor

from interp.vlm import VLM


@contextmanager
def eager_weights(vlm: VLM) -> Iterator[dict[int, list[Tensor]]]:
    """Layer → weights (row, head, query, key) of each forward, the language model being eager meanwhile."""
    text = vlm.model.config.get_text_config()
    before = text._attn_implementation
    found: dict[int, list[Tensor]] = defaultdict(list)

    def keep(layer: int, module: Any, args: Any, output: Any) -> None:
        found[layer].append(output[1])

    hooks = [
        module.register_forward_hook(partial(keep, layer)) for layer, module in vlm.layout.attentions(vlm.model).items()
    ]
    vlm.model.set_attn_implementation({vlm.layout.text_config: "eager"})
    try:
        yield found
    finally:
        vlm.model.set_attn_implementation({vlm.layout.text_config: before})
        for hook in hooks:
            hook.remove()
