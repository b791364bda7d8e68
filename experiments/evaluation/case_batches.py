"""Batches of cases, formed as all batches are (``interp.batching``), with their images opened ahead.

Imports no torch.
"""

import re
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from PIL import Image

from experiments.benchmarks.checks import WORKERS
from experiments.benchmarks.images import BadImage, EncodedImage, open_image, open_pictures
from experiments.evaluation.conversations import with_answers
from experiments.types import Drawable, Sample
from interp.batching import BatchRule
from interp.pictures import ORIENTATION

if TYPE_CHECKING:
    from interp.batching import Lengths
    from interp.prompt import Prompt

Thing = TypeVar("Thing")
Opened = tuple[Image.Image, ...] | BadImage
AHEAD = 2  # batches whose images are opened while another is answered: one ready, one in progress
SIDEWAYS = range(5, 9)  # EXIF orientations that swap width and height
# Settings that change how scores are made, not the prompts that are read for them.
OF_SCORES = re.compile(r"\b(alpha|beta|gamma|shift|weight|temperature|top_p)=[^,()]*")


def batches(items: Sequence[Thing], size: int) -> Iterator[Sequence[Thing]]:
    """Return slices of ``size`` items, in order; the last may be shorter."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def form(samples: Sequence[Sample], lengths: "Lengths | None", rule: BatchRule) -> list[list[Sample]]:
    """Return the batches of one arm: by length, or in the order of the cases without a budget or a model to count
    tokens.
    """
    counted = None
    if lengths is not None and rule.tokens is not None:
        counted = lengths.of(*outlines(samples))
    formed = rule.form(counted, [len(sample.images) for sample in samples])
    return [[samples[place] for place in batch] for batch in formed]


def by_prefill(arms: Mapping[str, Any]) -> list[str]:
    """Return the names of ``arms``. Arms that read the same prompts follow each other.

    So what one has read is needed by the next one, or not again (``interp.prefill_cache``). Two methods read the
    same prompts if their class and settings are the same, but for the settings ``OF_SCORES``.
    """
    groups: dict[str, list[str]] = {}
    for arm, method in arms.items():
        while (inner := getattr(method, "wraps", None)) is not None:
            method = inner
        groups.setdefault(OF_SCORES.sub("", repr(method)), []).append(arm)
    return [arm for group in groups.values() for arm in group]


def prompt_of(sample: Sample, pictures: Sequence[Image.Image]) -> "Prompt":
    """Return what a study asks of a case, with its pictures opened.

    A turn whose answer the model has yet to give stays empty (``experiments.evaluation.conversations``).
    """
    from interp.prompt import Prompt

    about: dict[str, Any] = {"key": sample.id, "request": sample.text, "shows": sample.described}
    left = iter(pictures)
    if not sample.turns:
        return Prompt(sample.prompt, next(left, None), **about)
    turns = [turn.mapped(lambda _: next(left)) for turn in sample.turns]
    return Prompt(**about).with_turns(turns)


def outlines(samples: Sequence[Sample]) -> "tuple[list[Prompt], list[list[tuple[int, int]]]]":
    """Return the prompts with dots for pictures, and the sizes of the pictures that can be opened."""
    dot = Image.new("RGB", (1, 1))
    prompts = [prompt_of(with_answers(sample, {}), (dot,) * len(sample.images)) for sample in samples]
    return prompts, [[size for image in sample.images if (size := size_of(image))] for sample in samples]


def size_of(source: Path | Drawable | None) -> tuple[int, int] | None:
    """Return width and height as ``open_image`` gives them, usually from the file's header; None without an image."""
    side = getattr(source, "size", None)
    if source is None or isinstance(side, int):
        return None if side is None else (side, side)
    try:
        if not isinstance(source, Path | EncodedImage):
            return open_image(source).size
        with Image.open(source if isinstance(source, Path) else BytesIO(source.data)) as image:
            turned = image.getexif().get(ORIENTATION) in SIDEWAYS
            return image.size[::-1] if turned else image.size
    except Exception:  # a file that cannot be read is reported when it is opened to be answered
        return None


def prefetch_images(work: Sequence[Sequence[Sample]]) -> Generator[tuple[Sequence[Sample], list[Opened]]]:
    """Return each batch with its images, in order; a ``BadImage`` takes the position of an image that cannot be opened.

    Meanwhile, threads open the images of the next batches (Pillow releases the GIL while it decodes). Close
    the generator (``contextlib.closing``) when leaving early, so that images not yet begun are never opened.
    """
    pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="images")
    waiting: deque[tuple[Sequence[Sample], list[Future[Opened]]]] = deque()
    try:
        for batch in [*work, *[()] * AHEAD]:
            waiting.append((batch, [pool.submit(_open, sample) for sample in batch]))
            if len(waiting) > AHEAD and (ready := waiting.popleft())[0]:
                yield ready[0], [future.result() for future in ready[1]]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _open(sample: Sample) -> Opened:
    try:
        return open_pictures(sample)
    except BadImage as error:
        return error


def refused_size(picture: Opened, lengths: "Lengths | None") -> str:
    """Return why the model's processor refuses the size of a picture; "" if it does not."""
    if lengths is None or isinstance(picture, BadImage):
        return ""
    return next((reason for each in picture if (reason := lengths.refusal(each.size))), "")
