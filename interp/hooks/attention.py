"""An attention function that lets callers observe and edit self-attention, registered with transformers by name.

While an ``intercept`` is open, the language model (and nothing else) uses the implementation ``NAME``. The output is
still computed by transformers' sdpa, or in chunks of float32 rows for soft-capped models; observers get its inputs. The
previous implementation is restored when the block ends, also on an exception.

``sdpa_mask`` is registered under the same name. Without it transformers passes no mask at all, and padding, sliding
windows and bidirectional images would silently be ignored. The name contains "sdpa", so that transformers rejects it
for models that sdpa cannot run, and neither "flash" nor "flex", which select other code paths. Soft-capped models,
which sdpa cannot run, have a separate name.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from einops import einsum, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from interp.errors import UserError

if TYPE_CHECKING:
    from interp.vlm import VLM

NAME = "forestlens_sdpa"
SOFT_CAPPED_NAME = "forestlens_rows"
CHUNK = 64  # queries whose full rows are in memory at once; 64 · 32 heads · 3k keys are 24 MiB in float32
STATIC = "a static cache cannot be recorded; only growing ones can; leave cache_implementation out"
UNSUPPORTED = ("position_bias", "s_aux", "cache")


Mask = Bool[Tensor, "#row #head query key"] | Float[Tensor, "#row #head query key"]


@dataclass(frozen=True)
class Raised:
    """Logits ``added`` at the queries ``places``, each once, before the softmax; what is masked stays masked."""

    places: Int[Tensor, " some"]
    added: Float[Tensor, " row #head some key"]


@dataclass(frozen=True)
class AttentionCall:
    """The inputs of one self-attention: after the rotary embedding, with cached keys and values included.

    ``mask`` is True (or 0, if additive) where a query may attend. If it is None, query *i* attends to keys up to *i*
    (``causal``) or to all keys.
    """

    layer: int
    query: Float[Tensor, "row head query dim"]
    key: Float[Tensor, "row group key dim"]
    value: Float[Tensor, "row group key width"]
    mask: Mask | None
    causal: bool
    scaling: float
    softcap: float | None
    module: Any
    raised: tuple[Raised, ...] = ()

    def allowed(self, places: Int[Tensor, " query"] | None = None) -> Mask:
        """Return the mask of the queries at ``places`` (default: all), made explicit if it was None."""
        if places is None:
            places = torch.arange(self.query.shape[2], device=self.key.device)
        if self.mask is not None:
            return self.mask[:, :, places]
        keys = torch.arange(self.key.shape[2], device=self.key.device)
        if not self.causal:
            return torch.ones(1, 1, len(places), len(keys), dtype=torch.bool, device=keys.device)
        # Aligned to the lower right: the last query sees every key.
        last = places + (len(keys) - self.query.shape[2])
        return (keys[None] <= last[:, None])[None, None]

    def select(self, places: Int[Tensor, " query"]) -> "AttentionCall":
        """Return the same call for the queries at ``places`` only, with an explicit mask."""
        raised = (Raised(torch.arange(len(places), device=places.device), self.added(places)),) if self.raised else ()
        return replace(self, query=self.query[:, :, places], mask=self.allowed(places), raised=raised)

    def added(self, places: Int[Tensor, " query"]) -> Float[Tensor, "row head query key"]:
        """Return the sum of what is added at the queries ``places``, 0 where nothing is."""
        pattern = "row head some key, query some -> row head query key"
        parts = [einsum(one.added, (places[:, None] == one.places[None]).to(one.added), pattern) for one in self.raised]
        return torch.stack(torch.broadcast_tensors(*parts)).sum(0)

    def raise_at(self, places: Int[Tensor, " some"], added: Float[Tensor, " row #head some key"]) -> "AttentionCall":
        """Return the same call with logits ``added`` at the queries ``places``, in memory only for these queries."""
        return replace(self, raised=(*self.raised, Raised(places, added)))

    def scores(self, where: slice = slice(None)) -> Float[Tensor, "row head query key"]:
        """Return logits of the queries ``where`` in float32, scaled and soft-capped, without the mask; large as
        ``rows``.
        """
        shape = self.key.shape[1], self.query.shape[1] // self.key.shape[1]  # groups, heads of each
        query = self.query[:, :, where].float()
        scores = query.unflatten(1, shape).flatten(2, 3) @ self.key.float().transpose(2, 3)
        scores = (scores * self.scaling).unflatten(2, (shape[1], query.shape[2])).flatten(1, 2)
        return scores if self.softcap is None else self.softcap * torch.tanh(scores / self.softcap)

    def rows(self) -> Float[Tensor, "row head query key"]:
        """Return all attention weights, always in float32. Takes much memory: select a few queries first (``at``)."""
        scores, mask = self.scores(), self.allowed()
        if self.raised:
            scores = scores + self.added(torch.arange(self.query.shape[2], device=scores.device)).float()
        if mask.dtype == torch.bool:
            return scores.masked_fill(~mask, torch.finfo(torch.float32).min).softmax(-1)
        return (scores + mask.float()).softmax(-1)

    def bias(self, where: slice) -> Float[Tensor, "#row #head query key"] | None:
        """Return what the mask adds to the float32 logits of the queries ``where``: 0 or the lowest number; None:
        nothing.
        """
        queries = self.query.shape[2]
        start, stop, _ = where.indices(queries)
        if self.mask is None and (not self.causal or start == queries - 1):
            return None  # the last query sees every key
        if self.mask is None:
            mask = self.allowed(torch.arange(start, stop, device=self.key.device))
        else:
            mask = self.mask[:, :, where]
        if mask.dtype != torch.bool:
            return mask.float()
        lowest = torch.finfo(torch.float32).min
        return torch.zeros(mask.shape, dtype=torch.float32, device=mask.device).masked_fill_(~mask, lowest)

    def rows_at(
        self, where: slice, bias: Float[Tensor, "#row #head query key"] | None
    ) -> Float[Tensor, "row head query key"]:
        """``at(where).rows()`` for a ``bias`` that is at hand, in a third of the kernels; nothing may be raised."""
        scores = self.scores(where)
        return (scores if bias is None else scores + bias).softmax(-1)

    def weighted(self, value: Float[Tensor, " row #group key dim"]) -> Float[Tensor, "row query head dim"]:
        """Σ over keys of attention × ``value``, by the same kernel as the model's output."""
        if self.softcap is not None:
            return _by_rows(self, value)
        return _by_kernel(self, value.expand(-1, self.key.shape[1], -1, -1), is_causal=self.causal)

    def without(self, edges: Bool[Tensor, "#row #head query key"]) -> "AttentionCall":
        """Return the same call with some query → key edges cut. Leave every query a key; it is not checked."""
        mask = self.allowed()
        # In an additive mask False would be 0, which blocks nothing: use the lowest number instead.
        cut = mask & ~edges if mask.dtype == torch.bool else mask.masked_fill(edges, torch.finfo(mask.dtype).min)
        return replace(self, mask=cut)


def _by_rows(call: AttentionCall, value: Float[Tensor, " row #group key dim"]) -> Float[Tensor, " row query head dim"]:
    """Attention in float32, a chunk of queries at a time, for soft-capped models, which sdpa cannot run."""
    value = repeat(value, "row group key dim -> row (group n) key dim", n=call.query.shape[1] // value.shape[1])
    parts = []
    for places in torch.arange(call.query.shape[2], device=call.key.device).split(CHUNK):
        weights = call.select(places).rows().to(value.dtype)
        parts.append(einsum(weights, value, "row head query key, row head key dim -> row query head dim"))
    return torch.cat(parts, dim=1)


@dataclass(frozen=True)
class Tap:
    """What one open ``intercept`` does at each call: ``edit`` first, then ``observe`` once all edits are made."""

    layer: int
    edit: Callable[[AttentionCall], AttentionCall] | None
    observe: Callable[[AttentionCall], None] | None


_TAPS: dict[Any, list[Tap]] = {}  # attention module → open intercepts, outermost first


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention by transformers' interface. ``sliding_window`` in ``kwargs`` is ignored: the mask includes it."""
    taps = _TAPS.get(module, [])
    _refuse(kwargs, attention_mask, query, key)
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    call = AttentionCall(
        layer=taps[0].layer if taps else -1,
        query=query,
        key=key,
        value=value,
        mask=attention_mask,
        causal=bool(causal) and query.shape[2] > 1 and attention_mask is None,
        scaling=query.shape[-1] ** -0.5 if scaling is None else scaling,
        softcap=softcap,
        module=module,
    )
    for tap in taps:
        call = tap.edit(call) if tap.edit else call
    with torch.no_grad():
        for tap in taps:
            if tap.observe:
                tap.observe(call)
    if softcap is not None:
        return _by_rows(call, value), None
    return _by_kernel(call, value, dropout=dropout, is_causal=is_causal, **kwargs), None


def _by_kernel(
    call: AttentionCall, value: Float[Tensor, "row group key dim"], *, is_causal: bool | None, **kwargs: Any
) -> Float[Tensor, "row query head dim"]:
    """Attention by transformers' sdpa. Queries whose logits are raised get a mask of their own, the others none."""
    queries = call.query.shape[2]
    if any(len(one.places) == queries for one in call.raised):  # all of them, as while decoding
        return _masked(call.select(torch.arange(queries, device=call.key.device)), value, **kwargs)
    output, _ = sdpa_attention_forward(
        call.module, call.query, call.key, value, call.mask, scaling=call.scaling, is_causal=is_causal, **kwargs
    )
    if not call.raised:
        return output
    places = torch.cat([one.places for one in call.raised])  # one that is there twice gets the same row twice
    return output.index_copy(1, places, _masked(call.select(places), value, **kwargs))


def _masked(
    call: AttentionCall, value: Float[Tensor, "row group key dim"], **kwargs: Any
) -> Float[Tensor, "row query head dim"]:
    """Attention of a call of few queries, with mask and raised logits in one additive mask of the queries' dtype."""
    mask, dtype = call.allowed(), call.query.dtype
    lowest = torch.finfo(dtype).min
    if mask.dtype == torch.bool:
        additive = torch.zeros(mask.shape, dtype=torch.float32, device=mask.device).masked_fill(~mask, lowest)
    else:
        additive = mask.float().clamp(min=lowest)
    (raised,) = call.raised
    summed = (additive + raised.added * (additive > lowest / 2)).to(dtype)
    return sdpa_attention_forward(
        call.module, call.query, call.key, value, summed, scaling=call.scaling, is_causal=False, **kwargs
    )[0]


def _refuse(kwargs: dict[str, Any], mask: Tensor | None, query: Tensor, key: Tensor) -> None:
    unknown = [name for name in UNSUPPORTED if kwargs.get(name) is not None]
    if unknown:
        raise UserError(
            f"this model's attention takes {', '.join(unknown)}, which cannot be recorded; only plain, windowed and "
            "soft-capped attention can; load it with attn_implementation='eager' and pass output_attentions=True"
        )
    if mask is None and query.shape[2] > 1 and key.shape[2] != query.shape[2]:
        raise UserError(STATIC)


for _name in (NAME, SOFT_CAPPED_NAME):
    AttentionInterface.register(_name, _attention)
    AttentionMaskInterface.register(_name, sdpa_mask)


_BEFORE: dict[Any, list[tuple[Any, str | None]]] = {}  # model → its configs, and their implementations before


@contextmanager
def intercept(
    vlm: "VLM",
    *,
    edit: Callable[[AttentionCall], AttentionCall] | None = None,
    observe: Callable[[AttentionCall], None] | None = None,
) -> Iterator[None]:
    """Run ``edit`` and ``observe`` at every self-attention of the language model while open. Blocks nest.

    Raises:
        UserError: the language model does not use transformers' attention interface.
    """
    layers = vlm.module_map.attentions(vlm.model)
    name, configs = _ours(vlm, list(layers.values()))
    taps = {module: Tap(layer, edit, observe) for layer, module in layers.items()}
    _BEFORE.setdefault(vlm.model, [(config, config._attn_implementation_internal) for config in configs])
    try:
        for config in configs:
            config._attn_implementation_internal = name
        for module, tap in taps.items():
            _TAPS.setdefault(module, []).append(tap)
        yield
    finally:
        for module, tap in taps.items():
            _TAPS[module] = [other for other in _TAPS.get(module, []) if other is not tap]
            if not _TAPS[module]:
                del _TAPS[module]
        if not any(module in _TAPS for module in taps):
            for config, implementation in _BEFORE.pop(vlm.model):
                config._attn_implementation_internal = implementation


def is_intercepted(model: Any) -> bool:
    """Return whether an ``intercept`` is open on ``model``: its attention is being recorded or edited."""
    return model.config.get_text_config()._attn_implementation in (NAME, SOFT_CAPPED_NAME)


def chosen_layers(vlm: "VLM", layers: Sequence[int] | None) -> Sequence[int]:
    """``layers``, by default all decoder layers with self-attention.

    Raises:
        UserError: a layer without self-attention, or one that does not exist.
    """
    numbers = list(vlm.module_map.attentions(vlm.model))
    if unknown := [layer for layer in layers or () if layer not in numbers]:
        raise UserError(
            f"no layer {unknown[0]} in {vlm.name}; known: {numbers[0]} to {numbers[-1]}; choose among these"
        )
    return numbers if layers is None else layers


def _ours(vlm: "VLM", modules: list[Any]) -> tuple[str, list[Any]]:
    """Our implementation for this model, and the language model's configs that it goes to."""
    text = vlm.model.config.get_text_config()
    capped = getattr(text, "attn_logit_softcapping", None) is not None
    decoder = vlm.module_map.module(vlm.model, "language_model")
    supported = decoder._can_set_attn_implementation() and (capped or decoder._supports_sdpa)
    if not supported or not modules or not all(hasattr(module, "config") for module in modules):
        raise UserError(
            f"{vlm.name} does not take its attention from transformers' attention interface; recording needs that; "
            "load it with attn_implementation='eager' and pass output_attentions=True"
        )
    configs = [text, decoder.config, *(module.config for module in modules)]
    return SOFT_CAPPED_NAME if capped else NAME, list({id(config): config for config in configs}.values())
