"""A saved adapter, put into a model for a while. Loaded once for a model; going in and out only swaps modules."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from interp.errors import UserError
from interp.vlm import VLM
from mitigation.vrtuning import checkpoint

KEPT = 2  # adapters kept loaded for one model
_Layers = dict[str, nn.Module]  # full name of the replaced layer → that layer with the adapter around it

# By model: whatever goes out of use takes its adapters along. They hold its layers, but never the model itself.
_LOADED: WeakKeyDictionary[nn.Module, dict[tuple[str, str], _Layers]] = WeakKeyDictionary()


@contextmanager
def adapted(vlm: VLM, folder: Path, revision: str) -> Iterator[VLM]:
    """``vlm`` with the adapter of ``folder`` (hash ``revision``) in effect; afterwards with its own layers back.

    Raises:
        UserError: the adapter was trained on another base, does not fit this one, or the model carries one already.
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
        raise UserError(
            f"{vlm.name} already carries an adapter; another on top would be neither; pass the plain base model"
        )
    trainable = {weight: weight.requires_grad for weight in model.parameters()}
    try:
        with warnings.catch_warnings(record=True) as said:
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
    if missing := [str(one.message) for one in said if "missing adapter keys" in str(one.message).lower()]:
        raise _unfit(vlm, folder, missing[0][:200])
    return around  # type: ignore[return-value]  # each is a Module, which its base class does not say


def _swap(model: nn.Module, layers: Mapping[str, Any]) -> None:
    for name, layer in layers.items():
        parent, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(parent), leaf, layer)


def _unfit(vlm: VLM, folder: Path, why: str) -> UserError:
    return UserError(
        f"adapter {folder} does not fit {vlm.name} ({why}); an adapter fits the base it was trained on; choose that "
        "model, or train an adapter for this one"
    )
