"""Records where the language model's attention goes, during generation or a single forward.

*Segment mass* is the exact share of a query's attention on each segment, by layer and head. Attention is linear in V,
so calling the same kernel again with one-hot segment indicators as values gives it for all queries in O(N) memory. For
a few queries the full attention rows are computed in float32 instead; *maps* are such rows.

Queries are numbered by *step*: 0 is the verdict (the last token of the prompt, from which the first answer token is
predicted), 1, 2, ... are the generated tokens as they are fed back, −1, −2, ... count backwards through the prompt.
Prompts are left-padded, so a step is one column of the batch. Layers are decoder layers, from 0.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.attention.tables import AttentionMap, Masses, mass_table
from interp.device_copies import to_device, to_host
from interp.errors import UserError
from interp.hooks.attention import AttentionCall, chosen_layers, intercept
from interp.hooks.forward import Follower, Forward, Pass, follow, is_paused
from interp.segments import RowSegments, Segments

if TYPE_CHECKING:
    from interp.vlm import VLM

FEW = 16  # up to this many queries are computed as float32 rows, in half-precision models too
HELD = 2**28  # bytes of keys that wait for the rows of several layers at once; without a cache they are held for this


class Queries(Enum):
    """Which queries to record; a sequence of steps can be given instead."""

    VERDICT = "verdict"
    GENERATED = "generated"  # the verdict and every generated token
    ALL = "all"  # these and the whole prompt


Steps = Queries | Sequence[int]


@dataclass
class Record:
    """What ``record_attention`` has recorded so far. Rows are numbered across batches, in the order they ran."""

    pieces: list[Masses] = field(default_factory=list)
    maps: list[AttentionMap] = field(default_factory=list)
    rows: list[RowSegments] = field(default_factory=list)

    @property
    def masses(self) -> pd.DataFrame:
        """Tidy table: row, step, query (column in the batch), layer, head, segment, tokens (in the segment), mass.

        Rebuilt at each access. ``tokens`` are counted at the time of the query.
        """
        return mass_table(self.pieces)


@contextmanager
def record_attention(
    vlm: "VLM",
    *,
    queries: Steps = Queries.GENERATED,
    maps: Steps = (),
    layers: Sequence[int] | None = None,
    segments: Segments | None = None,
) -> Iterator[Record]:
    """Records every forward of ``vlm`` while open: ``vlm.generate`` (greedy, sampled, cached, batched), ``vlm.score``.

    ``queries`` are those whose segment masses are recorded, ``maps`` those whose full rows are kept; ``layers``
    defaults to all. ``segments`` belong to inputs encoded before the block (``interp.segments.segment``). Logits are
    computed by sdpa. The model's own attention implementation is restored when the block ends, also on an exception.

    Raises:
        UserError: an unknown layer, a step before the prompt, inputs encoded before the block without ``segments``, a
            static cache, or a model that does not use transformers' attention interface.
    """
    vlm.require("record")
    recorder = _Recorder(vlm, queries, maps, chosen_layers(vlm, layers))
    with follow(recorder, segments), intercept(vlm, observe=recorder.observe):
        yield recorder.record


@dataclass
class _Capture:
    """Which columns of one forward to record, and what its layers have yielded so far."""

    forward: Forward
    logged: list[int]
    mapped: list[int]
    masses: dict[int, Tensor] = field(default_factory=dict)
    rows: dict[int, Tensor] = field(default_factory=dict)
    biases: dict[int, tuple[Tensor | None, Any, Tensor | None]] = field(default_factory=dict)  # by their first query
    waiting: list[tuple[AttentionCall, Tensor | None]] = field(default_factory=list)  # of few queries; with their bias
    held: int = 0  # bytes of their keys

    def places(self, device: torch.device, *, mapped: bool) -> Int[Tensor, " query"]:
        """Return the indices of the columns to map or to log among the forward's queries."""
        columns = self.mapped if mapped else self.logged
        return self.forward.once(
            (mapped, device), lambda: to_device(torch.tensor(columns) - self.forward.start, device)
        )

    def rows_of(self, call: AttentionCall, *, mapped: bool) -> Iterator[Float[Tensor, "row head query key"]]:
        """Yield full float32 rows of the columns to map or to log, ``FEW`` queries at a time."""
        columns = self.mapped if mapped else self.logged
        if not _consecutive(call, columns):
            for places in self.places(call.key.device, mapped=mapped).split(FEW):
                yield call.select(places).rows()
            return
        first = columns[0] - self.forward.start
        for start in range(first, first + len(columns), FEW):
            where = slice(start, min(start + FEW, first + len(columns)))
            yield call.rows_at(where, self.bias(call, where))

    def bias(self, call: AttentionCall, where: slice) -> Float[Tensor, "#row #head query key"] | None:
        """Return what a layer's mask adds to the queries ``where``, made once for layers that share it."""
        keys = call.key.shape[2], call.key.device
        earlier = self.biases.get(where.start)
        if earlier is None or earlier[0] is not call.mask or earlier[1] != keys:
            earlier = self.biases[where.start] = call.mask, keys, call.bias(where)
        return earlier[2]

    def put_off(self, call: AttentionCall) -> None:
        """Keep a layer's logged queries, so that the masses of several layers are worked out at once.

        Each kernel that the host starts takes some microseconds, and a layer's rows took a dozen.
        """
        first = self.logged[0] - self.forward.start
        where = slice(first, first + len(self.logged))
        bias = self.bias(call, where)
        saved = replace(call, query=call.query[:, :, where].clone(), value=call.key, mask=None)  # values are not held
        self.waiting.append((saved, bias))
        self.held += call.key.nbytes
        if self.held > HELD:
            self.catch_up()

    def catch_up(self) -> None:
        """Compute the masses of the layers that wait; layers with one shape and one mask together."""
        alike: dict[Any, list[AttentionCall]] = {}
        for call, bias in self.waiting:
            kind = (call.key.shape, call.key.device, call.key.dtype, call.scaling, call.softcap, id(bias))
            alike.setdefault(kind, []).append(call)
        biases = {id(bias): bias for _, bias in self.waiting}
        self.waiting.clear()
        self.held = 0
        for kind, calls in alike.items():
            bias, count, rows = biases[kind[-1]], len(calls), len(calls[0].key)
            keys = torch.cat([call.key for call in calls])
            joined = replace(calls[0], query=torch.cat([call.query for call in calls]), key=keys, value=keys)
            if bias is not None and len(bias) > 1:
                bias = bias.repeat(count, 1, 1, 1)
            result = joined.rows_at(slice(None), bias)  # (layer row) head query key
            masses = result.unflatten(0, (count, rows)).flatten(2, 3) @ self.indicator(calls[0], torch.float32)
            parts = masses.unflatten(2, result.shape[1:3])
            self.masses.update({call.layer: part for call, part in zip(calls, parts, strict=True)})

    def indicator(self, call: AttentionCall, dtype: torch.dtype) -> Float[Tensor, "row key segment"]:
        """Return segments of a layer's keys, which end with the newest column."""
        start, device = self.forward.total - call.key.shape[2], call.key.device
        segments = self.forward.batch.segments
        return self.forward.once(
            (start, dtype, device), lambda: to_device(segments.indicator(start, self.forward.total).to(dtype), device)
        )


class _Recorder(Follower):
    """What one ``record_attention`` does around each forward and at each attention call."""

    def __init__(self, vlm: "VLM", queries: Steps, maps: Steps, layers: Sequence[int]) -> None:
        super().__init__(vlm)
        self.logs, self.maps = _wanted(queries), _wanted(maps)
        self.first = min([0, *(step for steps in (queries, maps) if not isinstance(steps, Queries) for step in steps)])
        self.layers = tuple(layers)
        self.record = Record()

    def begin(self, forward: Forward) -> None:
        """Select the columns to record."""
        batch = forward.batch
        if forward.new == 0:
            self.record.rows.extend(batch.segments.rows)
            if self.first <= -batch.segments.width:
                raise UserError(
                    f"step {self.first} lies before a prompt of {batch.segments.width} columns; steps count from the "
                    f"verdict, which is 0, back to {1 - batch.segments.width}; leave it out"
                )
        new = range(forward.new, forward.total)
        logged = [column for column in new if self.logs(batch.step(column))]
        self.capture = _Capture(forward, logged, [column for column in new if self.maps(batch.step(column))])

    def observe(self, call: AttentionCall) -> None:
        """Compute the masses and rows of the selected queries of an attention call."""
        if is_paused() or call.layer not in self.layers:
            return
        self.current("the recorder", columns=call.query.shape[2])
        if self.capture.mapped:
            self.capture.rows[call.layer] = _whole_rows(call, self.capture)
        if self.capture.logged and len(self.capture.logged) <= FEW and _consecutive(call, self.capture.logged):
            self.capture.put_off(call)
        elif self.capture.logged:
            self.capture.masses[call.layer] = _mass(call, self.capture)

    def end(self, forward: Forward) -> None:
        """Move the layers' results to the CPU, with one wait for the device."""
        capture, batch = self.capture, forward.batch
        del self.capture  # and what it holds on the device
        capture.catch_up()
        wanted = [
            found for found, columns in ((capture.masses, capture.logged), (capture.rows, capture.mapped)) if columns
        ]
        if not wanted:
            return
        fetched = to_host([*map(self._stacked, wanted), *batch.unread()])
        batch.read(fetched[len(wanted) :])
        if capture.logged:
            self.record.pieces.append(
                Masses(
                    mass=fetched[0].float(),  # here, so that half as much is fetched of models in half precision
                    layers=self.layers,
                    columns=tuple(capture.logged),
                    width=batch.segments.width,
                    first_row=batch.first_row,
                    tokens=batch.segments.indicator(0, forward.total).sum(1),
                    names=batch.segments.names,
                    real=batch.real(capture.logged),
                    imageless=self.vlm.module_map.cross_attended,
                )
            )
        if capture.mapped:
            self.record.maps.extend(_maps(fetched[len(wanted) - 1], self.layers, capture.mapped, batch))

    def _stacked(self, result: dict[int, Tensor]) -> Float[Tensor, "layer row head query _"]:
        missing = [layer for layer in self.layers if layer not in result]
        if missing:
            raise UserError(
                f"layer {missing[0]} of {self.vlm.name} attends without transformers' attention interface; recording "
                "needs that; load it with attn_implementation='eager' and pass output_attentions=True"
            )
        device = result[self.layers[0]].device  # layers may be on several devices
        return torch.stack([result[layer].to(device) for layer in self.layers])


def _wanted(queries: Steps) -> Callable[[int], bool]:
    """Return a predicate on steps: whether to record."""
    if queries is Queries.ALL:
        return lambda step: True
    if queries is Queries.GENERATED:
        return lambda step: step >= 0
    steps = {0} if isinstance(queries, Queries) else set(queries)
    return lambda step: step in steps


def _consecutive(call: AttentionCall, columns: list[int]) -> bool:
    """Return whether the rows of these queries can be read as one slice, with nothing raised."""
    return not call.raised and columns[-1] - columns[0] < len(columns)


def _whole_rows(call: AttentionCall, sight: _Capture) -> Float[Tensor, "row head query column"]:
    """Full float32 rows; columns that a sliding window has dropped get 0."""
    rows = torch.cat(list(sight.rows_of(call, mapped=True)), dim=2)
    return torch.nn.functional.pad(rows, (sight.forward.total - call.key.shape[2], 0))


def _mass(call: AttentionCall, sight: _Capture) -> Float[Tensor, "row head query segment"]:
    if len(sight.logged) <= FEW:
        (rows,) = sight.rows_of(call, mapped=False)
        return (rows.flatten(1, 2) @ sight.indicator(call, torch.float32)).unflatten(1, rows.shape[1:3])
    places = sight.places(call.key.device, mapped=False)
    batch = call if len(places) == call.query.shape[2] else call.select(places)
    indicator, width = sight.indicator(call, call.value.dtype), call.value.shape[3]
    values = sight.forward.once((id(indicator), width), lambda: _as_values(indicator, width))
    return _kernel_mass(batch, values, indicator.shape[2])


def _as_values(indicator: Float[Tensor, "row key segment"], width: int) -> list[Float[Tensor, "row 1 key {width}"]]:
    """Return indicators in place of values, padded to a head's width; one tensor where a head is wider than the
    segments.
    """
    parts = indicator.split(width, dim=2)
    return [torch.nn.functional.pad(some, (0, width - some.shape[2]))[:, None] for some in parts]


def _kernel_mass(
    call: AttentionCall, values: Sequence[Float[Tensor, "row 1 key width"]], segments: int
) -> Float[Tensor, "row head query segment"]:
    """Call the kernel once more with indicators of ``segments`` segments as values; in its dtype."""
    width = values[0].shape[3]
    parts = [call.weighted(some)[..., : segments - width * place] for place, some in enumerate(values)]
    return torch.cat(parts, dim=3).transpose(1, 2)


def _maps(
    result: Float[Tensor, "layer row head query column"], layers: tuple[int, ...], columns: list[int], batch: Pass
) -> Iterator[AttentionMap]:
    """Return one map for each query that is neither padding nor past the end of its answer."""
    for row, i in batch.real(columns).nonzero().tolist():
        yield AttentionMap(
            row=batch.first_row + row,
            step=batch.step(columns[i]),
            query=columns[i],
            layers=layers,
            weights=result[:, row, :, i].clone(),
        )
