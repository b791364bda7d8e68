"""Low-rank adapters that belong to a model: inserted unmerged into its decoder, and kept in peft's file format.

An adapted layer is still an ``nn.Linear`` with its own ``weight``, so that hooks, cost counts and further adapters
(peft's, in training) treat it as any other. Its output is peft's, to the bit: ``x Wᵀ + (x Aᵀ) Bᵀ · alpha / rank``.
"""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from interp.errors import UserError
from interp.layout import Layout

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"  # peft's names
PREFIX = "base_model.model."  # what peft puts before a module's name
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
PLAIN: dict[str, Any] = {"peft_type": "LORA", "bias": "none", "use_dora": False, "use_rslora": False}
OTHERWISE = ("rank_pattern", "alpha_pattern", "modules_to_save", "trainable_token_indices")  # must be empty


class LoraLinear(nn.Linear):
    """A linear layer with a low-rank addition. ``lora_A`` is [rank in], ``lora_B`` [out rank]."""

    def __init__(
        self, linear: nn.Linear, a: Float[Tensor, "rank in"], b: Float[Tensor, "out rank"], scale: float
    ) -> None:
        nn.Module.__init__(self)  # the layer's own weight is taken over, none is drawn
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.lora_A, self.lora_B = nn.Parameter(a), nn.Parameter(b)
        self.scale = scale
        self.train(linear.training)

    def forward(self, input: Float[Tensor, "*row in"]) -> Float[Tensor, "*row out"]:
        added = nn.functional.linear(nn.functional.linear(input, self.lora_A), self.lora_B)
        return super().forward(input) + added * self.scale


def adapted_layers(model: nn.Module) -> dict[str, LoraLinear]:
    """Full name → adapted layer; empty for a model without an adapter of its own."""
    return {name: module for name, module in model.named_modules() if isinstance(module, LoraLinear)}


def plain_state(model: nn.Module) -> dict[str, Tensor]:
    """The state dict of ``model`` with its own adapter added to the weights, as a checkpoint without parts has it.

    The sum is formed in float32 and rounded to the layer's type; ``model`` does not change.
    """
    state = dict(model.state_dict())
    for name, layer in adapted_layers(model).items():
        a, b = (state.pop(f"{name}.{part}") for part in ("lora_A", "lora_B"))
        weight = state[f"{name}.weight"]
        state[f"{name}.weight"] = (weight.float() + (b.float() @ a.float()) * layer.scale).to(weight.dtype)
    return state


def insert_new(model: nn.Module, layout: Layout, *, rank: int, alpha: float) -> None:
    """Puts an adapter that changes nothing yet on every linear layer of the decoder, in place.

    ``lora_A`` is drawn from the global generator as peft draws it, ``lora_B`` is 0.
    """
    for name, linear in list(_linears(model, layout)):
        a = torch.empty(rank, linear.in_features, dtype=linear.weight.dtype, device=linear.weight.device)
        nn.init.kaiming_uniform_(a, a=math.sqrt(5))
        _replace(model, name, LoraLinear(linear, a, a.new_zeros(linear.out_features, rank), alpha / rank))


def _linears(model: nn.Module, layout: Layout) -> Iterator[tuple[str, nn.Linear]]:
    pattern = re.compile(rf"{re.escape(layout.layers)}\.\d+\.(?:.+\.)?(?:{'|'.join(TARGETS)})")
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and pattern.fullmatch(name):
            yield name, module


def _replace(model: nn.Module, name: str, layer: nn.Module) -> None:
    parent, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(parent), leaf, layer)


def save_adapter(model: nn.Module, layout: Layout, folder: Path, *, base: str, revision: str) -> None:
    """Writes the adapter in bfloat16, in peft's format, to ``folder``, which is created.

    ``base`` and ``revision`` name the weights that it was trained on.
    """
    from peft import LoraConfig
    from safetensors.torch import save_file

    layers = adapted_layers(model)
    first = next(iter(layers.values()))
    rank = first.lora_A.shape[0]
    config = LoraConfig(
        r=rank,
        lora_alpha=round(first.scale * rank),
        lora_dropout=0.0,
        target_modules=rf"{re.escape(layout.layers)}\.\d+\.(?:.+\.)?(?:{'|'.join(TARGETS)})",
        task_type="CAUSAL_LM",
        base_model_name_or_path=base,
        revision=revision,
        inference_mode=True,
    )
    config.save_pretrained(str(folder))
    state = {
        f"{PREFIX}{name}.{part}.weight": getattr(layer, part).detach().to("cpu", torch.bfloat16).contiguous()
        for name, layer in layers.items()
        for part in ("lora_A", "lora_B")
    }
    save_file(state, folder / WEIGHTS, metadata={"format": "pt"})


def read_adapter_config(folder: Path) -> dict[str, Any]:
    """The settings of the adapter in ``folder``.

    Raises:
        UserError: not there, not readable, or not a plain LoRA adapter, which is all that is composed here.
    """
    path = folder / CONFIG
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        float(found["lora_alpha"]), int(found["r"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"cannot read {path}; it holds the settings of the model's adapter; fetch it again") from error
    other = [f"{key}={found[key]}" for key, value in PLAIN.items() if found.get(key, value) != value]
    other += [key for key in OTHERWISE if found.get(key)]
    if other:
        raise UserError(
            f"the adapter in {folder} is not a plain LoRA adapter ({', '.join(other)}); only those are composed at "
            "load; merge it into its base with peft and give the merged folder"
        )
    return found


def insert_saved(model: nn.Module, folder: Path) -> None:
    """Puts the adapter of ``folder`` into ``model``, unmerged and in the type of the layers that it goes to.

    Raises:
        UserError: an adapter that cannot be read or does not fit the model.
    """
    from safetensors.torch import load_file

    settings = read_adapter_config(folder)
    scale = float(settings["lora_alpha"]) / int(settings["r"])
    try:
        state = load_file(folder / WEIGHTS)
    except Exception as error:  # safetensors raises its own type for each way to be broken
        raise UserError(f"cannot read {folder / WEIGHTS}; it holds the model's adapter; fetch it again") from error
    names = {name.removeprefix(PREFIX).removesuffix(".lora_A.weight") for name in state if ".lora_A." in name}
    if not names or len(state) != 2 * len(names):
        raise _unfit(folder, f"{len(state)} tensors for {len(names)} layers")
    for name in sorted(names):
        a, b = (state.get(f"{PREFIX}{name}.{part}.weight") for part in ("lora_A", "lora_B"))
        try:
            linear: Any = model.get_submodule(name)
        except AttributeError as error:
            raise _unfit(folder, f"the model has no {name}") from error
        if a is None or b is None or not isinstance(linear, nn.Linear):
            raise _unfit(folder, name)
        if (b.shape[0], a.shape[1]) != tuple(linear.weight.shape) or a.shape[0] != b.shape[1]:
            raise _unfit(folder, f"{name} is {list(linear.weight.shape)}, its addition {b.shape[0]} × {a.shape[1]}")
        _replace(model, name, LoraLinear(linear, a.to(linear.weight), b.to(linear.weight), scale))


def _unfit(folder: Path, why: str) -> UserError:
    return UserError(
        f"the adapter in {folder} does not fit the model beside it ({why}); both are saved together; fetch the folder "
        "again"
    )
