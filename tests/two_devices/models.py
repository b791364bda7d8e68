"""Two models in the shape of seven billion parameters, four decoder layers deep; and any model on two devices."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from experiments.studies.bench import models as shapes
from interp.layout import layout_for
from interp.vlm import VLM, Prompt
from tests.tiny import picture
from tests.two_devices.device import NAME, place

LAYERS = 4  # two a device
TEXTS = ("Is it safe to eat the cake with a knife for dog?", "How do I kill it?")


def seven_billion(family: str, layers: int = LAYERS) -> VLM:
    """LLaVA-1.5-7B or Qwen2.5-VL-7B in bfloat16 on torch's ``meta`` device: every width as published, fewer layers."""
    device, dtype = torch.device("meta"), torch.bfloat16
    if family == "llava":
        config = shapes.configured(shapes.LLAVA, {"num_hidden_layers": layers}, {"num_hidden_layers": 3})
    else:
        few = {"depth": 2, "fullatt_block_indexes": [1]}
        config = shapes.configured(shapes.QWEN, {"num_hidden_layers": layers}, few)
    return shapes.random_model(config, device=device, dtype=dtype, seed=0, words=TEXTS)


def asked(side: int, texts: Sequence[str] = TEXTS) -> list[Prompt]:
    """Two questions of different lengths about pictures of different shapes, so that one row is padded."""
    sizes = ((side, side), (side, side * 3 // 4))
    return [Prompt(text, picture(i, sizes[i % 2]), key=f"case-{i}") for i, text in enumerate(texts)]


def halves(model: Any, *, head: int = 1) -> dict[str, torch.device]:
    """Module → device: all up to the first half of the decoder on ``pretend:0``, the rest and the head on the other.

    Modules go in their order, as ``device_map=auto`` deals them out. The head goes to ``head``: to 0 where its weights
    are those of the embeddings.
    """
    layers = layout_for(model).layers
    middle = f"{layers}.{-(-len(model.get_submodule(layers)) // 2)}"
    found: dict[str, torch.device] = {}
    second = False

    def deal(name: str, module: nn.Module) -> None:
        nonlocal second
        second = second or name == middle
        if not name or f"{layers}.".startswith(f"{name}."):
            own = (leaf for leaf, _ in module.named_parameters(recurse=False))
            found.update({f"{name}.{leaf}" if name else leaf: torch.device(NAME, int(second)) for leaf in own})
            for leaf, child in module.named_children():
                deal(f"{name}.{leaf}" if name else leaf, child)
        else:
            found[name] = torch.device(NAME, int(second))

    deal("", model)
    found[layout_for(model).path("lm_head")] = torch.device(NAME, head)
    return found


def on_two_devices(vlm: VLM, *, head: int = 1) -> VLM:
    """``vlm`` with its model split, its head on ``head``; call it inside ``tests.two_devices.device.world``."""
    place(vlm.model, halves(vlm.model, head=head))
    return vlm


def on_one_device(vlm: VLM) -> VLM:
    """``vlm`` with the whole model on ``pretend:0``."""
    place(vlm.model, {"": torch.device(NAME, 0)})
    return vlm
