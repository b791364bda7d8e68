"""What a change leaves as it is, run once: the decoder layers below it, and the columns before it.

    with record_lower_layers(vlm, below) as lower:
        before = vlm.score(prompts, encoded=encoded)
    for layer in below:
        with lower.reused_below(layer), edit_residual(vlm, edit, layers=[layer + 1]):
            margins = vlm.score(prompts, encoded=encoded)  # as without ``lower``, bit for bit

    prefix = Prefix.of(vlm, encoded, columns=first)
    with edit_residual(vlm, edit, layers=[4]):
        margins = prefix.score()  # as vlm.score(prompts, encoded=encoded) would be with the edit

A state depends on the layers below it alone; and in a decoder it reaches the columns behind it alone, so that a prefix
is the KV cache of what is before. That holds only for families that are known to be so (``Prefix.fits``); PaliGemma's
prompts, for one, are seen in both directions.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from interp.cache_names import cache_in, with_cache
from interp.errors import UserError
from interp.hooks.forward import paused, replaced
from interp.segments import IMAGE, SEGMENTS, Segments

if TYPE_CHECKING:
    from interp.vlm import VLM

MOST = 8  # layers whose output is kept: a batch's hidden states, each
CAUSAL = ("llava", "llava_next", "idefics3", "smolvlm")  # no column sees one behind it; a position is a column's number


@dataclass(frozen=True)
class LowerLayers:
    """What some decoder layers put out in the last forward of ``record_lower_layers``."""

    vlm: "VLM"
    outputs: dict[int, Any] = field(default_factory=dict)

    @contextmanager
    def reused_below(self, layer: int) -> Iterator[None]:
        """While open, forwards of the batch that was kept compute only what follows the last kept of 0 … ``layer``.

        Hooks of the layers that are skipped still run, on states that nothing depends on. Nothing is skipped where no
        such layer is kept (−1: none is below).
        """
        below = [kept for kept in self.outputs if kept <= layer]
        layers = self.vlm.layout.module(self.vlm.model, "layers")
        with ExitStack() as stack:
            if below:
                last = max(below)
                for lower in layers[:last]:
                    stack.enter_context(replaced(lower, "forward", _passing(self.outputs[last])))
                stack.enter_context(replaced(layers[last], "forward", _giving(self.outputs[last])))
            yield


@contextmanager
def record_lower_layers(vlm: "VLM", layers: Sequence[int], *, every: bool = False) -> Iterator[LowerLayers]:
    """While open, what the decoder ``layers`` put out is kept: at most ``MOST`` of them (``stops``), or ``every``."""
    found = LowerLayers(vlm)
    decoder = vlm.layout.module(vlm.model, "layers")
    with ExitStack() as stack:
        for layer in sorted({layer for layer in layers if layer >= 0}) if every else stops(layers):
            stack.enter_context(replaced(decoder[layer], "forward", _keeping(found.outputs, layer, decoder[layer])))
        yield found


def stops(layers: Sequence[int]) -> list[int]:
    """The layers that are kept for changes behind each of ``layers`` (−1: below all): all, or ``MOST`` evenly."""
    wanted = sorted({layer for layer in layers if layer >= 0})
    if len(wanted) <= MOST:
        return wanted
    return [wanted[at * len(wanted) // MOST] for at in range(MOST)]


def _keeping(outputs: dict[int, Any], layer: int, module: Any) -> Callable[..., Any]:
    before = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        outputs[layer] = before(*args, **kwargs)
        return outputs[layer]

    return forward


def _giving(output: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: output


def _passing(output: Any) -> Callable[..., Any]:
    """What goes in, in the form of ``output``."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        hidden = args[0] if args else kwargs["hidden_states"]
        return (hidden, *output[1:]) if isinstance(output, tuple) else hidden

    return forward


@dataclass(frozen=True)
class Prefix:
    """The keys and values of a batch's first ``columns`` columns, and the inputs of the others."""

    vlm: "VLM"
    columns: int
    cache: Any
    rest: Mapping[str, Tensor]

    @staticmethod
    def fits(vlm: "VLM", segments: Segments, columns: int) -> bool:
        """Whether the first ``columns`` columns can be kept apart, the whole picture or none of it among them."""
        behind = segments.codes[:, columns:]
        sliding = getattr(vlm.model.config.get_text_config(), "sliding_window", None)
        return (
            0 < columns < segments.width
            and vlm.layout.model_type in CAUSAL
            and sliding is None
            and not bool((behind == SEGMENTS.index(IMAGE)).any())
        )

    @classmethod
    def of(cls, vlm: "VLM", encoded: Mapping[str, Any], *, columns: int) -> "Prefix":
        """Runs the first ``columns`` columns of left-padded inputs.

        Raises:
            UserError: ``columns`` leaves nothing before or behind.
        """
        mask = encoded["attention_mask"]
        if not 0 < columns < mask.shape[1]:
            raise UserError(f"a prefix of {columns} of {mask.shape[1]} columns; both parts need one; choose another")
        positions = vlm.positions(mask)["position_ids"]
        along = {name: value for name, value in encoded.items() if name not in ("input_ids", "attention_mask")}
        first = {"input_ids": encoded["input_ids"][:, :columns], "attention_mask": mask[:, :columns]}
        with torch.no_grad(), paused():
            output = vlm.model(**along, **first, position_ids=positions[:, :columns], use_cache=True, logits_to_keep=1)
        rest = {"input_ids": encoded["input_ids"][:, columns:], "attention_mask": mask,
                "position_ids": positions[:, columns:]}  # fmt: skip
        return cls(vlm, columns, cache_in(output), rest)

    def score(self) -> Float[Tensor, " row"]:
        """The margins of the whole prompts; float32 on the CPU. May be called again."""
        vlm = self.vlm
        with torch.no_grad(), vlm.float32_logits():
            logits = vlm.model(**self.rest, **with_cache(self.cache), use_cache=True, logits_to_keep=1).logits
        for layer in self.cache.layers:  # some may not have run (``LowerLayers``)
            layer.crop(self.columns - layer.get_seq_length())
        return vlm.margin(logits[:, -1]).float().cpu()
