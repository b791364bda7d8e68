"""ONLY's textually enhanced logits (arXiv 2507.00898), read off the forwards of the model itself.

For the last column, in float32, at one attention layer:

1. Its attention weights on text tokens (all but the picture's and the sink) above mean + standard deviation of these
   are set to 0, and likewise those on image tokens; the sink's weight stays.
2. A head's text-to-visual entropy ratio is the entropy of its weights on text divided by that on the picture, each
   rescaled to sum to 1. Heads below the mean ratio of the layer are switched off.
3. What the other heads give, after the layer's output map, skips all layers up to the last. Into that layer goes its
   norm plus 0.2 of the last layer's own input; it adds what the layer's MLP makes of it.
4. The final norm of this, plus 0.5 of the model's own final state, goes through the output head.

The code of the authors (github.com/zifuwan/ONLY) does this for every column; only the last one is ever read.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from einops import einsum, rearrange, repeat
from jaxtyping import Bool, Float
from torch import Tensor

from interp.device_copies import to_device
from interp.errors import UserError
from interp.hooks.attention import AttentionCall, chosen_layers, intercept
from interp.hooks.forward import Follower, follow, is_paused
from interp.hooks.residual import LayerStates, edit_residual, last_layer
from interp.segments import IMAGE, SEGMENTS
from mitigation.contrastive.own_states import OwnBranch, logits_of

if TYPE_CHECKING:
    from interp.vlm import VLM

OWN_INPUT, OWN_STATE = 0.2, 0.5
"""The shares of the model's own states, in steps 3 and 4."""


@contextmanager
def text_enhanced(vlm: "VLM", layer: int) -> "Iterator[TextEnhanced]":
    """While open, follows the forwards of ``vlm``; the branch gives the enhanced logits of the latest one.

    Raises:
        UserError: the family has no image tokens in its sequence or norms behind its sublayers, or no such layer.
    """
    vlm.layout.require_image_tokens(vlm.name)
    if any(block.after_attention != block.attention for block in vlm.layout.blocks.values()):
        raise UserError(
            f"ONLY does not say what becomes of the norms behind the sublayers of {vlm.name}, or of layers without "
            "attention; take another rule, or another family"
        )
    chosen_layers(vlm, [layer])
    branch = TextEnhanced(vlm, layer)
    before_last = [last_layer(vlm) - 1]
    with follow(branch.follower, None), intercept(vlm, observe=branch.observe):
        with edit_residual(vlm, branch.keep_input, layers=before_last):
            handle = vlm.layout.module(vlm.model, "final_norm").register_forward_hook(branch.keep_state)
            try:
                yield branch
            finally:
                handle.remove()


class TextEnhanced(OwnBranch):
    """A branch (``mitigation.contrastive.processors.Branch``) without forwards of its own."""

    def __init__(self, vlm: "VLM", layer: int) -> None:
        self.follower = Follower(vlm)
        self._vlm, self._layer = vlm, layer
        self._heads: Tensor | None = None  # step 2's output of the attention, [row width]
        self._input: Tensor | None = None  # the last layer's, [row width]
        self._state: Tensor | None = None  # after the final norm, [row width]
        self._inside = False

    def observe(self, call: AttentionCall) -> None:
        """Runs at each attention call."""
        if not self.follower.running or call.layer != self._layer:
            return
        keys, forward = call.key.shape[2], self.follower.current("ONLY")
        codes = forward.batch.segments.indicator(0, forward.total).argmax(-1)[:, -keys:]
        image = codes == SEGMENTS.index(IMAGE)
        text = ~image & (codes != SEGMENTS.index("padding")) & (codes != SEGMENTS.index("sink"))
        device = call.key.device
        last = to_device(torch.tensor([call.query.shape[2] - 1]), device)
        heads = enhanced_heads(call.at(last), to_device(text, device), to_device(image, device))
        out = self._vlm.layout.head_sums(self._vlm.model)[self._layer]
        self._heads = out(rearrange(heads.to(call.value.dtype), "row head dim -> row (head dim)"))

    def keep_input(self, here: LayerStates) -> None:
        """Runs before the last decoder layer."""
        if not is_paused():
            self._input = here.hidden[:, -1]

    def keep_state(self, module: Any, args: Any, output: Tensor) -> None:
        """Runs after the final norm."""
        if not is_paused() and not self._inside:
            self._state = output[:, -1]

    @torch.no_grad()
    def _logits(self) -> Float[Tensor, "row vocab"]:
        heads, own, state = self._heads, self._input, self._state
        assert heads is not None
        assert own is not None
        assert state is not None
        last = self._vlm.layout.module(self._vlm.model, "layers")[-1]
        device = next(last.parameters()).device  # ``own`` is still where the layer before left it
        entering = last.input_layernorm(heads.to(device)[:, None]) + OWN_INPUT * own.to(device)[:, None]
        left = entering + last.mlp(last.post_attention_layernorm(entering))
        norm = self._vlm.layout.module(self._vlm.model, "final_norm")
        self._inside = True
        try:
            normed = norm(left.to(state.device))
        finally:
            self._inside = False
        return logits_of(self._vlm, normed[:, 0] + OWN_STATE * state)


def enhanced_heads(
    call: AttentionCall, text: Bool[Tensor, "row key"], image: Bool[Tensor, "row key"]
) -> Float[Tensor, "row head dim"]:
    """Steps 1 and 2 for a call of one query, in float32; 0 for the heads that are switched off."""
    mask = call.allowed()
    seen = (mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2)[:, :, 0]
    weights = call.rows()[:, :, 0]
    entropies = []
    for part in (text, image):
        own = (part[:, None] & seen).expand_as(weights)
        weights = weights.masked_fill(_outliers(weights, own), 0.0)
        share = weights * own
        entropies.append(torch.special.entr(share / share.sum(-1, keepdim=True)).sum(-1))
    # A head that sees nothing of a part: no textual entropy, or no end of visual entropy.
    ratio = entropies[0].nan_to_num(nan=0.0) / entropies[1].nan_to_num(nan=torch.inf)
    off = ratio < ratio.mean(-1, keepdim=True)
    weights = weights.masked_fill(off[..., None], 0.0)
    groups = call.value.shape[1]
    value = repeat(call.value.float(), "row group key dim -> row (group n) key dim", n=weights.shape[1] // groups)
    return einsum(weights, value, "row head key, row head key dim -> row head dim")


def _outliers(
    weights: Float[Tensor, "row head key"], own: Bool[Tensor, "row head key"]
) -> Bool[Tensor, "row head key"]:
    """Weights above mean + standard deviation (of a sample) of those that are ``own``."""
    count = own.sum(-1, keepdim=True)
    mean = (weights * own).sum(-1, keepdim=True) / count
    spread = (((weights - mean) ** 2 * own).sum(-1, keepdim=True) / (count - 1)).sqrt()
    return own & (weights > mean + spread)
