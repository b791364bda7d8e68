"""Raises attention logits on image tokens in chosen layers, before the softmax.

The second branch of a contrast (``interp.hooks.forward.paused``) is not changed.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.device_copies import to_device
from interp.hooks.attention import CHUNK, AttentionCall, chosen_layers, intercept
from interp.hooks.forward import Follower, Forward, follow, is_paused
from interp.segments import IMAGE, Segments
from mitigation.method import check_layers, check_number

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
    """Add ``weight`` to attention logits A on image tokens in ``layers`` (default: all) of every forward while open.

    Nests with itself, with ``knockout`` and with ``record_attention``.

    Args:
        weight: in logits: A + weight multiplies an image token's odds by exp(weight). 0 changes nothing, negative
            values lower attention on the picture.
        layers: decoder layers, from 0.
        relative: A + weight·|A| (PAI, arXiv 2407.21771) instead of A + weight.
        all_text: steer every text token after the picture, not only the last prompt token and the generated ones.
        segments: of inputs encoded before the block.

    Raises:
        UserError: a weight that is not finite, an unknown layer, or a family without image tokens in its sequence.
            Inputs were encoded before the block and ``segments`` is missing. The model does not use transformers'
            attention interface.
    """
    check_number("weight", weight)
    check_layers(layers)
    vlm.module_map.require_image_tokens(vlm.name)
    chosen = chosen_layers(vlm, layers)
    if not weight:
        yield
        return
    steering = _Steering(vlm, weight, chosen, relative=relative, all_text=all_text)
    with follow(steering, segments), intercept(vlm, edit=steering.edit):
        yield


class _Steering(Follower):
    """What one ``steer_attention`` does at each attention call."""

    def __init__(self, vlm: "VLM", weight: float, layers: Sequence[int], *, relative: bool, all_text: bool) -> None:
        super().__init__(vlm)
        self.weight, self.layers, self.relative, self.all_text = weight, frozenset(layers), relative, all_text

    def edit(self, call: AttentionCall) -> AttentionCall:
        """Return the call with the image's logits raised."""
        if is_paused() or call.layer not in self.layers:
            return call
        forward = self.current("steering", columns=call.query.shape[2])
        keys, device = call.key.shape[2], call.key.device
        edges, places = forward.once(
            (keys, device), lambda: [to_device(part, device) for part in self._edges(forward, keys)]
        )
        if not len(places):
            return call
        return call.raise_at(places, _added(call, edges, places, self.weight, relative=self.relative))

    def _edges(self, forward: Forward, keys: int) -> tuple[Bool[Tensor, "row some key"], Int[Tensor, " some"]]:
        """Return True at the edges to raise, for the queries that have any, and the columns of these queries.

        Keys are the newest columns; the cache of a sliding window drops older ones.
        """
        segments, total = forward.batch.segments, forward.total
        image = segments.columns_of(IMAGE, total)
        columns = torch.arange(total)
        if self.all_text:  # tokens before the picture cannot see it
            queries = ~image & ~segments.columns_of("padding", total)
        else:
            queries = (columns >= segments.width - 1).expand(image.shape)
        seen = image[:, total - keys :]
        steered = queries[:, forward.start :] & seen.any(1, keepdim=True)
        places = steered.any(0).nonzero().flatten()
        return steered[:, places, None] & seen[:, None], places


def _added(
    call: AttentionCall,
    edges: Bool[Tensor, "row some key"],
    places: Int[Tensor, " some"],
    weight: float,
    *,
    relative: bool,
) -> Float[Tensor, " row #head some key"]:
    """Return the change of the logits of the queries at ``places``, in their dtype; float32 for ``CHUNK`` at a time."""
    dtype = call.query.dtype
    if not relative:
        return weight * edges[:, None].to(dtype)
    parts = [
        (weight * call.select(some).scores().abs() * own[:, None]).to(dtype)
        for some, own in zip(places.split(CHUNK), edges.split(CHUNK, dim=1), strict=True)
    ]
    return torch.cat(parts, dim=2)
