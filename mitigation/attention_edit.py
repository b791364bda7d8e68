"""Raises attention logits on image tokens in chosen layers, before the softmax.

The second branch of a contrast (``interp.hooks.forward.paused``) is not changed.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.errors import UserError
from interp.hooks.attention import AttentionCall, chosen_layers, intercept
from interp.hooks.forward import Follower, Forward, follow, is_paused
from interp.host import to_device
from interp.segments import IMAGE, SEGMENTS, Segments
from mitigation.validation import check_layers, check_weight

if TYPE_CHECKING:
    from interp.vlm import VLM


@contextmanager
def steer_attention(
    vlm: "VLM",
    weight: float,
    *,
    layers: Sequence[int] | None = None,
    relative: bool = False,
    all_text: bool = False,
    segments: Segments | None = None,
) -> Iterator[None]:
    """Adds ``weight`` to attention logits A on image tokens in ``layers`` (default: all) of every forward while open.

    Nests with itself, with ``knockout`` and with ``record_attention``.

    Args:
        weight: in logits: A + weight multiplies an image token's odds by exp(weight). 0 changes nothing, negative
            values lower attention on the picture.
        layers: decoder layers, from 0.
        relative: A + weight·|A| (PAI, arXiv 2407.21771) instead of A + weight.
        all_text: steer every text token after the picture, not only the last prompt token and the generated ones.
        segments: of inputs encoded before the block.

    Raises:
        UserError: a weight that is not finite, an unknown layer, a family without image tokens in its sequence, inputs
            encoded before the block without ``segments``, or a model that does not use transformers' attention
            interface.
    """
    check_weight(weight)
    check_layers(layers)
    vlm.layout.require_image_tokens(vlm.name)
    chosen = chosen_layers(vlm, layers)
    if not weight:
        yield
        return
    steering = _Steering(vlm, weight, chosen, relative=relative, all_text=all_text)
    with follow(vlm, steering, segments), intercept(vlm, edit=steering.edit):
        yield


class _Steering:
    """The hooks of one ``steer_attention``, around each forward and at each attention call."""

    def __init__(self, vlm: "VLM", weight: float, layers: Sequence[int], *, relative: bool, all_text: bool) -> None:
        self.weight, self.layers, self.relative, self.all_text = weight, frozenset(layers), relative, all_text
        self.follower = Follower(vlm)
        self.forward: Forward | None = None
        # Edges and the queries that have any, by number of keys and device.
        self.raised: dict[tuple[int, torch.device], tuple[Tensor, Tensor]] = {}

    def before(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Runs before a forward; finds which columns it holds."""
        self.forward, self.raised = None if is_paused() else self.follower.enter(args, kwargs), {}

    def after(self, module: Any, args: Any, output: Any) -> None:
        """Runs after a forward, and remembers its cache to recognise the next decoding step."""
        if self.forward is not None:
            self.follower.leave(self.forward, output)
        self.forward, self.raised = None, {}

    def edit(self, call: AttentionCall) -> AttentionCall:
        """Runs at each attention call; returns it with a mask that raises the image's logits."""
        if is_paused() or call.layer not in self.layers:
            return call
        forward = self.forward
        if forward is None or call.query.shape[2] != forward.total - forward.start:
            raise UserError(
                "attention ran outside a forward of the whole model; steering follows vlm.generate, vlm.score and "
                "vlm.model(...); call one of these"
            )
        keys, device = call.key.shape[2], call.key.device
        if (keys, device) not in self.raised:
            edges = self._edges(forward, keys)
            # Few of a prompt's queries are steered: compute logits, if needed, for these only.
            places = edges.any(0).any(-1).nonzero().flatten()
            self.raised[keys, device] = to_device(edges, device), to_device(places, device)
        edges, places = self.raised[keys, device]
        if not len(places):
            return call
        return replace(call, mask=_raised(call, edges, places, self.weight, relative=self.relative))

    def _edges(self, forward: Forward, keys: int) -> Bool[Tensor, "row query key"]:
        """True at the edges to raise. Keys are the newest columns; the cache of a sliding window drops older ones."""
        segments, total = forward.batch.segments, forward.total
        codes = segments.indicator(0, total).argmax(-1)
        image = codes == SEGMENTS.index(IMAGE)
        columns = torch.arange(total)
        if self.all_text:  # tokens before the picture cannot see it
            queries = ~image & (codes != SEGMENTS.index("padding"))
        else:
            queries = (columns >= segments.width - 1).expand(codes.shape)
        return queries[:, forward.start :, None] & image[:, None, total - keys :]


def _raised(
    call: AttentionCall,
    edges: Bool[Tensor, "row query key"],
    places: Tensor,
    weight: float,
    *,
    relative: bool,
) -> Float[Tensor, "row head query key"]:
    """An additive mask in the dtype of the queries, as sdpa expects."""
    mask, dtype = call.allowed(), call.query.dtype
    lowest = torch.finfo(dtype).min
    if mask.dtype == torch.bool:
        additive = torch.zeros(mask.shape, dtype=torch.float32, device=mask.device).masked_fill(~mask, lowest)
    else:
        additive = mask.float().clamp(min=lowest)
    seen = edges[:, None] & (additive > lowest / 2)
    if not relative:
        return (additive + weight * seen).to(dtype)
    heads = call.query.shape[1]
    bias = torch.zeros(len(edges), heads, *edges.shape[1:], dtype=torch.float32, device=mask.device)
    bias[:, :, places] = weight * call.at(places).scores().abs()
    return (additive + bias * seen).to(dtype)
