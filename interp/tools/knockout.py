"""Attention knockout: cuts attention edges between segments to measure what information they carry.

An edge goes from the keys of one segment to the queries of another: ``("image", "verdict")`` keeps the verdict from
attending to the picture (Geva et al. 2023, "Dissecting Recall of Factual Associations", section 4). Names are segments
(``interp.segments``): ``image`` is the picture, ``verdict`` the prompt's last token, which predicts the first answer
token. An end may also be a function that finds its columns in a row's segments, such as the columns of a word. A
token's edge to itself is never cut, so every query keeps a key. Layers are decoder layers, from 0.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.device_copies import to_device
from interp.errors import UserError
from interp.hooks.attention import AttentionCall, chosen_layers, intercept
from interp.hooks.forward import Follower, Forward, follow
from interp.hooks.sublayers import chosen_heads
from interp.prompt import listed
from interp.segments import CODES, IMAGE, PART, Finder, Segments, segment

if TYPE_CHECKING:
    from interp.figures.glyphs import Figure
    from interp.margin import Metric
    from interp.vlm import VLM, Prompt

End = str | Finder
"""A segment, or a function of a prompt's segments that gives columns."""

Edge = tuple[End, End]
"""Where the keys are, where the queries are."""

VERDICT = "verdict"
ENDS = ("image", VERDICT, *(name for name in CODES if name not in ("padding", IMAGE)), "question")
"""Segments that can be ends of an edge, next to parts such as ``user:1`` and ``image:2``."""


@contextmanager
def knockout(
    vlm: "VLM",
    edges: Sequence[Edge],
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    segments: Segments | None = None,
) -> Iterator[None]:
    """Cuts ``edges`` in ``layers`` (default: all) of every forward of ``vlm`` while open, cached decoding included.

    With ``heads`` only these heads of the layers lose them.

    ``segments`` belong to inputs encoded before the block (``interp.segments.segment``). Blocks nest, also with
    ``record_attention``, which then records the remaining attention. The model is restored when the block ends, also on
    an exception.

    Raises:
        UserError: no edges, an unknown segment, layer or head, image tokens of a model that has none, inputs encoded
            before the block without ``segments``, or a model that does not use transformers' attention interface.
    """
    vlm.require("knockout")
    _check(vlm, edges)
    chosen = chosen_layers(vlm, layers)
    cutter = _Cutter(vlm, edges, chosen, None if heads is None else chosen_heads(vlm, heads, chosen))
    with follow(cutter, segments), intercept(vlm, edit=cutter.edit):
        yield


@dataclass(frozen=True)
class KnockoutEffects:
    """The effect of cutting ``edges`` on each prompt, a cut at a time, in logits; float32, on the CPU.

    ``moved`` is the margin with the edges cut minus ``whole``, the margin without. Cut i is made in ``layers[i]`` and
    ``heads[i]`` (None: all of them). ``uncut`` are layers without attention (recurrent, convolutional): no cut reaches
    them, what they carry from token to token still arrives, and an effect is a lower bound.
    """

    moved: Float[Tensor, "cut row"]
    whole: Float[Tensor, " row"]
    edges: tuple[Edge, ...]
    layers: tuple[tuple[int, ...], ...]
    heads: tuple[int | None, ...]
    uncut: tuple[int, ...] = ()

    @property
    def table(self) -> pd.DataFrame:
        """Tidy table with columns first_layer, last_layer, (by head) head, row, whole, moved."""
        by_head = any(head is not None for head in self.heads)
        return pd.DataFrame(
            {
                "first_layer": layers[0],
                "last_layer": layers[-1],
                **({"head": head} if by_head else {}),
                "row": row,
                "whole": float(self.whole[row]),
                "moved": float(self.moved[i, row]),
            }
            for i, (layers, head) in enumerate(zip(self.layers, self.heads, strict=True))
            for row in range(len(self.whole))
        )

    def plot(self, title: str = "") -> "Figure":
        """The mean effect by layer and head, or by window of layers; of a single cut, the effect by prompt."""
        from interp.figures.effects import knockout_figure

        edges = ", ".join(" → ".join(str(getattr(end, "__name__", end)) for end in edge) for edge in self.edges)
        by_head = self.heads[0] is not None
        return knockout_figure(self.moved.numpy(), self.layers, edges=edges, by_head=by_head, title=title)


def knockout_effect(
    vlm: "VLM",
    prompts: "Prompt | Sequence[Prompt]",
    edges: Sequence[Edge],
    layers: Sequence[int] | None = None,
    *,
    metric: "Metric | None" = None,
    batch_size: int | None = None,
) -> KnockoutEffects:
    """The effect of cutting ``edges`` in ``layers`` (default: all) at once: ``moved[0]``, for each prompt.

    ``metric``, a function of the first answer token's logits, takes the margin's place. ``batch_size`` is the most
    prompts at once, None for the rule of ``vlm.batches``.

    Raises:
        UserError: no prompts, no layers, or as ``knockout``.
    """
    return _effects(vlm, prompts, [Cut(edges, chosen_layers(vlm, layers))], metric, batch_size)


def knockout_by_window(
    vlm: "VLM",
    prompts: "Prompt | Sequence[Prompt]",
    edges: Sequence[Edge],
    *,
    width: int,
    metric: "Metric | None" = None,
    batch_size: int | None = None,
) -> KnockoutEffects:
    """The effect of cutting ``edges`` in each of ``windows(vlm, width)`` separately.

    Layers outside a window can carry the same information, so narrow windows give a lower bound, while wide ones
    localise less precisely (Geva et al. 2023 use 9 of 48 layers). Costs windows + 1 forwards per batch.

    Raises:
        UserError: as ``knockout_effect`` and ``windows``.
    """
    return _effects(vlm, prompts, [Cut(edges, window) for window in windows(vlm, width)], metric, batch_size)


def knockout_by_head(
    vlm: "VLM",
    prompts: "Prompt | Sequence[Prompt]",
    edges: Sequence[Edge],
    *,
    layers: Sequence[int] | None = None,
    metric: "Metric | None" = None,
    batch_size: int | None = None,
) -> KnockoutEffects:
    """The effect of cutting ``edges`` in one head at a time of ``layers`` (default: all).

    Other heads can carry the same information, so each effect is a lower bound. Costs layers · heads + 1 forwards per
    batch.

    Raises:
        UserError: as ``knockout_effect``.
    """
    cuts = [
        Cut(edges, (layer,), head)
        for layer in chosen_layers(vlm, layers)
        for head in range(vlm.module_map.heads(layer))
    ]
    return _effects(vlm, prompts, cuts, metric, batch_size)


def windows(vlm: "VLM", width: int, stride: int = 1) -> list[tuple[int, ...]]:
    """Runs of ``width`` consecutive layers among those with self-attention, one beginning every ``stride`` layers.

    Raises:
        UserError: a width below 1 or above the number of such layers, or a stride below 1.
    """
    layers = tuple(vlm.module_map.attentions(vlm.model))
    if not 1 <= width <= len(layers):
        raise UserError(
            f"windows of {width} layers in {vlm.name}; it has {len(layers)} with self-attention; choose 1 to "
            f"{len(layers)}"
        )
    if stride < 1:
        raise UserError(f"windows every {stride} layers; must be at least 1")
    return [layers[first : first + width] for first in range(0, len(layers) - width + 1, stride)]


class Cut(NamedTuple):
    """Edges that are cut together, the layers where, and the head that loses them (None: all)."""

    edges: Sequence[Edge]
    layers: Sequence[int] | None = None
    head: int | None = None


def _effects(
    vlm: "VLM",
    prompts: "Prompt | Sequence[Prompt]",
    cuts: Sequence[Cut],
    metric: "Metric | None",
    batch_size: int | None,
) -> KnockoutEffects:
    """The effect of each of ``cuts``, which are of the same edges."""
    prompts = listed(prompts)
    if not cuts or not cuts[0].layers:
        raise UserError("layers=[]; edges are cut in at least one; leave layers out for all of them")
    edges = tuple(cuts[0].edges)
    _check(vlm, edges)

    def margins(places: list[int]) -> Float[Tensor, "row one_and_cuts"]:
        batch = [prompts[place] for place in places]
        return cut_scores(vlm, batch, vlm.encode(batch), cuts, metric=metric)

    full, *cut = vlm.batches.measured(prompts, margins, batch_size=batch_size).unbind(1)
    layers = tuple(tuple(one.layers or ()) for one in cuts)
    uncut = tuple(layer for layer, block in vlm.module_map.blocks.items() if not block.attention)
    return KnockoutEffects(torch.stack(cut) - full, full, edges, layers, tuple(one.head for one in cuts), uncut)


def with_openings(edge: Edge) -> list[Edge]:
    """Return the edges to cut for ``edge``: one to the verdict goes to the tokens that are forced behind it too."""
    return [edge, (edge[0], "generated")] if edge[1] == VERDICT else [edge]


def cut_scores(
    vlm: "VLM",
    prompts: "Sequence[Prompt]",
    encoded: Mapping[str, Any],
    cuts: Sequence[Cut],
    *,
    metric: "Metric | None" = None,
) -> Float[Tensor, "row one_and_cuts"]:
    """Return the margins of one encoded batch as it is, and under each cut.

    Raises:
        UserError: as ``knockout``.
    """
    segments = segment(vlm, prompts, encoded)
    margins = [vlm.score(prompts, encoded=encoded, metric=metric)]
    for cut in cuts:
        heads = None if cut.head is None else [cut.head]
        with knockout(vlm, cut.edges, layers=cut.layers, heads=heads, segments=segments):
            margins.append(vlm.score(prompts, encoded=encoded, metric=metric))
    return torch.stack(margins, dim=1)


def _check(vlm: "VLM", edges: Sequence[Edge]) -> None:
    if not edges:
        raise UserError("no edges to cut; a knockout needs at least one; give pairs like ('image', 'verdict')")
    names = [end for edge in edges for end in edge if isinstance(end, str)]
    unknown = [name for name in names if name not in ENDS and not PART.fullmatch(name)]
    if unknown:
        raise UserError(f"no segment '{unknown[0]}' to cut an edge at; known: {', '.join(ENDS)}; choose among these")
    if any(name.startswith("image") for name in names):
        vlm.module_map.require_image_tokens(vlm.name)


class _Cutter(Follower):
    """What one ``knockout`` does at each attention call."""

    in_pauses = True

    def __init__(self, vlm: "VLM", edges: Sequence[Edge], layers: Sequence[int], heads: Sequence[int] | None) -> None:
        super().__init__(vlm)
        self.edges, self.layers, self.heads = tuple(edges), frozenset(layers), heads

    def edit(self, call: AttentionCall) -> AttentionCall:
        """The call without the edges."""
        if call.layer not in self.layers:
            return call
        forward = self.current("a knockout", columns=call.query.shape[2])
        keys, device = call.key.shape[2], call.key.device

        def cut() -> Bool[Tensor, "row head query key"] | None:
            edges = _cut(forward, self.edges, keys)
            if self.heads is not None:
                edges = edges & torch.isin(torch.arange(call.query.shape[1]), torch.tensor(self.heads))[:, None, None]
            # A step without any of the queries keeps its mask.
            return to_device(edges, device) if bool(edges.any()) else None

        edges = forward.once((keys, device), cut)
        return call if edges is None else call.without(edges)  # every token keeps the edge to itself


def _cut(forward: Forward, edges: Sequence[Edge], keys: int) -> Bool[Tensor, "row 1 query key"]:
    """True at the edges to cut. Keys are the newest columns; the cache of a sliding window drops older ones."""
    segments, total = forward.batch.segments, forward.total
    first = total - keys
    cut = torch.zeros(len(segments.rows), total - forward.start, keys, dtype=torch.bool)
    for source, target in edges:
        seen = _at(segments, source, total)[:, first:]
        sees = _at(segments, target, total)[:, forward.start :]
        cut |= sees[:, :, None] & seen[:, None, :]
    columns = torch.arange(total)
    cut &= columns[forward.start :, None] != columns[None, first:]  # never cut a token's edge to itself
    return cut[:, None]


def _at(segments: Segments, end: End, total: int) -> Bool[Tensor, "row column"]:
    """True at the columns of one end of an edge, of ``total``."""
    if not isinstance(end, str):
        return segments.found(end, total)
    if end == VERDICT:
        return (torch.arange(total) == segments.width - 1).expand(len(segments.rows), -1)
    if PART.fullmatch(end):
        for row in segments.rows:
            row.columns(end)  # raises where a cut would cut nothing
    return segments.columns_of(end, total)
