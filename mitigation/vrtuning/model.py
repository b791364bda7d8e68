"""Adapters in a model: LoRA targets, 4-bit loading, and activating a saved adapter.

LoRA applies only to linear layers of the language model; paths come from the layout. A saved adapter is loaded once per
model; activating it only swaps modules.
"""

import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from interp.checkpoints.composed import is_composed
from interp.checkpoints.config import ModelConfig
from interp.checkpoints.load import check_format, find, read_config, read_processor, resolve_device, weights_hash
from interp.errors import UserError
from interp.layout import Layout, layout_for
from interp.vlm import VLM
from mitigation.vrtuning import checkpoint
from mitigation.vrtuning.settings import Settings

if TYPE_CHECKING:
    from peft import LoraConfig

KEPT = 2  # adapters kept loaded for one model
_Layers = dict[str, nn.Module]  # full name of the replaced layer → the wrapped layer
# Keyed weakly by model. Values hold its layers but not the model itself, so that both can be freed.
_LOADED: WeakKeyDictionary[nn.Module, dict[tuple[str, str], _Layers]] = WeakKeyDictionary()


def target_pattern(layout: Layout, targets: tuple[str, ...]) -> str:
    """A regular expression for the full names of the adapted layers (peft uses ``re.fullmatch``).

    It includes the decoder's path, because the vision tower has layers of the same names (``q_proj``).
    """
    names = "|".join(re.escape(name) for name in targets)
    return rf"{re.escape(layout.layers)}\.\d+\.(?:.+\.)?(?:{names})"


def lora_config(model: Any, layout: Layout, settings: Settings) -> "LoraConfig":
    """peft's settings for ``model``.

    Raises:
        UserError: no layer has one of the target names.
    """
    from peft import LoraConfig

    pattern = target_pattern(layout, settings.targets)
    if not any(re.fullmatch(pattern, name) for name, _ in model.named_modules()):
        raise UserError(
            f"no layer named {', '.join(settings.targets)} in the language model of this {layout.model_type} "
            f"checkpoint ({layout.layers}); an adapter needs at least one; correct targets"
        )
    return LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,  # type: ignore[arg-type]  # annotated int, but only divided
        lora_dropout=settings.dropout,
        target_modules=pattern,
        task_type="CAUSAL_LM",
    )


def load_four_bit(config: ModelConfig) -> VLM:
    """The model with its language model's linear layers in NF4, the rest in bfloat16.

    Raises:
        UserError: no GPU, no bitsandbytes, or as ``interp.load``.
    """
    device = resolve_device(config.device)
    if device.type != "cuda":
        raise UserError(f"four_bit=true on {device}; 4-bit weights need a CUDA GPU; leave four_bit out, or use one")
    if find_spec("bitsandbytes") is None:
        raise UserError(
            "four_bit=true, but bitsandbytes is not installed; it holds the 4-bit weights; pip install bitsandbytes"
        )
    from transformers import AutoModelForImageTextToText, BitsAndBytesConfig

    place = find(config)
    if is_composed(Path(place.path)):
        raise UserError(
            f"four_bit=true with {config.name}, which is composed of parts in bfloat16; only whole checkpoints are "
            "packed in 4 bits; leave four_bit out"
        )
    layout = layout_for(read_config(place, config))
    check_format(place)
    processor = read_processor(place, config)
    quantisation = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
        llm_int8_skip_modules=[layout.vision_tower, layout.projector, layout.lm_head],
    )
    model = AutoModelForImageTextToText.from_pretrained(
        place.path,
        **place.arguments(),
        dtype=torch.bfloat16,
        device_map={"": device},
        quantization_config=quantisation,
        attn_implementation=config.attn_implementation,
        trust_remote_code=config.trust_remote_code,
        use_safetensors=True,
    )
    return VLM(model, processor, name=config.name, revision=place.commit or weights_hash(Path(place.path)))


@contextmanager
def adapted(vlm: VLM, folder: Path, revision: str) -> Iterator[VLM]:
    """``vlm`` with the adapter of ``folder`` (hash ``revision``) active; restores its own layers afterwards.

    Raises:
        UserError: the adapter was trained on another base, does not fit this one, or the model has an adapter already.
    """
    layers = _layers(vlm, folder, revision)
    own = {name: vlm.model.get_submodule(name) for name in layers}
    _swap(vlm.model, layers)
    try:
        yield vlm
    finally:
        _swap(vlm.model, own)


def _layers(vlm: VLM, folder: Path, revision: str) -> _Layers:
    loaded = _LOADED.setdefault(vlm.model, {})
    key = (revision, f"{vlm.device} {vlm.dtype}")
    if key not in loaded:
        checkpoint.check_base(folder, vlm)
        while len(loaded) >= KEPT:
            del loaded[next(iter(loaded))]
        loaded[key] = _load(vlm, folder)
    return loaded[key]


def _load(vlm: VLM, folder: Path) -> _Layers:
    from peft import PeftModel
    from peft.tuners.tuners_utils import BaseTunerLayer

    model = vlm.model
    if any(isinstance(module, BaseTunerLayer) for module in model.modules()):
        raise UserError(f"{vlm.name} already carries an adapter; adapters cannot be stacked; pass the plain base model")
    trainable = {weight: weight.requires_grad for weight in model.parameters()}
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            PeftModel.from_pretrained(model, folder)
    except (RuntimeError, ValueError) as error:
        raise _unfit(vlm, folder, " ".join(str(error).split())[:200]) from error
    finally:
        around = {name: module for name, module in model.named_modules() if isinstance(module, BaseTunerLayer)}
        _swap(model, {name: module.get_base_layer() for name, module in around.items()})
        for name in ("peft_config", "_hf_peft_config_loaded"):
            model.__dict__.pop(name, None)
        for weight, flag in trainable.items():
            weight.requires_grad_(flag)
    if missing := [str(one.message) for one in caught if "missing adapter keys" in str(one.message).lower()]:
        raise _unfit(vlm, folder, missing[0][:200])
    return around  # type: ignore[return-value]  # each is a Module too, unlike its declared base class


def _swap(model: nn.Module, layers: Mapping[str, Any]) -> None:
    for name, layer in layers.items():
        parent, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(parent), leaf, layer)


def _unfit(vlm: VLM, folder: Path, why: str) -> UserError:
    return UserError(
        f"adapter {folder} does not fit {vlm.name} ({why}); an adapter fits the base it was trained on; choose that "
        "model, or train an adapter for this one"
    )
