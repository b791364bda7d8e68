"""Reads and edits what the language model computes, by layer and place: the residual stream and what is added to it.

*What* is one of

``residual``   the residual stream. *Layer* l is an index into ``hidden_states``. 0 is the input of the first decoder
               layer: the embeddings, with the image features inserted. l is the output of decoder layer l − 1, up to L,
               the number of decoder layers. All are before the final norm.
``attention``  what a decoder layer's attention adds to the residual stream, [row column width];
``mlp``        what its MLP adds, [row column width];
``head``       each head's output, before the map that adds up the heads, [row column head dim].

The last three are numbered by decoder layer, 0 to L − 1, as in ``interp.attention.record`` and
``interp.tools.knockout``. A norm behind the sublayer (Gemma 2 and 3) belongs to what it adds. Layers that have only
cross-attention (Llama 3.2 Vision) are left out; residual layers show their effect.

*Places* are groups of a prompt's columns, by ``interp.segments``. ``verdict`` is the last column, from which the first
answer token is predicted; it belongs to no other place. ``image``, ``user``, ``system``, ``template`` and ``sink`` are
all other columns of that segment, ``last_image`` and ``last_user`` the last of them. A conversation also has the parts
of ``interp.segments``, such as ``user:1`` and ``image:2``. A single column is named by its
number, a word's columns are found by a function (``Place``).
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.device_copies import to_device, to_host
from interp.errors import UserError
from interp.generation import unread
from interp.hooks.forward import Follower, follow
from interp.hooks.state_memory import memory_for
from interp.prompt import Prompt, listed
from interp.segments import PART, Finder, Segments

if TYPE_CHECKING:
    from interp.vlm import VLM

What = Literal["residual", "attention", "mlp", "head"]

PLACES = ("verdict", "image", "user", "template", "sink", "last_image", "last_user")
"""The places to read by default. ``system`` can be read too, for prompts with a system text."""

Place = str | int | Finder
"""The name of a place, a position counted from the verdict (0 is the verdict, −1 the column before it), or a function
that finds columns of a prompt, such as those of a word."""

READABLE = (*PLACES, "system", "question")
EDIT = "an edit of hidden states"
EDITABLE = (*READABLE, "generated", "all")
"""``generated`` is every token after the prompt, ``all`` every column, padding included."""


@dataclass(frozen=True)
class Activations:
    """Activations of each prompt, averaged over the columns of a place; NaN if a prompt has no such place.

    Of heads ``values`` is [place layer row head dim]. ``keys`` are the prompts' keys.
    """

    values: Float[Tensor, "place layer row *width"]  # float32, on the CPU
    places: tuple[Place, ...]
    layers: tuple[int, ...]
    what: str = "residual"
    keys: tuple[str, ...] = ()

    def select(self, region: Place, layer: int) -> Float[Tensor, " row *width"]:
        """Return the states of one place and layer.

        Raises:
            UserError: a place or layer that was not read.
        """
        return self.values[cell(region, layer, self.places, self.layers, done="read", do="read")]


Residuals = Activations


@dataclass(frozen=True)
class LayerStates:
    """The hidden states of one layer in one forward: columns from ``start`` on (only the newest while decoding).

    Of heads ``hidden`` is [row column head dim].
    """

    layer: int
    hidden: Float[Tensor, "row column *width"]
    start: int
    sight: "Watch"

    def where(self, region: Place) -> Bool[Tensor, "row column"]:
        """True where a column of ``hidden`` is at ``place``; a row may have none.

        Raises:
            UserError: an unknown place, image tokens of a model that has none, or inputs encoded before the block
                (except for ``all``).
        """
        if region == "all":
            return torch.ones(self.hidden.shape[:2], dtype=torch.bool, device=self.hidden.device)
        return to_device(self.sight.where(region, self.start, self.hidden.shape[1]), self.hidden.device)

    def indices(self, *places: Place) -> tuple[Int[Tensor, " n"], Int[Tensor, " n"]]:
        """Row and column of each state at one of ``places``, to index ``hidden`` with.

        Unlike the masks of ``where``, such indices do not make the host wait for the device.

        Raises:
            UserError: as ``where``.
        """
        masks = [self.sight.where(place, self.start, self.hidden.shape[1]) for place in places]
        rows, columns = torch.stack(masks).any(0).nonzero(as_tuple=True)
        return to_device(rows, self.hidden.device), to_device(columns, self.hidden.device)

    def mean(self, region: Place) -> Float[Tensor, " row *width"]:
        """Return the states at ``place``, averaged in float32; NaN where a row has none. Not for ``all``.

        Raises:
            UserError: as ``where``.
        """
        where = self.sight.where(region, self.start, self.hidden.shape[1])
        if bool((where.sum(1) == 1).all()):
            return self.hidden[self.indices(region)].float()
        columns = [to_device(row.nonzero()[:, 0], self.hidden.device) for row in where]
        # A row at a time, so that no float32 copy of the whole batch is made.
        return torch.stack([row[own].float().mean(0) for row, own in zip(self.hidden, columns, strict=True)])


Edit = Callable[[LayerStates], Tensor | None]
"""Returns the new ``hidden``, or None to leave it as it is."""


def residuals(
    vlm: "VLM",
    prompts: Prompt | Sequence[Prompt],
    *,
    places: Sequence[Place] = ("verdict",),
    layers: Sequence[int] | None = None,
    batch_size: int | None = None,
) -> Residuals:
    """Return the residual stream of each prompt at ``layers`` (default: 0 to L), as ``activations`` reads it.

    Where a memory of these prompts is open (``interp.hooks.state_memory``), what it holds is not read again.

    Raises:
        UserError: as ``activations``.
    """
    vlm.require("residuals")
    prompts, layers = listed(prompts), layers_of(vlm, "residual", layers)
    check_places(vlm, places, READABLE)
    read = partial(activations, vlm, batch_size=batch_size)
    names = [(place, layer) for place in places for layer in layers]

    def cells(chosen: Sequence[Prompt], wanted: Sequence[Hashable]) -> dict[Hashable, Tensor]:
        missing = [name for name in names if name in wanted]
        there = list(dict.fromkeys(place for place, _ in missing)), sorted({layer for _, layer in missing})
        states = read(chosen, places=there[0], layers=there[1])
        return {name: states.select(*name) for name in missing}

    memory = memory_for(vlm, prompts)
    if memory is None:
        return read(prompts, places=places, layers=layers)
    values = rearrange(
        memory.rows(prompts, names, cells), "(place layer) row width -> place layer row width", place=len(places)
    )
    return Residuals(values, tuple(places), layers, keys=tuple(prompt.key for prompt in prompts))


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

    Only the means are kept: places · layers · rows · width · 4 bytes, on the CPU. ``batch_size`` is the most prompts at
    once, None for the rule of ``vlm.batches``.

    Raises:
        UserError: no prompts, no places, an unknown place or layer, or image tokens of a model that has none.
    """
    prompts, layers = listed(prompts), layers_of(vlm, what, layers)
    check_places(vlm, places, READABLE)

    def read(indices: list[int]) -> Float[Tensor, "row place layer *width"]:
        states: dict[int, Tensor] = {}

        def keep(here: LayerStates) -> None:
            states[here.layer] = torch.stack([here.mean(place) for place in places], dim=1)

        with edit_activations(vlm, keep, what=what, layers=layers):
            vlm.score([prompts[index] for index in indices], metric=unread)
        return torch.stack(to_host([states[layer] for layer in layers]), dim=2)

    values = rearrange(
        vlm.batches.measured(prompts, read, batch_size=batch_size),
        "row place layer ... -> place layer row ...",
    )
    return Activations(values, tuple(places), layers, what, tuple(prompt.key for prompt in prompts))


def edit_residual(
    vlm: "VLM", edit: Edit, *, layers: Sequence[int], segments: Segments | None = None
) -> AbstractContextManager[None]:
    """Call ``edit`` on the hidden states of ``layers`` while open (``edit_activations``)."""
    return edit_activations(vlm, edit, what="residual", layers=layers, segments=segments)


@contextmanager
def edit_activations(
    vlm: "VLM", edit: Edit, *, what: str, layers: Sequence[int] | None = None, segments: Segments | None = None
) -> Iterator[None]:
    """Call ``edit`` on ``what`` at ``layers`` in every forward of ``vlm`` while open, decoding included.

    An edit that returns None only observes. ``segments`` belong to inputs encoded before the block
    (``interp.segments.segment``); an edit that never calls ``where`` needs none. Blocks nest: the inner edit sees what
    the outer one returned. ``knockout`` and ``record_attention`` may be open too. For heads, ``here.hidden`` is
    [row column head dim]: ``here.hidden * keep[:, None]`` with ``keep`` [head] switches heads off.

    Raises:
        UserError: no layers, an unknown layer, an edit that returns another shape, or a decoder that runs outside a
            forward of the whole model.
    """
    layers, sight = layers_of(vlm, what, layers), Watch(vlm)
    with ExitStack() as stack:
        stack.enter_context(follow(sight, segments))
        for layer in sorted(set(layers)):
            stack.callback(_hook(vlm, what, layer, partial(_edited, layer, edit, sight)).remove)
        yield


def _hook(vlm: "VLM", what: str, layer: int, edited: Callable[[Tensor], Tensor]) -> Any:
    """Put ``edited`` where the model computes ``what`` of a layer; the handle removes it."""

    def entering(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if args:
            return (change(args[0]), *args[1:]), kwargs
        return args, kwargs | {"hidden_states": change(kwargs["hidden_states"])}

    def leaving(module: Any, args: Any, output: Any) -> Any:
        return (change(output[0]), *output[1:]) if isinstance(output, tuple) else change(output)

    def apart(states: Tensor) -> Tensor:
        return edited(states.unflatten(-1, (vlm.module_map.heads(layer), -1))).flatten(-2)

    change = apart if what == "head" else edited
    if what != "residual":
        module = _modules(vlm, what)[layer]
    else:
        decoder = vlm.module_map.module(vlm.model, "layers")
        module = decoder[max(layer - 1, 0)]
    if what == "head" or (what == "residual" and layer == 0):
        return module.register_forward_pre_hook(entering, with_kwargs=True)
    return module.register_forward_hook(leaving)


def _edited(layer: int, edit: Edit, sight: "Watch", hidden: Tensor) -> Tensor:
    """Return what ``edit`` makes of the states of one layer."""
    if not sight.running:
        sight.current(EDIT)  # raises
    if hidden.ndim == 2:  # a mixture of experts that has put rows and columns into one axis
        return _edited(layer, edit, sight, hidden.unflatten(0, (sight.rows, -1))).flatten(0, 1)
    edited = edit(LayerStates(layer, hidden, sight.start, sight))
    if edited is None:
        return hidden
    if edited.shape != hidden.shape:
        raise UserError(
            f"an edit at layer {layer} gave {tuple(edited.shape)} for hidden states of {tuple(hidden.shape)}; "
            "the shape must stay; return a changed copy of here.hidden"
        )
    return edited.to(hidden)


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
    """Return the module of each decoder layer whose output (of heads: whose input) ``what`` is."""
    if what == "head":
        return vlm.module_map.head_sums(vlm.model)
    return vlm.module_map.sublayers(vlm.model, "attention" if what == "attention" else "mlp")


def head_count(vlm: "VLM", layers: Sequence[int] | None = None) -> int:
    """Return heads of each of the decoder layers ``layers`` (default: all with attention).

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


def last_layer(vlm: "VLM") -> int:
    """L, the number of decoder layers."""
    return len(vlm.module_map.module(vlm.model, "layers"))


class Watch(Follower):
    """Which columns the current forward holds and, if its batch is known, their segments."""

    in_pauses = True

    def where(self, region: Place, start: int, columns: int) -> Bool[Tensor, "row column"]:
        """Return a mask on the CPU, computed once per forward."""
        check_places(self.vlm, [region], EDITABLE)
        segments = (forward := self.current(EDIT)).batch.segments
        return forward.once(region, lambda: at_place(segments, region, start, start + columns))


def at_place(segments: Segments, region: Place, start: int, stop: int) -> Bool[Tensor, "row column"]:
    """True where a column from ``start`` up to ``stop`` is at ``place``: a ``Place``, or ``generated``."""
    if callable(region):
        return segments.search(region, stop)[:, start:]
    columns = torch.arange(stop)
    if isinstance(region, int):
        members = ~segments.columns_of("padding", stop)
        return (members & (columns == segments.width - 1 + region))[:, start:]
    verdict = columns == segments.width - 1
    if region == "verdict":
        return verdict[start:].repeat(len(segments.rows), 1)
    name = region.removeprefix("last_")
    # Start at column 0 even while decoding: the last column of a segment depends on the earlier ones.
    inside = segments.columns_of(name, stop) & ~verdict
    if name != region:
        inside &= columns == torch.where(inside, columns, -1).amax(1, keepdim=True)
    return inside[:, start:]


def place_name(region: Place) -> str | int:
    """Return what a place is called in tables and files: a position stays a number."""
    return region.__name__ if callable(region) else region


def cell(
    region: Place, layer: int, places: Sequence[Place], layers: Sequence[int], *, done: str, do: str
) -> tuple[int, int]:
    """Return the indices of a place and a layer among those where something was ``done``.

    Raises:
        UserError: one of them is not there; the way out is to ``do`` it too.
    """
    cells: tuple[tuple[str, Place, Sequence[Place]], ...] = (("place", region, places), ("layer", layer, layers))
    for name, value, choices in cells:
        if value not in choices:
            have = ", ".join(str(place_name(one)) for one in choices)
            raise UserError(f"no {name} {place_name(value)!r} among what was {done}; there are: {have}; {do} it too")
    return places.index(region), layers.index(layer)


def check_places(vlm: "VLM", places: Sequence[Place], allowed: tuple[str, ...]) -> None:
    """Check the names of places. Positions need not be in every prompt, but none lies behind the verdict.

    Raises:
        UserError: no places, one not in ``known``, or image tokens of a model that has none.
    """
    names = [place for place in places if isinstance(place, str)]
    unknown = [name for name in names if name not in allowed and not PART.fullmatch(name.removeprefix("last_"))]
    if unknown or not places:
        named = f"place '{unknown[0]}'" if unknown else "places"
        raise UserError(f"no {named} in a prompt; known: {', '.join(allowed)}; choose among these")
    later = [place for place in places if isinstance(place, int) and place > 0]
    if later:
        raise UserError(
            f"no position {later[0]} in a prompt; they count back from the verdict, which is 0, so −1 is the column "
            "before it; choose 0 or below"
        )
    if any("image" in place for place in names):
        vlm.module_map.require_image_tokens(vlm.name)
