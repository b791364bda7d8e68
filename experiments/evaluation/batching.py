"""Batches of cases: formed by prompt length, images opened ahead, and split where memory runs out.

Imports torch only when a model is called.
"""

import gc
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import partial
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from PIL import Image

from experiments.benchmarks.images import BadImage, EncodedImage, open_image
from experiments.types import Drawable, Sample
from interp.errors import UserError

if TYPE_CHECKING:
    from interp.prompt_length import Lengths
    from interp.vlm import Generation, Prompt

Thing = TypeVar("Thing")
Opened = Image.Image | BadImage | None
AHEAD = 2  # batches whose images are opened while another is answered: one ready, one in progress
SIDEWAYS = range(5, 9)  # EXIF orientations that swap width and height
ORIENTATION = 0x0112


def batches(items: Sequence[Thing], size: int) -> Iterator[Sequence[Thing]]:
    """Slices of ``size`` items, in order; the last may be shorter."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def by_length(samples: Sequence[Sample], lengths: Sequence[int], *, rows: int, tokens: int) -> list[list[Sample]]:
    """Batches of prompts of similar length: at most ``rows`` of them, and ``tokens`` tokens with the padding.

    Longest first, so that a batch too large for memory fails at once. A prompt longer than ``tokens`` gets a batch of
    its own; cases with and without an image are never mixed. Within a batch, and among equal lengths, the order is
    that of ``samples``. Depends on the arguments only: a continued or shared run forms the same batches.
    """
    order = sorted(range(len(samples)), key=lambda place: (samples[place].image is None, -lengths[place], place))
    formed: list[list[int]] = []
    for place in order:
        latest = formed[-1] if formed else []
        if (
            not latest
            or len(latest) == rows
            or (len(latest) + 1) * lengths[latest[0]] > tokens
            or (samples[latest[0]].image is None) != (samples[place].image is None)
        ):
            latest = []
            formed.append(latest)
        latest.append(place)
    return [[samples[place] for place in sorted(batch)] for batch in formed]


def form(samples: Sequence[Sample], lengths: "Lengths | None", *, rows: int, tokens: int | None) -> list[list[Sample]]:
    """The batches of one arm: by length, or in the order of the cases without ``tokens`` or a model to count them."""
    if lengths is None or tokens is None:
        return [list(batch) for batch in batches(samples, rows)]
    counted = lengths.of([sample.prompt for sample in samples], [size_of(sample.image) for sample in samples])
    return by_length(samples, counted, rows=rows, tokens=tokens)


def size_of(source: Path | Drawable | None) -> tuple[int, int] | None:
    """Width and height as ``open_image`` gives them, usually from the file's header alone; None without an image."""
    side = getattr(source, "size", None)
    if source is None or isinstance(side, int):
        return None if side is None else (side, side)
    try:
        if not isinstance(source, Path | EncodedImage):
            return open_image(source).size
        with Image.open(source if isinstance(source, Path) else BytesIO(source.data)) as image:
            turned = image.format in ("JPEG", "MPO") and image.getexif().get(ORIENTATION) in SIDEWAYS
            return image.size[::-1] if turned else image.size
    except Exception:  # a file that cannot be read is reported when it is opened to be answered
        return None


def opened(work: Sequence[Sequence[Sample]], *, workers: int) -> Generator[tuple[Sequence[Sample], list[Opened]]]:
    """Each batch with its images, in order; a ``BadImage`` stands in for one that cannot be opened.

    ``workers`` threads meanwhile open those of the next batches (Pillow releases the GIL while it decodes); with 0 each
    batch is opened when it is due. Close the generator (``contextlib.closing``) when leaving early, so that images
    not yet begun are never opened.
    """
    if workers == 0:
        for batch in work:
            yield batch, [_open(sample) for sample in batch]
        return
    pool = ThreadPoolExecutor(workers, thread_name_prefix="images")
    coming = iter(work)
    waiting: deque[tuple[Sequence[Sample], list[Future[Opened]]]] = deque()

    def order(count: int) -> None:
        waiting.extend((batch, [pool.submit(_open, sample) for sample in batch]) for batch in islice(coming, count))

    try:
        order(AHEAD)
        while waiting:
            batch, futures = waiting.popleft()
            pictures = [future.result() for future in futures]
            order(1)
            yield batch, pictures
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _open(sample: Sample) -> Opened:
    if sample.image is None:
        return None
    try:
        return open_image(sample.image)
    except BadImage as error:
        return error


@dataclass
class MemoryLimit:
    """The number of prompts that fit into memory at once; halved whenever memory runs out, never raised again.

    A smaller batch changes results as another ``batch_size`` does: in float32 margins agree to 1e-5 and verdicts are
    equal, but not bit by bit. Where memory never runs out, nothing changes. ``on_lowered`` is told each new limit.
    """

    rows: int
    on_lowered: Callable[[int], None]

    def ask(self, prompts: "Sequence[Prompt]", ask: "Callable[[Sequence[Prompt]], Generation]") -> "Generation":
        """The answers to all ``prompts``, in as many parts as memory requires.

        Raises:
            UserError: a single prompt does not fit.
        """
        done: list[Generation] = []
        rest = prompts
        while rest:
            part = rest[: self.rows]
            answers = _unless_out_of_memory(partial(ask, part))
            if answers:
                done += answers
                rest = rest[len(part) :]
                continue
            if len(part) == 1:
                raise _too_large(f"a single prompt ({part[0].key or part[0].text!r})")
            self.rows = len(part) // 2
            _free()
            self.on_lowered(self.rows)
        return merged(done)


def halved(size: int, ask: Callable[[int], Thing]) -> Thing:
    """The result of ``ask`` with batches of ``size``; started again with half of it whenever memory runs out.

    Raises:
        UserError: single prompts do not fit.
    """
    while not (found := _unless_out_of_memory(partial(ask, size))):
        if size == 1:
            raise _too_large("a single prompt")
        size //= 2
        _free()
    return found[0]


def _too_large(what: str) -> UserError:
    return UserError(
        f"not enough memory for {what}; take smaller weights (model.dtype=bfloat16), smaller images (the model's pixel "
        "bounds), a smaller model, or spread it over several devices (model.device_map=auto)"
    )


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


def out_of_memory(error: Exception) -> bool:
    """Whether the error means that a device or the machine ran out of memory."""
    import torch
    from accelerate.utils.memory import should_reduce_batch_size

    return isinstance(error, torch.OutOfMemoryError | MemoryError) or should_reduce_batch_size(error)


def _free() -> None:
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


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
