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
from interp.prompt import listed
from interp.segments import CODES, IMAGE, PART, Finder, Segments, segment

if TYPE_CHECKING:
    from interp.generation import Metric
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
    segments: Segments | None = None,
) -> Iterator[None]:
    """Cut ``edges`` in ``layers`` (default: all) of every forward of ``vlm`` while open, cached decoding included.

    ``segments`` belong to inputs encoded before the block (``interp.segments.segment``). Blocks nest, also with
    ``record_attention``, which then records the remaining attention. The model is restored when the block ends, also on
    an exception.

    Raises:
        UserError: no edges, an unknown segment or layer, image tokens of a model that has none, inputs encoded
            before the block without ``segments``, or a model that does not use transformers' attention interface.
    """
    vlm.require("knockout")
    _check(vlm, edges)
    cutter = _Cutter(vlm, edges, chosen_layers(vlm, layers))
    with follow(cutter, segments), intercept(vlm, edit=cutter.edit):
        yield


class Cut(NamedTuple):
    """Edges that are cut together, and the layers where (None: all)."""

    edges: Sequence[Edge]
    layers: Sequence[int] | None = None


@dataclass(frozen=True)
class KnockoutEffects:
    """The effect of each of ``cuts`` on each prompt, in logits; float32, on the CPU.

    ``moved`` is the margin with the edges cut minus ``unedited``, the margin without. ``uncut`` are layers without
    attention (recurrent, convolutional): no cut reaches them, what they carry from token to token still arrives, and an
    effect is a lower bound.
    """

    moved: Float[Tensor, "cut row"]
    unedited: Float[Tensor, " row"]
    cuts: tuple[Cut, ...]
    uncut: tuple[int, ...] = ()

    @property
    def table(self) -> pd.DataFrame:
        """Tidy table with columns first_layer, last_layer, row, unedited, moved."""
        return pd.DataFrame(
            {
                "first_layer": layers[0],
                "last_layer": layers[-1],
                "row": row,
                "unedited": float(self.unedited[row]),
                "moved": float(self.moved[i, row]),
            }
            for i, (_, layers) in enumerate(self.cuts)
            if layers
            for row in range(len(self.unedited))
        )


def knockout_effect(
    vlm: "VLM",
    prompts: "Prompt | Sequence[Prompt]",
    edges: Sequence[Edge],
    layers: Sequence[int] | None = None,
    *,
    width: int | None = None,
    metric: "Metric | None" = None,
    batch_size: int | None = None,
) -> KnockoutEffects:
    """Return the effect of cutting ``edges`` in ``layers`` (default: all) at once: ``moved[0]``, for each prompt.

    With ``width`` they are cut in each run of so many of the layers. Other layers can carry the same information, so
    such effects are lower bounds, while wide windows localise less precisely (Geva et al. 2023 use 9 of 48 layers).
    Costs a forward for each cut and one more per batch. ``metric``, a function of the first answer token's logits,
    takes the margin's place. ``batch_size`` is the most prompts at once, None for the rule of ``vlm.batches``.

    Raises:
        UserError: no prompts, no layers, a width that does not fit, or as ``knockout``.
    """
    prompts, chosen = listed(prompts), tuple(chosen_layers(vlm, layers))
    if not chosen:
        raise UserError("layers=[]; edges are cut in at least one; leave layers out for all of them")
    _check(vlm, edges)
    cuts = tuple(Cut(edges, window) for window in windows(chosen, len(chosen) if width is None else width))

    def margins(indices: list[int]) -> Float[Tensor, "row one_and_cuts"]:
        batch = [prompts[index] for index in indices]
        return cut_scores(vlm, batch, vlm.encode(batch), cuts, metric=metric)

    full, *cut = vlm.batches.measured(prompts, margins, batch_size=batch_size).unbind(1)
    uncut = tuple(layer for layer, block in vlm.module_map.blocks.items() if not block.attention)
    return KnockoutEffects(torch.stack(cut) - full, full, cuts, uncut)


def windows(layers: Sequence[int], width: int, stride: int = 1) -> list[tuple[int, ...]]:
    """Return runs of ``width`` consecutive members of ``layers``, one beginning every ``stride`` layers.

    Raises:
        UserError: a width below 1 or above the number of layers, or a stride below 1.
    """
    if not 1 <= width <= len(layers) or stride < 1:
        raise UserError(
            f"windows of width={width} with stride={stride} among {len(layers)} layers with self-attention; choose a "
            f"width of 1 to {len(layers)} and a stride of 1 or more"
        )
    return [tuple(layers[first : first + width]) for first in range(0, len(layers) - width + 1, stride)]


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
        with knockout(vlm, cut.edges, layers=cut.layers, segments=segments):
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

    def __init__(self, vlm: "VLM", edges: Sequence[Edge], layers: Sequence[int]) -> None:
        super().__init__(vlm)
        self.edges, self.layers = tuple(edges), frozenset(layers)

    def edit(self, call: AttentionCall) -> AttentionCall:
        """Return the call without the edges."""
        if call.layer not in self.layers:
            return call
        forward = self.current("a knockout", columns=call.query.shape[2])
        keys, device = call.key.shape[2], call.key.device

        def cut() -> Bool[Tensor, "row 1 query key"] | None:
            edges = _cut(forward, self.edges, keys)
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
        return segments.search(end, total)
    if end == VERDICT:
        return (torch.arange(total) == segments.width - 1).expand(len(segments.rows), -1)
    if PART.fullmatch(end):
        for row in segments.rows:
            row.columns(end)  # raises where a cut would cut nothing
    return segments.columns_of(end, total)
