"""``VLM.batches``: batches of prompts by length, halved where memory runs out.

    rule = BatchRule(rows=32, tokens=16384)
    with vlm.batches.by(rule, on_lowered=say):
        margins = vlm.batches.scores(prompts)
        states = vlm.batches.measured(prompts, lambda batch: read([prompts[index] for index in batch]))

The tools of this package and the mitigations that learn form their batches here. A study sets its own rule (``by``);
without one the defaults of ``BatchRule`` hold, and a warning says where memory runs out. Imports torch only when a
model is called.
"""

import gc
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar, cast

from interp.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from interp.generation import Generation, Metric
    from interp.prompt import Prompt

Size = tuple[int, int]
"""Width and height of a picture in pixels."""

Thing = TypeVar("Thing")
Done = TypeVar("Done")


@dataclass(frozen=True)
class BatchRule:
    """How prompts are put into batches: at most ``rows`` of them, and ``tokens`` tokens with the padding.

    Without ``tokens`` (None) they stay in order, and only ``rows`` counts.
    """

    rows: int = 32
    tokens: int | None = 16384

    def form(self, lengths: Sequence[int] | None, pictures: Sequence[int]) -> list[list[int]]:
        """Return batches of places in ``pictures`` (how many a prompt has), by ``lengths`` in tokens; None: in order.

        Longest first, so that a batch too large for memory fails at once. A prompt longer than ``tokens`` gets a batch
        of its own; prompts with other numbers of pictures are never mixed. Places ascend within a batch, and among
        equal lengths. Depends on the arguments only: a continued or shared run forms the same batches.
        """
        everything = range(len(pictures))
        if lengths is None or self.tokens is None:
            return [list(everything[start : start + self.rows]) for start in range(0, len(everything), self.rows)]
        formed: list[list[int]] = []
        for index in sorted(everything, key=lambda index: (-pictures[index], -lengths[index], index)):
            latest = formed[-1] if formed else []
            if (
                not latest
                or len(latest) == self.rows
                or (len(latest) + 1) * lengths[latest[0]] > self.tokens
                or pictures[latest[0]] != pictures[index]
            ):
                latest = []
                formed.append(latest)
            latest.append(index)
        return [sorted(batch) for batch in formed]


DEFAULT = BatchRule()


class Stopped(Exception):
    """Whoever asked for this work wants it no more (``BatchContext.stopping``)."""


@dataclass
class MemoryLimit:
    """The number of prompts that fit into memory at once; halved whenever memory runs out, never raised again.

    A smaller batch changes results as another ``batch_size`` does: in float32 margins agree to 1e-5 and verdicts are
    equal, but not bit by bit. Where memory never runs out, nothing changes. ``on_lowered`` is told each new limit.
    ``give_way`` frees what is only held to save time, and says whether there was anything; then the same is tried
    again.
    """

    rows: int
    on_lowered: Callable[[int], None]
    give_way: Callable[[], bool] = lambda: False

    def parts(
        self, batch: Sequence[Thing], do: Callable[[Sequence[Thing]], Done], *, name: Callable[[Any], str] | None = None
    ) -> list[Done]:
        """Return the results of ``do`` for as many parts of ``batch`` as memory requires, in order.

        Raises:
            UserError: one alone does not fit; ``name`` says which (default: of a prompt).
        """
        done: list[Done] = []
        rest = batch
        while rest:
            part = rest[: self.rows]
            try:
                done.append(do(part))
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory(error):
                    raise
            else:
                rest = rest[len(part) :]
                continue
            # Here the error and the frames that it held are gone, so that their memory can be freed.
            if self.give_way():
                _free()
                continue
            if len(part) == 1:
                raise _too_large(f"a single prompt ({(name or _name)(part[0])!r})")
            self.lower(len(part) // 2)
        return done

    def lower(self, rows: int) -> None:
        """Notes that no more than ``rows`` fit, and frees what can be freed."""
        self.rows = rows
        _free()
        self.on_lowered(rows)


class BatchContext:
    """How loops over the prompts of one model form their batches, and what is known of memory: ``VLM.batches``.

    ``model`` is a VLM, or a model behind an API, which has no tokens to count.
    """

    def __init__(self, model: Any) -> None:
        self._model = weakref.proxy(model)  # which has this object: a circle would hold its weights
        self.rule = DEFAULT
        self.limit = MemoryLimit(sys.maxsize, _warn)
        self.stop: Callable[[], bool] | None = None

    @contextmanager
    def stopping(self, stop: Callable[[], bool]) -> Iterator[None]:
        """While open, ``stop`` is asked before each forward; where it says True, the work ends with ``Stopped``."""
        before, self.stop = self.stop, stop
        try:
            yield
        finally:
            self.stop = before

    def go_on(self) -> None:
        """Called before a forward.

        Raises:
            Stopped: the work is wanted no more.
        """
        if self.stop is not None and self.stop():
            raise Stopped

    @cached_property
    def lengths(self) -> "Lengths | None":
        """The model's counts of tokens; None where there are none to count."""
        if getattr(self._model, "module_map", None) is None:
            return None
        return Lengths(self._model)

    @contextmanager
    def by(
        self,
        rule: BatchRule,
        *,
        on_lowered: Callable[[int], None],
        rows: int | None = None,
        give_way: Callable[[], bool] = lambda: False,
    ) -> "Iterator[BatchContext]":
        """While open, batches are formed by ``rule``. ``rows`` is what is known to fit, if that is less.

        ``on_lowered`` and ``give_way``: see ``MemoryLimit``.
        """
        before = self.rule, self.limit
        self.rule = rule
        self.limit = MemoryLimit(rule.rows if rows is None else min(rows, rule.rows), on_lowered, give_way)
        try:
            yield self
        finally:
            self.rule, self.limit = before

    def follow(self, other: "BatchContext") -> None:
        """Form batches as ``other`` does, by its limit: for a second model between the loops of the first."""
        self.rule, self.limit = other.rule, other.limit

    def form(self, prompts: "Sequence[Prompt]", batch_size: int | None = None) -> list[list[int]]:
        """Return the batches, as places in ``prompts``; ``batch_size`` is the most rows, or a study's rule if that is
        less.
        """
        rows = self.rule.rows if batch_size is None else batch_size
        rule = replace(self.rule, rows=rows if self.rule is DEFAULT else min(rows, self.rule.rows))
        counted = None if rule.tokens is None or self.lengths is None else self.lengths.of_prompts(prompts)
        return rule.form(counted, [len(prompt.images) for prompt in prompts])

    def measured(
        self,
        prompts: "Sequence[Prompt]",
        measure: "Callable[[list[int]], Tensor]",
        *,
        batch_size: int | None = None,
    ) -> "Tensor":
        """Return what ``measure`` gives for places in ``prompts``: a CPU tensor with a row for each, in their order.

        Args:
            measure: is called with some places at a time, ascending, and again with fewer where memory runs out.
            batch_size: the most prompts at once, None for the rule's.

        Raises:
            UserError: no prompts, batches of none, or a single prompt does not fit into memory.
        """
        import torch

        if not prompts or (batch_size is not None and batch_size < 1):
            raise UserError(
                f"{len(prompts)} prompts in batches of {self.rule.rows if batch_size is None else batch_size}; a "
                "measurement needs at least one of each; check the limit"
            )
        rows: dict[int, Tensor] = {}
        for batch in self.form(prompts, batch_size):
            rows.update(zip(batch, torch.cat(self._in_parts(batch, prompts, measure)), strict=True))
        return torch.stack([rows[index] for index in range(len(prompts))])

    def gathered(
        self,
        prompts: "Sequence[Prompt]",
        ask: "Callable[[list[Prompt]], Sequence[Thing]]",
        *,
        batch_size: int | None = None,
    ) -> list[Thing]:
        """Return what ``ask`` says of some prompts at a time, one thing for each, in their order.

        Raises:
            UserError: a single prompt does not fit into memory.
        """
        answers: dict[int, Thing] = {}
        for batch in self.form(prompts, batch_size):
            parts = self._in_parts(batch, prompts, lambda some: ask([prompts[index] for index in some]))
            answers.update(zip(batch, (answer for part in parts for answer in part), strict=True))
        return [answers[index] for index in range(len(prompts))]

    def scores(
        self, prompts: "Sequence[Prompt]", *, metric: "Metric | None" = None, batch_size: int | None = None
    ) -> "Tensor":
        """Return the margin, or ``metric``, of every prompt (``VLM.score``), float32 on the CPU.

        Raises:
            UserError: as ``measured``.
        """

        def scored(batch: list[int]) -> "Tensor":
            return cast("Tensor", self._model.score([prompts[index] for index in batch], metric=metric))

        return self.measured(prompts, scored, batch_size=batch_size)

    def _in_parts(
        self, batch: list[int], prompts: "Sequence[Prompt]", do: "Callable[[list[int]], Done]"
    ) -> "list[Done]":
        """Return the results of ``do`` for as many parts of ``batch``, places in ``prompts``, as memory requires."""
        return self.limit.parts(batch, lambda some: do(list(some)), name=lambda at: _name(prompts[at]))


def merged(parts: "Sequence[Generation]") -> "Generation":
    """Return the parts of a batch as one ``Generation``."""
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
    return [one for value in values for one in value] if isinstance(first, list) else first


def out_of_memory(error: Exception) -> bool:
    """Return whether the error means that a device or the machine ran out of memory."""
    import torch
    from accelerate.utils.memory import should_reduce_batch_size

    return isinstance(error, torch.OutOfMemoryError | MemoryError) or should_reduce_batch_size(error)


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


def _name(prompt: Any) -> str:
    return str(prompt.key or prompt.text)


class Lengths:
    """Prompt lengths for one ``VLM``: tokens of the rendered text, and what a picture of that size adds.

    A blank picture of each size is encoded once, with a question of one character, so the model's own processor says
    how many tokens a picture has. Words that merge with what the processor puts around a picture can make a length
    wrong by a token. Use it to form batches, not to index them. A picture of a size in ``refused`` counts as nothing.
    """

    def __init__(self, vlm: Any) -> None:
        self.vlm = vlm
        self._texts: dict[tuple[Any, ...], int] = {}
        self._pictures: dict[Size, int] = {}
        self.refused: dict[Size, str] = {}  # sizes that the model's processor cannot take, with its reason

    def count(self, prompts: "Sequence[Prompt]", sizes: Sequence[Sequence[Size]]) -> list[int]:
        """Return the length of each prompt, with pictures of these ``sizes`` in place of its own."""
        keys = [_words(prompt) for prompt in prompts]
        self._read({key: prompt for key, prompt in zip(keys, prompts, strict=True) if key not in self._texts})
        for size in dict.fromkeys(size for row in sizes for size in row):
            self._count_picture(size)
        prefixes = [self.vlm.prefix_tokens(prompt) if prompt.answer_prefix else () for prompt in prompts]
        return [
            self._texts[key] + sum(self._pictures[size] for size in row) + len(prefix)
            for key, row, prefix in zip(keys, sizes, prefixes, strict=True)
        ]

    def of_prompts(self, prompts: "Sequence[Prompt]") -> list[int]:
        """Return the length of each prompt, its system text included."""
        return self.count(prompts, [[image.size for image in prompt.images] for prompt in prompts])

    def refusal(self, size: Size) -> str:
        """Return why the model's processor cannot take a picture of this size, "" if it can."""
        self._count_picture(size)
        return self.refused.get(size, "")

    def _count_picture(self, size: Size) -> None:
        from interp.messages import PictureRefused

        if size in self._pictures:
            return
        try:
            self._pictures[size] = self._added(size)
        except PictureRefused as refusal:
            self._pictures[size], self.refused[size] = 0, str(refusal)

    def _read(self, prompts: "Mapping[tuple[Any, ...], Prompt]") -> None:
        """Cache the numbers of text tokens; a placeholder counts as text."""
        if not prompts:
            return
        words = [self.vlm.render(prompt) for prompt in prompts.values()]
        begin = self.vlm.tokenizer.bos_token
        special = not (begin and words[0].startswith(begin))
        ids = self.vlm.tokenizer(words, add_special_tokens=special)["input_ids"]
        ends = self.vlm.ends_of_texts if special else 0
        self._texts.update((key, len(row) - ends) for key, row in zip(prompts, ids, strict=True))

    def _added(self, size: Size) -> int:
        """Return how many tokens a prompt with a picture of this size has that are not in its text."""
        from PIL import Image

        from interp.prompt import Prompt

        prompt = Prompt("?", Image.new("RGB", size))
        key = _words(prompt)
        self._read({} if key in self._texts else {key: prompt})
        encoded = self.vlm.inputs([prompt])
        return int(encoded["input_ids"].shape[1]) - self._texts[key]


def _words(prompt: "Prompt") -> tuple[Any, ...]:
    """Return what decides the text tokens: the words, and where pictures are."""
    return (prompt.text, prompt.image is not None, prompt.system, *(turn.outline() for turn in prompt.messages))
