"""Attention steering: an answer given while the model looks at its picture more, in layers chosen by evidence.

The idea is PAI's (Liu et al. 2024, arXiv 2407.21771), which raises all layers from a first one on; which layers matter
is what ``interp.attention_knockout`` measures. Importing this module loads neither torch nor transformers; generating
does.

Attention logits towards the picture raised in chosen layers, while a model generates or runs forward as usual.

Before the softmax, at the last token of the prompt and the generated ones, or at every token of text. A second branch
(``interp.hooks.forward.paused``) is left as it is. Knows nothing of answers.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.errors import UserError
from interp.hooks.attention import AttentionCall, chosen_layers, intercept
from interp.hooks.forward import Follower, Forward, follow, is_paused
from interp.segments import IMAGE, SEGMENTS, Segments
from mitigation.prior_correction import check_pictured
from mitigation.validation import check_layers, check_shift, check_weight
from mitigation.wrappers import with_shift

if TYPE_CHECKING:
    from interp.vlm import VLM, Generation, Prompt


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

    ``relative``: A + weight·|A| (PAI, arXiv 2407.21771) instead of A + weight, which multiplies an image
    token's odds by exp(weight). Queries are the prompt's last token and the generated ones; with ``all_text`` every
    token after the picture that is none of it. ``layers`` count decoder layers from 0. ``segments`` are those of inputs
    that were encoded before. A weight of 0 leaves the model alone; below 0 the picture is looked at less. It nests with
    itself, with ``knockout`` and with ``record_attention``.

    Raises:
        UserError: a weight that is not finite, an unknown layer, a family without image tokens in its sequence, inputs
            that were encoded outside, or a model that does not take its attention from transformers' interface.
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
    """The hooks of one ``steer_attention``: around each forward, and at each attention call in it."""

    def __init__(self, vlm: "VLM", weight: float, layers: Sequence[int], *, relative: bool, all_text: bool) -> None:
        self.weight, self.layers, self.relative, self.all_text = weight, frozenset(layers), relative, all_text
        self.follower = Follower(vlm)
        self.forward: Forward | None = None

    def before(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before a forward: which columns it holds."""
        self.forward = None if is_paused() else self.follower.enter(args, kwargs)

    def after(self, module: Any, args: Any, output: Any) -> None:
        """After a forward: its cache names it at the next decoding step."""
        if self.forward is not None:
            self.follower.leave(self.forward, output)
        self.forward = None

    def edit(self, call: AttentionCall) -> AttentionCall:
        """At an attention call: the same one with a mask that raises the image's logits."""
        if is_paused() or call.layer not in self.layers:
            return call
        forward = self.forward
        if forward is None or call.query.shape[2] != forward.total - forward.start:
            raise UserError(
                "attention ran outside a forward of the whole model; steering follows vlm.generate, vlm.score and "
                "vlm.model(...); call one of these"
            )
        edges = self._edges(forward, call.key.shape[2]).to(call.key.device)
        # Few of a prompt's queries are steered: where logits are wanted, those of these alone.
        places = edges.any(0).any(-1).nonzero().flatten()
        if not len(places):
            return call
        return replace(call, mask=_raised(call, edges, places, self.weight, relative=self.relative))

    def _edges(self, forward: Forward, keys: int) -> Bool[Tensor, "row query key"]:
        """From which query to which key. Keys are the newest columns: a sliding window's cache drops older ones."""
        segments, total = forward.batch.segments, forward.total
        codes = segments.indicator(0, total).argmax(-1)
        image = codes == SEGMENTS.index(IMAGE)
        columns = torch.arange(total)
        if self.all_text:  # those before the picture have nothing of it to see
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
    """An additive mask in the type of the queries, as sdpa takes it."""
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


@dataclass(frozen=True)
class AttentionSteering:
    """Greedy answers with ``weight`` added to the attention logits on image tokens in ``layers`` (None: all).

    ``layers`` count decoder layers from 0. ``relative`` and ``all_text`` as in
    ``mitigation.attention_steering.steer_attention``: weight times the logit's size instead of a constant, and every
    token of text after the picture instead of the prompt's last and the generated ones. ``shift`` is added to the
    Yes/No margin of the first token. ``method`` answers under the steering (None: greedily); a second branch of it,
    as prior correction's, is not steered. A weight of 0 is that method as it is.
    """

    weight: float = 1.0
    layers: Any = None  # a sequence of indices, kept as a tuple: a configuration's is a list
    shift: float = 0.0
    relative: bool = False
    all_text: bool = False
    method: Any = None  # a Method; the type of a Hydra node that is built by itself

    def __post_init__(self) -> None:
        """UserError naming the value and its range."""
        check_weight(self.weight)
        check_layers(self.layers)
        check_shift(self.shift)
        if self.layers is not None:
            object.__setattr__(self, "layers", tuple(self.layers))
        if self.method is not None and not callable(getattr(self.method, "generate", None)):
            raise UserError(f"method={self.method!r}; what answers under steering is a method such as VCD(); name one")

    @property
    def yes_no_only(self) -> bool:
        """A shift is of a verdict; without one any answer can be steered."""
        return bool(self.shift) or bool(getattr(self.method, "yes_no_only", False))

    def generate(self, vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> "Generation":
        """Answers with margins as steered.

        UserError where a prompt has no image, where the family has no image tokens in its sequence or no such layer,
        and as the method's.
        """
        from mitigation.method import Baseline

        check_pictured(prompts, "attention is steered towards an image's tokens")
        method = Baseline() if self.method is None else self.method

        def answer(shifting: "VLM") -> "Generation":
            with steer_attention(
                shifting, self.weight, layers=self.layers, relative=self.relative, all_text=self.all_text
            ):
                return method.generate(shifting, prompts, max_new_tokens=max_new_tokens)

        return with_shift(vlm, self.shift, answer) if self.shift else answer(vlm)
