"""One traced forward of a few words: what each decoder layer is made of (``interp.module_map``).

Attention is the module that calls transformers' attention function. The linear layer behind it adds up its heads. A
sublayer is the child of a layer whose output goes into no other child. Which output goes where is read
from the memory that tensors share, so that a model without weights (torch's meta device) can be traced.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from interp.errors import UserError

PROBE = "forestlens_probe"
WORDS = 6  # tokens of the traced forward


@dataclass(frozen=True)
class Block:
    """One decoder layer; the paths are dotted names under it, "" where there is no such module.

    ``attention`` takes its function from transformers' interface, and ``heads_out`` adds up its ``heads``.
    ``after_attention`` and ``mlp`` are the modules whose outputs are added to the residual stream: the sublayer itself
    or the norm behind it. A layer without attention (recurrent, convolutional) has a ``mixer`` in its place.
    """

    attention: str = ""
    heads_out: str = ""
    after_attention: str = ""
    mlp: str = ""
    mixer: str = ""
    heads: int = 0


def is_empty(model: nn.Module) -> bool:
    """Return whether its weights have no values: on the meta device, or on a device that computes nothing."""
    weight = next(model.parameters(), None)
    return weight is None or weight.device.type not in ("cpu", "cuda", "mps", "xpu")


class _Call(NamedTuple):
    module: Any
    heads: int
    width: int


_CALLS: list[_Call] = []


def _probe(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **_: Any
) -> tuple[Tensor, None]:
    """Note who calls this attention function, and give zeros."""
    rows, heads, queries, _width = query.shape
    _CALLS.append(_Call(module, heads, heads * value.shape[-1]))
    return value.new_zeros(rows, queries, heads, value.shape[-1]), None


AttentionInterface.register(PROBE, _probe)
AttentionMaskInterface.register(PROBE, eager_mask)


class _Ran(NamedTuple):
    """One call of a module in the traced forward."""

    name: str
    module: Any
    into: Tensor | None
    out: Tensor | None
    calls: int  # of attention, before it ended


def inside(model: Any, language_model: str, layers_at: str, lm_head: str, *, pictured: bool) -> dict[str, Any]:
    """Return ``blocks`` and ``final_norm``, from one forward of words; the other arguments are fields of a layout."""
    decoder, layers = model.get_submodule(language_model), model.get_submodule(layers_at)
    ran: dict[Any, list[_Ran]] = {owner: [] for owner in (*layers, decoder)}
    head_takes: list[Tensor] = []
    with ExitStack() as stack:
        stack.enter_context(bare(model))
        stack.enter_context(switched(decoder, PROBE))
        stack.callback(_CALLS.clear)
        for owner, notes in ran.items():
            for name, module in owner.named_children() if owner is decoder else owner.named_modules():
                if module is not layers:
                    hook = module.register_forward_hook(partial(_note, notes, name), with_kwargs=True)
                    stack.callback(hook.remove)
        if lm_head:
            head = model.get_submodule(lm_head)
            stack.callback(head.register_forward_pre_hook(lambda m, args: head_takes.append(args[0])).remove)
        run_words(model, lm_head, pictured=pictured)
        blocks = {i: _block(layer, *ran[layer]) for i, layer in enumerate(layers) if ran[layer]}
    norms = [one.name for one in ran[decoder] if any(same_memory(one.out, taken) for taken in head_takes)]
    return {"blocks": blocks, "final_norm": f"{language_model}.{norms[-1]}".lstrip(".") if norms else ""}


def run_words(model: Any, lm_head: str, *, pictured: bool = False) -> Any:
    """Return what ``model`` gives for a few words that are no special tokens, ``pictured`` with a blank picture."""
    device = next(model.parameters()).device
    named = [getattr(model.config, name) for name in vars(model.config) if name.endswith(("token_id", "token_index"))]
    special = {token for some in named for token in (some if isinstance(some, list | tuple) else [some])}
    vocabulary = model.get_input_embeddings().weight.shape[0]
    words = [token for token in range(5, vocabulary) if token not in special][:WORDS]
    ids = torch.tensor([words], device=device)
    picture: dict[str, Tensor] = {}
    if pictured:  # IDEFICS does not run without one
        side = model.config.vision_config.image_size
        picture["pixel_values"] = torch.zeros(1, 1, 3, side, side, device=device, dtype=model.dtype)
        picture["image_attention_mask"] = torch.zeros(1, WORDS, 1, device=device, dtype=torch.long)
    speaker = model.get_submodule(lm_head.rpartition(".")[0])
    with torch.no_grad():
        # With a mask: without one transformers looks for packed sequences, which a model without values cannot tell.
        return speaker(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False, **picture)


@contextmanager
def bare(model: Any) -> Iterator[None]:
    """Take every hook off ``model`` while open, so that a forward is followed, recorded and edited by nobody."""
    kinds = ("_forward_hooks", "_forward_pre_hooks")
    held = [(module, kind, getattr(module, kind)) for module in model.modules() for kind in kinds]
    for module, kind, hooks in held:
        setattr(module, kind, type(hooks)())
    try:
        yield
    finally:
        for module, kind, hooks in held:
            setattr(module, kind, hooks)


@contextmanager
def switched(decoder: Any, name: str) -> Iterator[None]:
    """The attention implementation of a decoder's configs, and of no other part's, while open."""
    configs = {id(m.config): m.config for m in decoder.modules() if hasattr(getattr(m, "config", None), "sub_configs")}
    before = [(config, config._attn_implementation_internal) for config in configs.values()]
    try:
        for config, _ in before:
            config._attn_implementation_internal = name
        yield
    finally:
        for config, implementation in before:
            config._attn_implementation_internal = implementation


def _note(
    notes: list[_Ran], name: str, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
) -> None:
    others = kwargs.values() if name else ()
    into = _first([*args, kwargs.get("hidden_states"), *others])
    notes.append(_Ran(name, module, into, _first([output]), len(_CALLS)))


def _first(values: Sequence[Any]) -> Tensor | None:
    """Return the first floating-point tensor of arguments or of an output."""
    for value in values:
        if isinstance(value, tuple | list):
            value = _first(value)
        elif hasattr(value, "last_hidden_state"):
            value = value.last_hidden_state
        if isinstance(value, Tensor) and value.is_floating_point():
            return value
    return None


def same_memory(first: Tensor | None, other: Tensor | None) -> bool:
    """Return whether two tensors are the same memory, in any shape."""
    if first is None or other is None:
        return False
    return first is other or first.untyped_storage()._cdata == other.untyped_storage()._cdata


def _block(layer: Any, *ran: _Ran) -> Block:
    """Return what one layer is made of, from what ran in it; the layer itself ended last."""
    *parts, (_, _, into, out, _) = ran
    if into is None or out is None or into.ndim != 3 or into.shape != out.shape:
        shapes = " → ".join(str(tuple(one.shape)) if one is not None else "nothing" for one in (into, out))
        raise UserError(f"a layer keeps several residual streams, or none ({shapes})")
    names = {module: name for name, module in layer.named_modules()}
    own_calls = [(number, call) for number, call in enumerate(_CALLS) if call.module in names]
    children = [one for one in parts if "." not in one.name and one.out is not None and one.out.numel() == into.numel()]
    ends = [
        one for one in children if not any(same_memory(other.into, one.out) for other in children if other is not one)
    ]
    attention = names[own_calls[0][1].module] if own_calls else ""
    top = attention.partition(".")[0]
    added = {one.name: _source(one, children) for one in ends}
    of_attention = [name for name, source in added.items() if attention and source == top]
    rest = [name for name in added if name not in of_attention]
    mixer = rest.pop(0) if not attention and len(rest) > 1 else ""
    return Block(
        attention=attention,
        heads_out=_heads_out(parts, attention, *own_calls[0]) if own_calls else "",
        after_attention=of_attention[-1] if of_attention else "",
        mlp=rest[0] if rest else "",
        mixer=mixer,
        heads=own_calls[0][1].heads if own_calls else 0,
    )


def _source(end: _Ran, children: list[_Ran]) -> str:
    """Return the sublayer whose output reaches ``end`` only through norms; ``end`` if it is no norm behind one."""
    before = [one for one in children if one is not end and same_memory(one.out, end.into)]
    if not before or not _is_norm(end.module):
        return end.name
    return _source(before[0], children)


def _is_norm(module: Any) -> bool:
    """Return whether its weights are vectors: a norm, a gain, or a dropout without any."""
    return all(weight.ndim <= 1 for weight in module.parameters())


def _heads_out(ran: list[_Ran], attention: str, number: int, call: _Call) -> str:
    """Return the linear layer behind the attention call that takes the heads side by side."""
    total = next((one.out for one in ran if one.name == attention), None)
    inner = [one for one in ran if one.calls > number and one.name.startswith(f"{attention}.") and one.into is not None]
    behind = [one for one in inner if _is_linear(one.module) and one.into.shape[-1] == call.width]  # type: ignore[union-attr]
    last = [one for one in behind if same_memory(one.out, total)] or behind
    return last[-1].name if last else ""


def _is_linear(module: Any) -> bool:
    weight = getattr(module, "weight", None)
    return isinstance(weight, Tensor) and weight.ndim == 2
