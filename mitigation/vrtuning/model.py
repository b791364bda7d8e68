"""Adapters in a model: LoRA targets, 4-bit loading, and activating a saved adapter.

LoRA applies only to linear layers of the language model; paths come from the layout. A saved adapter is loaded once per
model; activating it only swaps modules.
"""

import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from interp.checkpoints.config import ModelConfig, find, weights_hash
from interp.checkpoints.load import check_format, read_config, read_processor, resolve_device
from interp.errors import UserError
from interp.generation import seeded
from interp.module_map import ModuleMap, module_map_of
from interp.vlm import VLM
from mitigation.vrtuning import checkpoint
from mitigation.vrtuning.settings import Settings

if TYPE_CHECKING:
    from peft import LoraConfig

KEPT = 2  # adapters kept loaded for one model
INSIDE = "base_model.model."  # what peft puts before the names of the model's own modules
WRAPPED = re.compile(r"\.(?:base_layer|original_module)(?=\.)")  # and into them
# Keyed weakly by model. Values hold its layers but not the model itself, so that both can be freed.
_LOADED: WeakKeyDictionary[nn.Module, dict[tuple[str, str], "_Adapter"]] = WeakKeyDictionary()
_SAID: set[str] = set()  # revisions that were described; those of many arms are loaded by turns


def target_pattern(module_map: ModuleMap, targets: tuple[str, ...]) -> str:
    """Return a regular expression for the full names of the adapted layers (peft uses ``re.fullmatch``).

    It includes the decoder's path, because the vision tower has layers of the same names (``q_proj``).
    """
    names = "|".join(re.escape(name) for name in targets)
    return rf"{re.escape(module_map.layers)}\.\d+\.(?:.+\.)?(?:{names})"


def lora_config(model: Any, module_map: ModuleMap, settings: Settings) -> "LoraConfig":
    """Return peft's settings for ``model``.

    Raises:
        UserError: no layer has one of the target names.
    """
    from peft import LoraConfig

    pattern = target_pattern(module_map, settings.targets)
    if not any(re.fullmatch(pattern, name) for name, _ in model.named_modules()):
        raise UserError(
            f"no layer named {', '.join(settings.targets)} in the language model of this {module_map.model_type} "
            f"checkpoint ({module_map.layers}); an adapter needs at least one; correct targets"
        )
    return LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,  # type: ignore[arg-type]  # annotated int, but only divided
        lora_dropout=settings.dropout,
        target_modules=pattern,
        task_type="CAUSAL_LM",
    )


def load_four_bit(config: ModelConfig) -> VLM:
    """Return the model with its language model's linear layers in NF4, the rest in bfloat16.

    Raises:
        UserError: no GPU, no bitsandbytes, or as ``interp.load``.
    """
    device = resolve_device(config.device)
    if device.type != "cuda":
        raise UserError(f"four_bit=true on {device}; 4-bit weights need a CUDA GPU; remove four_bit, or use a GPU")
    if find_spec("bitsandbytes") is None:
        raise UserError(
            "four_bit=true, but bitsandbytes is not installed; the 4-bit weights need it; pip install bitsandbytes"
        )
    from transformers import AutoModelForImageTextToText, BitsAndBytesConfig

    source = find(config)
    module_map = module_map_of(read_config(source, config))
    check_format(source)
    processor = read_processor(source, config)
    quantisation = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
        llm_int8_skip_modules=[module_map.vision_tower, module_map.projector, module_map.lm_head],
    )
    model = AutoModelForImageTextToText.from_pretrained(
        source.path,
        **source.arguments(),
        dtype=torch.bfloat16,
        device_map={"": device},
        quantization_config=quantisation,
        attn_implementation=config.attn_implementation,
        use_safetensors=True,
    )
    return VLM(model, processor, name=config.name, revision=source.commit or weights_hash(Path(source.path)))


class _Adapter(NamedTuple):
    """What an adapter puts into a model while it is in effect, by the name of what it replaces."""

    modules: dict[str, nn.Module]  # layers with the adapter's around them, and whole modules that it brings
    values: dict[str, torch.Tensor]  # of parameters of the model itself that it trained, such as biases


@contextmanager
def adapted(vlm: VLM, folder: Path, revision: str) -> Iterator[VLM]:
    """Return ``vlm`` with the adapter of ``folder`` (hash ``revision``) in effect; the plain model again afterwards.

    Raises:
        UserError: the adapter was trained on another base, does not fit this one, or only runs in peft's wrapper. The
            model has an adapter already.
    """
    adapter, model = _loaded(vlm, folder, revision), vlm.model
    modules = {name: model.get_submodule(name) for name in adapter.modules}
    parameters = {name: model.get_parameter(name) for name in adapter.values}
    plain = {name: parameter.data for name, parameter in parameters.items()}
    try:
        for name, parameter in parameters.items():
            parameter.data = adapter.values[name]
        _swap(model, adapter.modules)
        yield vlm
    finally:
        _swap(model, modules)
        for name, parameter in parameters.items():
            parameter.data = plain[name]


def _loaded(vlm: VLM, folder: Path, revision: str) -> _Adapter:
    loaded = _LOADED.setdefault(vlm.model, {})
    key = (revision, f"{vlm.device} {vlm.dtype} {vlm.preprocessing}")
    if key not in loaded:
        checkpoint.check_base(folder, vlm)
        while len(loaded) >= KEPT:
            del loaded[next(iter(loaded))]
        with seeded(0, vlm.device):  # peft draws weights before it reads the file's
            loaded[key] = adapter = _load(vlm, folder)
        if revision not in _SAID:
            _SAID.add(revision)
            print(f"adapter {folder}: {_described(adapter)}", file=sys.stderr)
    return loaded[key]


def _check_weights(weights: Mapping[str, Tensor], folder: Path) -> None:
    """Refuse an adapter that is not finite, or that changes nothing: LoRA adds B·A to a weight, and all B are 0."""
    if broken := next((name for name, value in weights.items() if not bool(value.isfinite().all())), None):
        raise UserError(
            f"adapter {folder}: {broken} has NaN or infinite numbers, as after a training that diverged; train it "
            "again with a lower learning rate, or give another adapter"
        )
    others = [value for name, value in weights.items() if "lora_A" not in name]
    if all("lora_A" in name or "lora_B" in name for name in weights) and not any(bool(value.any()) for value in others):
        raise UserError(
            f"adapter {folder} changes nothing: all of its B weights are 0, as before any training; give a trained one"
        )


def _load(vlm: VLM, folder: Path) -> _Adapter:
    """Let peft put the adapter into the model, remove it again, and return it. The model is unchanged.

    peft wraps layers (LoRA and its like), replaces modules (``modules_to_save``) and writes into parameters of the
    model itself (``bias="all"``). Adapters with other changes are refused.
    """
    from peft import PeftConfig, PeftModel, load_peft_weights, set_peft_model_state_dict
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import AuxiliaryTrainingWrapper

    model = vlm.model
    if any(isinstance(module, BaseTunerLayer | AuxiliaryTrainingWrapper) for module in model.modules()):
        raise UserError(f"{vlm.name} already carries an adapter; adapters cannot be stacked; pass the plain base model")
    try:
        config = PeftConfig.from_pretrained(str(folder))
        weights = load_peft_weights(str(folder), device="cpu")
    except Exception as error:  # a field that this peft does not know, a broken file
        raise _unfit(vlm, folder, " ".join(str(error).split())[:200]) from error
    _check_kind(config, vlm, folder)
    _check_weights(weights, folder)
    before = dict(model.named_modules(remove_duplicate=False))
    trainable = {weight: weight.requires_grad for weight in model.parameters()}
    tensors = dict([*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)])
    versions = {name: tensor._version for name, tensor in tensors.items()}
    named = {WRAPPED.sub("", key.removeprefix(INSIDE)) for key in weights}
    originals = {name: tensors[name].detach().clone() for name in named & tensors.keys()}
    modules: dict[str, nn.Module] = {}
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            wrapped = PeftModel.from_pretrained(model, folder)
            result: Any = set_peft_model_state_dict(wrapped, weights)
        modules = _changed(before, dict(model.named_modules(remove_duplicate=False)))
        written = [name for name, tensor in tensors.items() if tensor._version != versions[name]]
        values = {name: tensors[name].detach().clone() for name in written if name in originals}
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        raise _unfit(vlm, folder, " ".join(str(error).split())[:200]) from error
    finally:
        modules = modules or _changed(before, dict(model.named_modules(remove_duplicate=False)))
        _swap(model, {name: before[name] for name in modules})
        with torch.no_grad():
            for name, value in originals.items():
                if tensors[name]._version != versions[name]:
                    tensors[name].copy_(value)
        for name in ("peft_config", "_hf_peft_config_loaded"):
            model.__dict__.pop(name, None)
        for weight, flag in trainable.items():
            weight.requires_grad_(flag)
    if lost := sorted(set(written) - originals.keys()):
        raise UserError(
            f"adapter {folder} overwrote weights of {vlm.name} that it does not name ({', '.join(lost[:3])}), so the "
            "baseline is gone; load the model again, without this adapter"
        )
    if missing := [str(each.message) for each in caught if "missing adapter keys" in str(each.message).lower()]:
        raise _unfit(vlm, folder, missing[0][:200])
    if left := list(result.unexpected_keys):
        raise _unfit(vlm, folder, f"{len(left)} of its tensors have no place there: {left[0]}, …")
    if strange := [
        name for name, it in modules.items() if not isinstance(it, BaseTunerLayer | AuxiliaryTrainingWrapper)
    ]:
        raise UserError(_only_peft(folder, f"it puts a {type(modules[strange[0]]).__name__} at {strange[0]}"))
    if not modules and not values:
        raise _unfit(vlm, folder, "it changes nothing in this model")
    return _Adapter(modules, values)


def _check_kind(config: Any, vlm: VLM, folder: Path) -> None:
    """Check that the adapter lies in the model's layers.

    Raises:
        UserError: it needs peft's own wrapper, which no method here runs.
    """
    kind = getattr(config.peft_type, "value", config.peft_type)
    if config.is_prompt_learning or config.is_adaption_prompt or kind == "XLORA":
        raise UserError(_only_peft(folder, f"{kind} adds to the inputs of a model, or chooses by them"))
    if getattr(config, "alora_invocation_tokens", None):
        raise UserError(_only_peft(folder, "an activated LoRA waits for its invocation tokens"))


def _only_peft(folder: Path, why: str) -> str:
    return (
        f"adapter {folder} acts only inside peft's own wrapper ({why}), so the arm would equal the baseline; train one "
        "of a kind that changes layers, such as LoRA"
    )


def _changed(before: Mapping[str, nn.Module], after: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    """Return the modules that replace others, the outermost of each, by name."""
    changed = {name: after[name] for name, module in before.items() if name and after.get(name, module) is not module}
    parents = [f"{name}." for name in changed]
    return {name: module for name, module in changed.items() if not name.startswith(tuple(parents))}


def _described(adapter: _Adapter) -> str:
    """Return the adapter's changes in a few words."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = [name for name, module in adapter.modules.items() if isinstance(module, BaseTunerLayer)]
    replaced = [name for name in adapter.modules if name not in layers]
    leaves = ", ".join(sorted({name.rpartition(".")[2] for name in layers}))
    words = [f"in {len(layers)} layers ({leaves})"] if layers else []
    words += [f"{', '.join(replaced)} whole"] if replaced else []
    words += [f"{len(adapter.values)} of the model's own parameters"] if adapter.values else []
    return "; ".join(words)


def _swap(model: nn.Module, layers: Mapping[str, Any]) -> None:
    for name, layer in layers.items():
        parent, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(parent), leaf, layer)


def _unfit(vlm: VLM, folder: Path, why: str) -> UserError:
    return UserError(
        f"adapter {folder} does not fit {vlm.name} ({why}); an adapter fits the base it was trained on; choose that "
        "model, or train an adapter for this one"
    )
