"""The module map of a model: which modules are its language model, its layers, their attention and MLP, and the head.

It is read, not listed. transformers' own interface names the decoder, the head, the vision tower and the image token
(``get_decoder``, ``get_output_embeddings``, ``get_encoder``, the config). One traced forward of a few words, on a copy
of the model without weights (torch's meta device), shows the rest. ``interp.families`` has what cannot be read. A
layout that was read is a claim: ``interp.selfcheck`` checks it on the loaded model.

The trace shows what each decoder layer is made of. Attention is the module that calls transformers' attention function.
The linear layer behind it adds up its heads. A sublayer is the child of a layer whose output goes into no other child.
Which output goes where is read from the memory that tensors share, so that a model without weights (torch's meta
device) can be traced.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from interp.errors import UserError
from interp.families import FACTS, Geometry

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


IMAGE_TOKENS = ("image_token_id", "image_token_index")


@dataclass(frozen=True)
class ModuleMap:
    """The module map of one model. The six paths are dotted names under it, "" where none was found.

    ``blocks`` are the decoder layers that run on words without a picture, by number. ``unread`` says why the inside of
    the decoder could not be read: "" if it could. ``image_token`` is the config's attribute with the id of the tokens
    that image features replace. ``position_kind`` is ``"mrope"`` if a token's position is more than its column. The
    other fields are as in ``interp.families.FACTS``.
    """

    model_type: str
    language_model: str = ""
    layers: str = ""
    final_norm: str = ""
    lm_head: str = ""
    vision_tower: str = ""
    projector: str = ""
    geometry: Geometry = "unknown"
    position_kind: Literal["1d", "mrope"] = "1d"
    image_token: str = ""
    crossing_layers: str = ""
    crossing_blocks: str = ""
    prompt: Literal["text", "pieces"] = "text"
    lower_case: bool = False
    along: tuple[str, ...] = ()
    note: str = ""
    blocks: Mapping[int, Block] = field(default_factory=dict)
    unread: str = ""

    @property
    def cross_attended(self) -> bool:
        """Whether the picture is read by cross-attention, so that the sequence has no image tokens."""
        return self.geometry == "cross_attention"

    def path(self, part: str) -> str:
        """Return the dotted path of ``part``.

        Raises:
            UserError: it was not found.
        """
        path = str(getattr(self, part))
        if not path and part != "language_model":
            why = self.unread or "transformers' interface does not name it"
            raise UserError(
                f"no {part.replace('_', ' ')} known of '{self.model_type}': {why}; this tool needs it; answers, "
                "margins and VCD work without (task=prove says which tools do)"
            )
        return path

    def module(self, model: Any, part: str) -> Any:
        """Return the module at ``part`` of ``model``.

        Raises:
            UserError: its path is not known.
        """
        return model.get_submodule(self.path(part))

    def attentions(self, model: Any) -> dict[int, Any]:
        """Decoder layer → its self-attention module, without the layers that have none."""
        return self._at(model, lambda block: block.attention)

    def sublayers(self, model: Any, kind: Literal["attention", "mlp", "mixer"]) -> dict[int, Any]:
        """Decoder layer → the module whose output is what its ``kind`` adds to the residual stream.

        That is the sublayer itself or the norm behind it. Layers that have only cross-attention are left out, and those
        without this ``kind``.
        """
        return self._at(model, lambda block: block.after_attention if kind == "attention" else getattr(block, kind))

    def head_sums(self, model: Any) -> dict[int, Any]:
        """Decoder layer → the linear map that takes the outputs of its heads, side by side, and adds them up."""
        return self._at(model, lambda block: block.heads_out)

    def heads(self, layer: int) -> int:
        """Return the number of heads of a layer."""
        return self.blocks[layer].heads

    def _at(self, model: Any, path: Callable[[Block], str]) -> dict[int, Any]:
        layers = self.module(model, "layers")
        if self.unread:
            raise UserError(
                f"the layers of '{self.model_type}' cannot be taken apart: {self.unread}; tools that look inside need "
                "that; answers, margins and VCD work without"
            )
        return {i: layers[i].get_submodule(path(block)) for i, block in self.blocks.items() if path(block)}

    def crossings(self, model: Any) -> dict[int, Any]:
        """Decoder layer → the whole block that reads the picture by cross-attention there, or just before it."""
        text = model.config.get_text_config()
        if self.crossing_blocks:
            blocks = model.get_submodule(self.crossing_blocks)
            return {i * text.cross_layer_interval: block for i, block in enumerate(blocks)}
        if not self.crossing_layers:
            return {}
        return {i: self.module(model, "layers")[i] for i in getattr(text, self.crossing_layers)}

    def image_token_id(self, config: Any) -> int:
        """Return the id of image tokens in ``input_ids``, from the config: the processor's may be a begin marker.

        Raises:
            UserError: the family reads its pictures by cross-attention, or its config names no image token.
        """
        self.require_image_tokens()
        return int(getattr(config, self.image_token))

    def require_image_tokens(self, name: str = "") -> None:
        """Check that the sequence has image tokens. Without them their share of attention is undefined, not 0.

        Raises:
            UserError: the family reads its pictures by cross-attention, or its config names no image token.
        """
        if self.cross_attended:
            raise UserError(
                f"no image tokens in the sequence of {name or self.model_type}: it reads pictures by cross-attention, "
                "so shares, maps and edges of image tokens do not apply; use occlude_image or an image swap,"
                " or choose another family"
            )
        if not self.image_token:
            raise UserError(
                f"the config of {name or self.model_type} names no image token ({', '.join(IMAGE_TOKENS)}); shares, "
                "maps and edges of image tokens need one; set config.image_token_id to it"
            )


def module_map_of(model_or_config: Any) -> ModuleMap:
    """Return the module map of a model, or of the model that a config describes.

    Raises:
        UserError: no model that answers questions about pictures, or an encoder-decoder language model.
    """
    is_model = isinstance(model_or_config, nn.Module)
    config = model_or_config.config if is_model else getattr(model_or_config, "config", model_or_config)
    kind = type(model_or_config) if is_model else _class_of(config)
    refuse_encoder_decoder(config)
    module_map = _KNOWN.get(model_or_config) if is_model else None
    if module_map is None:
        module_map = _of_config(kind, config)
        if module_map.unread and is_model and not is_empty(model_or_config):
            module_map = _read(model_or_config, model_or_config)
        if is_model:
            _KNOWN[model_or_config] = module_map
    return module_map


_KNOWN: "WeakKeyDictionary[nn.Module, ModuleMap]" = WeakKeyDictionary()
_BY_CONFIG: dict[tuple[Any, str], ModuleMap] = {}


def refuse_encoder_decoder(config: Any) -> None:
    """Check that the language model of ``config`` is only a decoder.

    Raises:
        UserError: it has an encoder of its own.
    """
    text = getattr(config, "text_config", None)
    if getattr(config, "is_encoder_decoder", False) or getattr(text, "is_encoder_decoder", False):
        raise UserError(
            f"'{config.model_type}' with an encoder-decoder language model; only decoder-only ones are covered; take a "
            "decoder-only checkpoint (for instructblip: the Vicuna ones)"
        )


def _class_of(config: Any) -> Any:
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

    if type(config) not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
        raise UserError(
            f"no layout for '{getattr(config, 'model_type', None)}': it is no image-text-to-text model of transformers;"
            " choose one that takes pictures"
        )
    return MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING[type(config)]


def _of_config(kind: Any, config: Any) -> ModuleMap:
    """Return the module map of a model of class ``kind`` without weights; read once for each configuration."""
    key = kind, f"{config.model_type} {config.to_json_string(use_diff=False)}"
    if key not in _BY_CONFIG:
        copied = copy.deepcopy(config)
        with torch.device("meta"), torch.random.fork_rng(devices=[]):
            model = kind._from_config(copied) if hasattr(kind, "_from_config") else kind(copied)
        _BY_CONFIG[key] = _read(model.eval(), model)
    return _BY_CONFIG[key]


def _read(model: Any, traced: Any) -> ModuleMap:
    """Return the module map of ``model``; ``traced`` is the model that runs the words."""
    facts: dict[str, Any] = dict(FACTS.get(model.config.model_type, {}))
    module_map = ModuleMap(model_type=model.config.model_type, **(_interface(model) | facts))
    if not module_map.layers:
        return replace(module_map, unread="its decoder has no list of layers")
    try:
        inner = inside(
            traced,
            module_map.language_model,
            module_map.layers,
            module_map.lm_head,
            pictured=module_map.prompt == "pieces",
        )
    except UserError as error:
        inner = {"unread": str(error)}
    except Exception as error:  # whatever a model's own code raises on words alone
        inner = {"unread": f"words alone do not run through it ({type(error).__name__}: {error})"[:300]}
    return replace(module_map, **{name: value for name, value in inner.items() if value})


def _interface(model: Any) -> dict[str, Any]:
    """Return what transformers' own interface names."""
    config = model.config
    names = {module: name for name, module in model.named_modules()}
    names_of_parts: dict[str, Any] = {}
    decoder, head = decoder_of(model), model.get_output_embeddings()
    names_of_parts["lm_head"] = names.get(head, "")
    names_of_parts["language_model"] = names[decoder]
    layers = _layers_of(decoder)
    base = model.get_submodule(names[decoder].rpartition(".")[0])
    if layers is not None:
        names_of_parts["layers"] = names[layers]
        norm = getattr(decoder, "norm", None)
        names_of_parts["final_norm"] = names.get(norm, "")
    names_of_parts["image_token"] = next((name for name in IMAGE_TOKENS if getattr(config, name, None) is not None), "")
    names_of_parts["position_kind"] = "mrope" if hasattr(base, "get_rope_index") else "1d"
    return names_of_parts | _eyes(model, base, decoder, head, names)


def _eyes(model: Any, base: Any, decoder: Any, head: Any, names: Mapping[Any, str]) -> dict[str, str]:
    """Return the vision tower, and what brings its features to the language model's width."""
    tower = model.get_encoder(modality="image")
    if tower is model or decoder in set(tower.modules()):
        return {}
    around = base if tower in set(base.modules()) else model
    excluded = (tower, head, model.get_encoder(modality="audio"))
    others = [
        child
        for child in around.children()
        if child not in excluded and decoder not in set(child.modules()) and next(child.parameters(), None) is not None
    ]
    if not others:  # inside the tower, as its last part
        others = [child for child in tower.children() if not isinstance(child, nn.ModuleList)][-1:]
    return {"vision_tower": names[tower], "projector": names[others[0]] if others else ""}


def decoder_of(model: Any) -> Any:
    """Return the language model without its head: ``get_decoder()``, or what it wraps, down to where the layers are."""
    decoder = model.get_decoder()
    while _layers_of(decoder) is None:
        inner = decoder.get_decoder() if hasattr(decoder, "get_decoder") else decoder
        inner = getattr(decoder, "model", decoder) if inner is decoder else inner
        if inner is decoder:
            break
        decoder = inner
    return decoder


def _layers_of(decoder: Any) -> nn.ModuleList | None:
    listed = getattr(decoder, "layers", None)
    if isinstance(listed, nn.ModuleList):
        return listed
    count = getattr(getattr(decoder, "config", None), "num_hidden_layers", None)
    fit = [child for child in decoder.children() if isinstance(child, nn.ModuleList) and len(child) == count]
    return fit[0] if len(fit) == 1 else None
