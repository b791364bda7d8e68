"""The decoder layers below a change, run once: whatever is changed behind them costs only the layers above.

    with record_lower_layers(vlm, below) as lower:
        before = vlm.score(prompts, encoded=encoded)
    for layer in below:
        with lower.reused_below(layer), edit_residual(vlm, edit, layers=[layer + 1]):
            margins = vlm.score(prompts, encoded=encoded)  # as without ``put_in``, bit for bit

A state depends on the layers below it alone, so that many changes of one batch share what is below them.
``interp.speed.prefix.Prefix`` does the same with the columns before a change.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from interp.hooks.forward import replaced

if TYPE_CHECKING:
    from interp.vlm import VLM

MOST = 8  # layers whose output is kept: a batch's hidden states, each


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


def share_run(layers: Sequence[int], count: int) -> float:
    """The mean share of ``count`` decoder layers that changes behind each of ``layers`` cost."""
    known = [-1, *stops(layers)]
    return sum(count - 1 - max(one for one in known if one <= layer) for layer in layers) / (len(layers) * count)


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
