"""Reads and edits what attention, MLPs and single heads compute, as ``interp.hooks.residual`` does for what they are
added to.

``what`` is one of

``residual``   the residual stream, layers 0 to L (``interp.hooks.residual``);
``attention``  what a decoder layer's attention adds to the residual stream, [row column width];
``mlp``        what its MLP adds, [row column width];
``head``       each head's output, before the map that adds up the heads, [row column head dim].

The last three are numbered by decoder layer, from 0. A norm behind the sublayer (Gemma 2 and 3) belongs to what it
adds. Layers that have only cross-attention (Llama 3.2 Vision) are left out; residual layers show their effect.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

from interp.errors import UserError
from interp.hooks.forward import follow
from interp.hooks.residual import (
    READABLE,
    Activations,
    Edit,
    Place,
    StateHook,
    Watch,
    check_places,
    edit_residual,
    last_layer,
    read_states,
)
from interp.prompt import Prompt, listed
from interp.segments import Segments

if TYPE_CHECKING:
    from interp.vlm import VLM

What = Literal["residual", "attention", "mlp", "head"]


def layers_of(vlm: "VLM", what: str, layers: Sequence[int] | None = None) -> tuple[int, ...]:
    """``layers``, by default all that have ``what``.

    Raises:
        UserError: an unknown ``what``, no layers, or a layer that has none.
    """
    if what not in get_args(What):
        raise UserError(f"no activations {what!r}; known: {', '.join(get_args(What))}; choose among these")
    numbers = range(last_layer(vlm) + 1) if what == "residual" else list(_modules(vlm, what))
    if not numbers:
        raise UserError(f"no layer of {vlm.name} has {what} outputs; patch what='residual' instead")
    chosen = tuple(numbers if layers is None else layers)
    unknown = [layer for layer in chosen if layer not in numbers]
    if unknown or not chosen:
        where = "in the residual stream" if what == "residual" else f"with {what} outputs"
        named = f"layer {unknown[0]}" if unknown else "layers"
        raise UserError(
            f"no {named} {where} of {vlm.name}; there are {numbers[0]} to {numbers[-1]}; choose among these"
        )
    return chosen


def _modules(vlm: "VLM", what: str) -> dict[int, Any]:
    """Decoder layer → the module whose output (of heads: whose input) ``what`` is."""
    if what == "head":
        return vlm.module_map.head_sums(vlm.model)
    return vlm.module_map.sublayers(vlm.model, "attention" if what == "attention" else "mlp")


def head_count(vlm: "VLM", layers: Sequence[int] | None = None) -> int:
    """Heads of each of the decoder layers ``layers`` (default: all with attention).

    Raises:
        UserError: they differ in number.
    """
    counts = {
        vlm.module_map.heads(layer) for layer in (vlm.module_map.attentions(vlm.model) if layers is None else layers)
    }
    if len(counts) > 1:
        raise UserError(
            f"the layers of {vlm.name} have {' or '.join(map(str, sorted(counts)))} heads; name layers that have as "
            "many heads as each other"
        )
    return counts.pop() if counts else 0


def chosen_heads(vlm: "VLM", heads: Sequence[int] | None, layers: Sequence[int] | None = None) -> list[int]:
    """``heads`` of each of the decoder layers ``layers``, by default all.

    Raises:
        UserError: no heads, one that does not exist, or as ``head_count``.
    """
    numbers = range(head_count(vlm, layers))
    chosen = list(numbers if heads is None else heads)
    if not chosen or not set(chosen) <= set(numbers):
        named = next((f"head {head}" for head in chosen if head not in numbers), "heads")
        raise UserError(f"no {named} in a layer of {vlm.name}; there are 0 to {numbers[-1]}; choose among these")
    return chosen


@contextmanager
def edit_activations(
    vlm: "VLM", edit: Edit, *, what: str, layers: Sequence[int] | None = None, segments: Segments | None = None
) -> Iterator[None]:
    """Calls ``edit`` on ``what`` in every forward of ``vlm`` while open, as ``edit_residual`` does on hidden states.

    For heads, ``here.hidden`` is [row column head dim]: ``here.hidden * keep[:, None]`` with ``keep`` [head] switches
    some off.

    Raises:
        UserError: as ``layers_of`` and ``edit_residual``.
    """
    layers = layers_of(vlm, what, layers)
    if what == "residual":
        with edit_residual(vlm, edit, layers=layers, segments=segments):
            yield
        return
    sight = Watch(vlm)
    with ExitStack() as stack:
        stack.enter_context(follow(sight, segments))
        for layer in sorted(set(layers)):
            hook = StateHook(layer, edit, sight)
            module = _modules(vlm, what)[layer]
            if what == "head":
                apart = partial(hook.apart, vlm.module_map.heads(layer))
                stack.callback(module.register_forward_pre_hook(apart).remove)
            else:
                stack.callback(module.register_forward_hook(hook.leaving).remove)
        yield


def activations(
    vlm: "VLM",
    prompts: Prompt | Sequence[Prompt],
    *,
    what: str = "residual",
    places: Sequence[Place] = ("verdict",),
    layers: Sequence[int] | None = None,
    batch_size: int | None = None,
) -> Activations:
    """``what`` of each prompt at ``layers`` (default: all), averaged over ``places``, with one forward per batch.

    ``batch_size`` is the most prompts at once, None for the rule of ``vlm.batches``.

    Raises:
        UserError: as ``layers_of``; no prompts, an unknown place, or image tokens of a model that has none.
    """
    layers = layers_of(vlm, what, layers)
    check_places(vlm, places, READABLE)
    edit_states = partial(edit_activations, what=what)
    return read_states(vlm, listed(prompts), what, edit_states, places=places, layers=layers, batch_size=batch_size)
