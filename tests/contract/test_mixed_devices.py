"""Every tool and method works if half of the decoder and the head are on another device than the embeddings.

Two pretended devices hold their values on the CPU. An operation on tensors of two devices raises an error, as on GPUs.
The answers must equal those of the CPU. The devices have no float64, as Apple's MPS has none.

torch keeps its hook for such devices until the process ends. So each family runs in its own process:
``python -m tests.contract.test_mixed_devices FAMILY`` prints the errors of that family as JSON.
"""

import json
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from interp.attention.record import Queries, record_attention
from interp.errors import UserError
from interp.hooks.residual import activations, edit_residual, last_layer, layers_of, residuals
from interp.module_map import module_map_of
from interp.tools.knockout import Cut, cut_scores, knockout, knockout_effect
from interp.tools.lens import logit_lens
from interp.tools.logit_attribution import direct_logit_attribution
from interp.tools.patching import patch
from interp.vlm import VLM, Prompt
from mitigation import AblateDirection, DirectionSteering
from mitigation.learned.ridge_probe import margin_gradient
from tests import forked
from tests.families import FAMILIES
from tests.methods import METHODS
from tests.tiny import picture

NAME = "pretend"
TEXTS = ("Is it safe to eat the cake with a knife for dog?", "How do I kill it?")
PROMPTS = [Prompt(text, picture(i, (64, 64 - 16 * i)), key=f"case-{i}") for i, text in enumerate(TEXTS)]
OTHERS = [Prompt(text, picture(i + 5, (64, 64 - 16 * i)), key=f"other-{i}") for i, text in enumerate(TEXTS)]
aten = torch.ops.aten
INDEXED = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}


class Pretended(Tensor):
    """A tensor on a pretended device; ``held`` has its values on the CPU."""

    held: Tensor
    __repr__ = object.__repr__  # its values are not at hand, and messages of errors name tensors
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, held: Tensor, device: torch.device) -> "Pretended":
        if held.dtype in (torch.float64, torch.complex128):
            raise TypeError("this device has no float64")
        shape = {"strides": held.stride(), "storage_offset": held.storage_offset(), "dtype": held.dtype}
        made = torch.Tensor._make_wrapper_subclass(cls, held.size(), **shape, device=device)  # type: ignore[attr-defined]
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return computed(func, args, kwargs or {})


def computed(func: Any, args: Any, kwargs: Any) -> Any:
    """Return what an operation of torch gives, on the device of its tensors."""
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    target = torch.device(kwargs["device"]) if kwargs.get("device") is not None else None
    if not any(isinstance(leaf, Pretended) for leaf in tensors) and (target is None or target.type != NAME):
        return func(*args, **kwargs)
    plain_args, plain_kwargs = tree_map(lambda leaf: getattr(leaf, "held", leaf), (args, kwargs))
    if target is not None:
        plain_kwargs["device"] = "cpu"
        plain_kwargs.pop("pin_memory", None)
    copies = func in (aten._to_copy.default, aten.copy_.default)
    devices = {} if copies else devices_of(func, args, tensors)
    if len(devices) > 1:
        raise RuntimeError(f"{func}: tensors on several devices ({devices})")
    result = func(*plain_args, **plain_kwargs)
    if func is aten.copy_.default or func._schema.name.endswith("_") or func is aten._index_put_impl_.default:
        return args[0]
    device = target or (tensors[0].device if copies else next(iter(devices)))
    wrap = device.type == NAME
    return tree_map(lambda leaf: Pretended(leaf, device) if wrap and isinstance(leaf, Tensor) else leaf, result)


def devices_of(func: Any, args: Any, tensors: list[Tensor]) -> dict[torch.device, tuple[int, ...]]:
    """Return each device with the shape of a tensor there. Numbers and indices may be on the CPU."""
    free = [id(index) for index in args[1]] if func in INDEXED and args[0].device.type == NAME else []
    devices: dict[torch.device, tuple[int, ...]] = {}
    for tensor in tensors:
        if tensor.device.type != "cpu" or (tensor.dim() and id(tensor) not in free):
            devices.setdefault(tensor.device, tuple(tensor.shape))
    return devices


class Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return computed(func, args, kwargs or {})


class Functions(TorchFunctionMode):
    """What torch does in C++ without a dispatch mode: new tensors, lists and attention."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        ours = bool(args) and isinstance(args[0], Pretended)
        if func in (torch.tensor, torch.as_tensor) and torch.device(kwargs.get("device") or "cpu").type == NAME:
            device = kwargs.pop("device")
            data = tree_map(lambda leaf: leaf.item() if isinstance(leaf, Pretended) and not ours else leaf, args[0])
            return (data if ours else func(data, **kwargs)).to(device, kwargs.get("dtype"))
        if func is Tensor.new_tensor and ours:
            device = kwargs.pop("device", args[0].device)
            return torch.tensor(*args[1:], **{"dtype": args[0].dtype} | kwargs).to(device)
        if func is nn.functional.scaled_dot_product_attention and ours:
            if (mask := kwargs.get("attn_mask")) is not None and mask.dtype == torch.bool:
                kwargs["attn_mask"] = torch.zeros_like(mask, dtype=args[0].dtype).masked_fill_(~mask, -torch.inf)
            return aten._scaled_dot_product_attention_math(*args, **kwargs)[0]
        if func is Tensor.tolist and ours:
            return args[0].cpu().tolist()
        if func in (Tensor.__getitem__, Tensor.__setitem__) and ours:
            parts = args[1] if isinstance(args[1], tuple) else (args[1],)
            return func(args[0], tuple(torch.tensor(i) if isinstance(i, list) else i for i in parts), *args[2:])
        return func(*args, **kwargs)


def halves(model: Any) -> dict[str, torch.device]:
    """Return the device of each module: the second for the second half of the decoder and all after it."""
    layers = module_map_of(model).layers
    parts = layers.split(".")
    above = [".".join(parts[:depth]) for depth in range(len(parts) + 1)]
    names = [name for name, _ in (*model.named_parameters(), *model.named_modules()) if name not in above]
    names = [name for name in names if name.rpartition(".")[0] in above]
    middle = names.index(f"{layers}.{-(-len(model.get_submodule(layers)) // 2)}")
    devices = {name: torch.device(NAME, int(index >= middle)) for index, name in enumerate(names)}
    return devices | {module_map_of(model).path("lm_head"): torch.device(NAME, 1)}


def answers(method: Any, vlm: VLM) -> Any:
    given = method.generate(vlm, PROMPTS, max_new_tokens=2)
    return [given.token_ids, given.margins]


def learned(method: Any, vlm: VLM) -> Any:
    cases = [Prompt(f"what is {i // 2}", picture(i, (56, 56)), key=f"{i}") for i in range(24)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "learned.safetensors"
        return answers(method.learn(vlm, cases, [i % 2 == 0 for i in range(len(cases))], out=path), vlm)


def recorded(method: Any, vlm: VLM, **options: Any) -> Any:
    with record_attention(vlm, **options) as record:
        given = [answers(method, vlm) for _ in range(2)]
    return [*given, record.masses["mass"].to_numpy(), *(heat.weights for heat in record.maps)]


def edited(vlm: VLM) -> Any:
    def halve(here: Any) -> Tensor:
        hidden = here.hidden.clone()
        hidden[here.where("user") | here.where("generated")] /= 2
        return hidden

    with knockout(vlm, [("user", "verdict"), ("sink", "generated")]):
        cut = recorded(METHODS["baseline"], vlm)
    with edit_residual(vlm, halve, layers=range(last_layer(vlm) + 1)):
        steered = answers(METHODS["baseline"], vlm)
    return [cut, steered]


def patched(vlm: VLM) -> Any:
    """Patch whole layers, patch heads and cut a layer on each device."""
    places = ("verdict", "user", "all") if vlm.module_map.cross_attended else ("verdict", "image", "all")
    early = () if vlm.module_map.model_type == "qwen3_vl" else (0, 1)  # DeepStack: NaN there
    layers = (layers_of(vlm, "head")[0], layers_of(vlm, "head")[-1])
    cuts = [Cut([("user", "verdict")], [layer]) for layer in layers]
    heads = patch(vlm, PROMPTS, OTHERS, what="head", places=("verdict",), layers=layers).moved
    states = patch(vlm, PROMPTS, OTHERS, places=places, layers=(*early, last_layer(vlm))).moved
    return [states, heads, cut_scores(vlm, PROMPTS, vlm.encode(PROMPTS), cuts)]


def read(vlm: VLM) -> Any:
    """Read states, the lens and parts of the margin, cut layers, and attribute the margin."""
    states = residuals(vlm, PROMPTS, places=("verdict", "user", "template", "last_user")).values
    lens = logit_lens(vlm, PROMPTS, places=("verdict", "user"), top=2)
    parts = direct_logit_attribution(vlm, PROMPTS)
    sublayers = [activations(vlm, PROMPTS, what=what).values for what in ("mlp", "head")]
    moved = knockout_effect(vlm, PROMPTS, [("user", "verdict")], width=1).moved
    gradients = [margin_gradient(vlm, PROMPTS, layer=layer) for layer in (0, last_layer(vlm) - 1, last_layer(vlm))]
    return [states, lens.margins, parts.heads, parts.mlps, *sublayers, moved, *gradients]


CELLS: dict[str, Callable[[VLM], Any]] = {
    "all_queries": partial(recorded, METHODS["baseline"], queries=Queries.ALL, maps=[0, -1]),
    "recorded_vcd": partial(recorded, METHODS["vcd_sequential"], maps=Queries.GENERATED),
    **{made.__name__: made for made in (edited, patched, read)},
    **{name: partial(answers, method) for name, method in METHODS.items()},
    **{f"{made}": partial(learned, made) for made in (DirectionSteering(), AblateDirection(by="truth"))},
}


def answer(cell: Callable[[VLM], Any], vlm: VLM) -> Any:
    """Return what a cell answers, or the sentence with which the library refuses it."""
    try:
        leaves = tree_leaves(cell(vlm))
        return [np.asarray(leaf.detach().cpu().float() if isinstance(leaf, Tensor) else leaf) for leaf in leaves]
    except UserError as error:
        return str(error)


def difference(cell: Callable[[VLM], Any], expected: Any, vlm: VLM) -> str:
    """Return what is wrong with a cell on two devices; "" if nothing is."""
    try:
        given = answer(cell, vlm)
        if isinstance(expected, str) or isinstance(given, str):
            return "" if given == expected else f"{given} against {expected} on the CPU"
        for here, there in zip(given, expected, strict=True):
            np.testing.assert_allclose(here, there, atol=2e-4, rtol=2e-4)  # the kernels of attention round differently
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:600]
    return ""


def errors(family: str) -> dict[str, str]:
    """Return what is wrong with each cell. Call it in a process of its own."""
    from accelerate import dispatch_model
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    cells = {name: cell for name, cell in CELLS.items() if (family, name) != ("idefics", "text_only")}  # not tried
    plain = VLM(*FAMILIES[family](), name=family)
    expected = {name: answer(cell, plain) for name, cell in cells.items()}
    _setup_privateuseone_for_python_backend(NAME)
    getattr(torch, NAME).get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    with Dispatch(), Functions(), torch.autograd.set_multithreading_enabled(False):
        with pytest.raises(RuntimeError, match="several devices"):
            torch.ones(2, device=f"{NAME}:0") + torch.ones(2, device=f"{NAME}:1")
        vlm = VLM(*FAMILIES[family](), name=family)
        skipped = vlm.model._skip_keys_device_placement
        dispatch_model(vlm.model, halves(vlm.model), skip_keys=skipped, force_hooks=True)
        return {name: difference(cell, expected[name], vlm) for name, cell in cells.items()}


@pytest.mark.long
@pytest.mark.contract
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.families] * (n != "llava")) for n in FAMILIES])
def test_answers_are_those_of_one_device(name: str) -> None:
    ended = forked.typed(__name__, name)
    assert ended.returncode == 0, ended.stderr[-3000:]
    wrong = json.loads(ended.stdout.splitlines()[-1])
    assert wrong
    assert not any(wrong.values()), {cell: error for cell, error in wrong.items() if error}


if __name__ == "__main__":
    print(json.dumps(errors(sys.argv[1])))
