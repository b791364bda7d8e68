"""The road of every loop over prompts: batches by length, split where memory runs out, and kept until all is done.

    with road(BatchRule(rows=32, tokens=16384), on_lowered=say), resumable(folder, of="these settings"):
        margins = scores(vlm, prompts)
        states = measured(vlm, prompts, lambda some: read([prompts[index] for index in some]))

The tools of this package and the mitigations that learn form their batches here, by the road that is open. Without one
they take the defaults of ``BatchRule``, and warn where memory runs out. Imports torch only when a model is called.
"""

import gc
import hashlib
import json
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from interp.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from interp.first_scores import Metric
    from interp.generation import Generation
    from interp.prompt import Prompt
    from interp.prompt_length import Lengths

Thing = TypeVar("Thing")
Done = TypeVar("Done")


@dataclass(frozen=True)
class BatchRule:
    """How prompts are put into batches: at most ``rows`` of them, and ``tokens`` tokens with the padding.

    Without ``tokens`` (None) they stay in order, and only ``rows`` counts.
    """

    rows: int = 32
    tokens: int | None = 16384

    def form(self, lengths: Sequence[int] | None, pictured: Sequence[bool]) -> list[list[int]]:
        """Batches of places in ``pictured`` (has the prompt a picture?), by ``lengths`` in tokens; None: in order.

        Longest first, so that a batch too large for memory fails at once. A prompt longer than ``tokens`` gets a batch
        of its own; prompts with and without a picture are never mixed. Places ascend within a batch, and among equal
        lengths. Depends on the arguments only: a continued or shared run forms the same batches.
        """
        everything = range(len(pictured))
        if lengths is None or self.tokens is None:
            return [list(everything[start : start + self.rows]) for start in range(0, len(everything), self.rows)]
        formed: list[list[int]] = []
        for place in sorted(everything, key=lambda place: (not pictured[place], -lengths[place], place)):
            latest = formed[-1] if formed else []
            if (
                not latest
                or len(latest) == self.rows
                or (len(latest) + 1) * lengths[latest[0]] > self.tokens
                or pictured[latest[0]] != pictured[place]
            ):
                latest = []
                formed.append(latest)
            latest.append(place)
        return [sorted(batch) for batch in formed]


@dataclass
class MemoryLimit:
    """The number of prompts that fit into memory at once; halved whenever memory runs out, never raised again.

    A smaller batch changes results as another ``batch_size`` does: in float32 margins agree to 1e-5 and verdicts are
    equal, but not bit by bit. Where memory never runs out, nothing changes. ``on_lowered`` is told each new limit.
    """

    rows: int
    on_lowered: Callable[[int], None]

    def parts(self, batch: Sequence[Thing], do: Callable[[Sequence[Thing]], Done], *, name: Any = str) -> list[Done]:
        """The results of ``do`` for as many parts of ``batch`` as memory requires, in order.

        Raises:
            UserError: one alone does not fit; ``name`` says which.
        """
        done: list[Done] = []
        rest = batch
        while rest:
            part = rest[: self.rows]
            found = _unless_out_of_memory(partial(do, part))
            if found:
                done += found
                rest = rest[len(part) :]
            elif len(part) == 1:
                raise _too_large(f"a single prompt ({name(part[0])!r})")
            else:
                self.lower(len(part) // 2)
        return done

    def ask(self, prompts: "Sequence[Prompt]", ask: "Callable[[Sequence[Prompt]], Generation]") -> "Generation":
        """The answers to all ``prompts``, in as many parts as memory requires.

        Raises:
            UserError: a single prompt does not fit.
        """
        return merged(self.parts(prompts, ask, name=_name))

    def lower(self, rows: int) -> None:
        """Notes that no more than ``rows`` fit, and frees what can be freed."""
        self.rows = rows
        _free()
        self.on_lowered(rows)


@dataclass
class _Kept:
    """Where the loops of one piece of work keep what they have measured; ``loops`` counts them."""

    folder: Path
    loops: int = 0


@dataclass
class Road:
    """How the loops inside ``road`` form their batches, and what is known of memory."""

    rule: BatchRule
    limit: MemoryLimit
    kept: _Kept | None = None
    _lengths: "Lengths | None" = field(default=None, repr=False)

    def form(self, vlm: Any, prompts: "Sequence[Prompt]", batch_size: int | None = None) -> list[list[int]]:
        """The batches, as places in ``prompts``; ``batch_size`` is the most rows where it is below the rule's."""
        rule = self.rule if batch_size is None else replace(self.rule, rows=min(batch_size, self.rule.rows))
        pictured = [prompt.image is not None for prompt in prompts]
        if rule.tokens is None or getattr(vlm, "layout", None) is None:  # a model behind an API has no tokens to count
            return rule.form(None, pictured)
        if self._lengths is None or self._lengths.vlm is not vlm:
            from interp.prompt_length import Lengths

            self._lengths = Lengths(vlm)
        return rule.form(self._lengths.of_prompts(prompts), pictured)


_OPEN: ContextVar[Road | None] = ContextVar("road", default=None)


def open_road(batch_size: int | None = None) -> Road:
    """The road that is open, or a new one by the defaults, with at most ``batch_size`` rows."""
    found = _OPEN.get()
    if found is not None:
        return found
    rule = BatchRule() if batch_size is None else BatchRule(rows=batch_size)
    return Road(rule, MemoryLimit(rule.rows, _warn))


@contextmanager
def road(rule: BatchRule, *, on_lowered: Callable[[int], None], rows: int | None = None) -> Iterator[Road]:
    """While open, loops over prompts form batches by ``rule``. ``rows`` is what is known to fit, if that is less."""
    limit = MemoryLimit(rule.rows if rows is None else min(rows, rule.rows), on_lowered)
    opened = Road(rule, limit)
    token = _OPEN.set(opened)
    try:
        yield opened
    finally:
        _OPEN.reset(token)


@contextmanager
def resumable(folder: Path, *, of: str) -> Iterator[None]:
    """While open, every loop by ``measured`` keeps its batches in ``folder``, and takes those that are there.

    What is kept belongs to ``of`` (model, settings), to the number of the loop within the block, and to its prompts, so
    the block must do the same in the same order when it is run again. The folder is removed when the block ends well.
    It is a help, not a result: where it cannot be written, everything is measured again.
    """
    before = open_road()
    part = folder / hashlib.sha256(of.encode()).hexdigest()[:12]
    token = _OPEN.set(replace(before, kept=_Kept(part)))
    try:
        yield
    finally:
        _OPEN.reset(token)
    shutil.rmtree(folder, ignore_errors=True)


def measured(
    vlm: Any,
    prompts: "Sequence[Prompt]",
    measure: "Callable[[list[int]], Tensor]",
    *,
    batch_size: int | None = None,
    of: str = "",
) -> "Tensor":
    """What ``measure`` finds for places in ``prompts``: a tensor on the CPU with a row for each, in their order.

    Args:
        measure: is called with some places at a time, ascending, and again with fewer where memory runs out.
        batch_size: the most prompts at once, None for the rule's.
        of: what is measured; needed where a block of ``resumable`` may begin with another loop over the same prompts.

    Raises:
        UserError: no prompts, batches of none, or a single prompt does not fit into memory.
    """
    import torch

    opened = open_road(batch_size)
    if not prompts or (batch_size is not None and batch_size < 1):
        raise UserError(
            f"{len(prompts)} prompts in batches of {opened.rule.rows if batch_size is None else batch_size}; a "
            "measurement needs at least one of each; check the limit"
        )
    formed = opened.form(vlm, prompts, batch_size)
    place = _place_of_loop(opened, prompts, formed, of)
    rows: dict[int, Tensor] = {}
    for batch in formed:
        kept = None if place is None else place / f"{batch[0]}-{len(batch)}.safetensors"
        found = _read(kept)
        if found is None:
            found = torch.cat(
                opened.limit.parts(batch, lambda part: measure(list(part)), name=lambda at: _name(prompts[at]))
            )
            _keep(kept, found)
        rows.update(zip(batch, found, strict=True))
    return torch.stack([rows[index] for index in range(len(prompts))])


def gathered(
    vlm: Any,
    prompts: "Sequence[Prompt]",
    ask: "Callable[[list[Prompt]], Sequence[Thing]]",
    *,
    batch_size: int | None = None,
) -> list[Thing]:
    """What ``ask`` says of some prompts at a time, one thing for each, in their order. Nothing is kept (``resumable``).

    Raises:
        UserError: a single prompt does not fit into memory.
    """
    opened = open_road(batch_size)
    found: dict[int, Thing] = {}
    for batch in opened.form(vlm, prompts, batch_size):
        parts = opened.limit.parts([prompts[index] for index in batch], lambda part: ask(list(part)), name=_name)
        found.update(zip(batch, (one for part in parts for one in part), strict=True))
    return [found[index] for index in range(len(prompts))]


def scores(
    vlm: Any, prompts: "Sequence[Prompt]", *, metric: "Metric | None" = None, batch_size: int | None = None
) -> "Tensor":
    """The margin, or ``metric``, of every prompt (``VLM.score``), float32 on the CPU.

    Raises:
        UserError: as ``measured``.
    """

    def scored(some: list[int]) -> "Tensor":
        return cast("Tensor", vlm.score([prompts[index] for index in some], metric=metric))

    return measured(vlm, prompts, scored, batch_size=batch_size)


def halved(size: int, ask: Callable[[int], Thing]) -> Thing:
    """The result of ``ask`` with ``size`` rows at once; started again with half of it whenever memory runs out.

    For loops that are not ours to split.

    Raises:
        UserError: single rows do not fit.
    """
    limit = open_road(size).limit
    size = min(size, limit.rows)
    while not (found := _unless_out_of_memory(partial(ask, size))):
        if size == 1:
            raise _too_large("a single prompt")
        size //= 2
        limit.lower(size)
    return found[0]


def merged(parts: "Sequence[Generation]") -> "Generation":
    """The parts of a batch as one ``Generation``; counts of skipped work are summed."""
    first = parts[0]
    if len(parts) == 1:
        return first
    return replace(
        first, **{each.name: _joined([getattr(part, each.name) for part in parts]) for each in fields(first)}
    )


def _joined(values: list[Any]) -> Any:
    import torch

    first = values[0]
    if isinstance(first, torch.Tensor):
        return torch.cat(values)
    if isinstance(first, list):
        return [one for value in values for one in value]
    return {key: sum(value[key] for value in values) for key in first} if isinstance(first, dict) else first


def out_of_memory(error: Exception) -> bool:
    """Whether the error means that a device or the machine ran out of memory."""
    import torch
    from accelerate.utils.memory import should_reduce_batch_size

    return isinstance(error, torch.OutOfMemoryError | MemoryError) or should_reduce_batch_size(error)


def _unless_out_of_memory(ask: Callable[[], Thing]) -> list[Thing]:
    """The result, or an empty list where memory ran out.

    On return the error and the frames it held are gone, so their memory can be freed.
    """
    try:
        return [ask()]
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        return []


def _too_large(what: str) -> UserError:
    return UserError(
        f"not enough memory for {what}; take smaller weights (model.dtype=bfloat16), smaller images (the model's pixel "
        "bounds), a smaller model, or spread it over several devices (model.device_map=auto)"
    )


def _free() -> None:
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _warn(rows: int) -> None:
    warnings.warn(f"out of memory; asking {rows} prompts at once from here on", stacklevel=2)


def _name(prompt: "Prompt") -> str:
    return prompt.key or prompt.text


def _place_of_loop(opened: Road, prompts: "Sequence[Prompt]", formed: Sequence[Sequence[int]], of: str) -> Path | None:
    """Where this loop keeps its batches; None where it does not."""
    if opened.kept is None:
        return None
    opened.kept.loops += 1
    described = [[p.key, p.text, p.system, None if p.image is None else p.image.size] for p in prompts]
    digest = hashlib.sha256(json.dumps([described, formed, *filter(None, [of])]).encode()).hexdigest()[:12]
    return opened.kept.folder / f"{opened.kept.loops}-{digest}"


def _read(path: Path | None) -> "Tensor | None":
    """The rows of a batch that was kept; None where there are none, or none that can be read."""
    if path is None or not path.is_file():
        return None
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    with suppress(OSError, SafetensorError, KeyError):
        return load_file(path)["rows"]
    return None


def _keep(path: Path | None, rows: "Tensor") -> None:
    """Writes the rows of a batch whole or not at all."""
    if path is None:
        return
    from safetensors.torch import save

    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.part")
        part.write_bytes(save({"rows": rows.contiguous()}))
        part.replace(path)
