"""The cases of a run: loaded, checked and limited before any weights load, then put into batches with their pictures.

All studies take them from here. Batches are formed as all batches are (``interp.batching``). Their pictures are opened
ahead. In a conversation, earlier answers may be the arm's own; they are put into the next turn. Imports no torch.
"""

import re
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from io import BytesIO
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from PIL import Image
from rich.console import Console

from experiments.benchmarks.checks import WORKERS, checked, disjoint
from experiments.benchmarks.images import BadImage, EncodedImage, open_image, open_pictures
from experiments.config import Run
from experiments.report.tables import shortfall
from experiments.types import Drawable, Item, Judge, Loaded, Sample
from interp.batching import BatchRule
from interp.errors import UserError
from interp.messages import ORIENTATION, Message

if TYPE_CHECKING:
    from interp.batching import Lengths
    from interp.prompt import Prompt
    from interp.vlm import Generation


TURN = "turn {}, {}"  # the name of a turn in ``steps`` of a record
JUDGED = "turn {}, verdict"


def rolled_out(generate: "Callable[[Sequence[Prompt]], Generation]", prompts: "Sequence[Prompt]") -> "list[Prompt]":
    """Return the prompts with an answer by ``generate`` in each turn of the assistant that has none, in their order.

    Prompts with other numbers of pictures before a turn are asked separately.
    """
    done = list(prompts)
    while waiting := {row: turn for row, prompt in enumerate(done) if (turn := _first_open(prompt)) is not None}:
        before = {}
        for row, turn in waiting.items():
            about = replace(done[row], key=f"{done[row].key}\nturn {turn}", request="", shows="", answer_prefix=())
            before[row] = about.with_turns(done[row].turns[:turn])
        for number in {len(prompt.images) for prompt in before.values()}:
            rows = [row for row, prompt in before.items() if len(prompt.images) == number]
            for row, text in zip(rows, generate([before[row] for row in rows]).texts, strict=True):
                earlier, later = done[row].turns[: waiting[row]], done[row].turns[waiting[row] + 1 :]
                done[row] = done[row].with_turns((*earlier, Message("assistant", (text,)), *later))
    return done


def with_answers(sample: Sample, record: Mapping[str, Any]) -> Sample:
    """Return the case with the earlier answers that its ``record`` has, "" where it has none."""
    steps = record.get("steps") or {}
    turns = [
        turn if turn.parts else Message(turn.role, (steps.get(TURN.format(number, turn.role), ""),))
        for number, turn in enumerate(sample.turns, 1)
    ]
    return replace(sample, turns=tuple(turns))


def noted(generation: "Generation", prompts: "Sequence[Prompt]") -> "Generation":
    """Return the generation with the turns of conversations among its ``steps``."""
    if not any(prompt.messages for prompt in prompts):
        return generation
    steps: list[dict[str, str]] = []
    for prompt, later in zip(prompts, generation.steps or [{}] * len(prompts), strict=True):
        names = (f"[picture {number}]" for number in count(1))
        told = [turn.mapped(lambda _: next(names)).text for turn in prompt.messages]  # noqa: B023
        numbered = enumerate(zip(prompt.messages, told, strict=True), 1)
        steps.append({TURN.format(number, turn.role): text for number, (turn, text) in numbered} | dict(later))
    return replace(generation, steps=steps)


def judged_turns(steps: Sequence[Mapping[str, str]], items: Sequence[Item], judge: Judge) -> list[dict[str, str]]:
    """Return the steps with a verdict after each earlier answer; ``items`` belong to the last answers."""
    earlier = [
        (row, number, replace(item, question=transcript(told, upto=number), response=text))
        for row, (told, item) in enumerate(zip(steps, items, strict=True))
        for number in range(2, len(told) + 1)
        if (text := told.get(TURN.format(number, "assistant"), "").strip())
    ]
    results = [dict(told) for told in steps]
    if judge.kind == "refusal" and earlier:
        for (row, number, _), judgement in zip(earlier, judge.judge([item for *_, item in earlier]), strict=True):
            results[row][JUDGED.format(number)] = judgement.verdict.value
    return results


def transcript(steps: Mapping[str, str], upto: int | None = None) -> str:
    """Return a conversation for a judge, from the steps of a record; "" without turns. ``upto``: turns before it."""
    named = [(re.fullmatch(r"turn (\d+), (user|assistant)", name), text) for name, text in steps.items()]
    turns = sorted((int(match[1]), match[2].title(), text) for match, text in named if match)
    return "\n".join(f"{role}: {text}" for number, role, text in turns if upto is None or number < upto)


def _first_open(prompt: "Prompt") -> int | None:
    return next((index for index, turn in enumerate(prompt.turns) if not turn.parts), None)


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
        counted = lengths.count(*outlines(samples))
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

    A turn whose answer the model has yet to give stays empty (``rolled_out`` fills it).
    """
    from interp.prompt import Prompt

    about: dict[str, Any] = {"key": sample.id, "request": sample.text, "shows": sample.described}
    left = iter(pictures)
    if not sample.turns:
        return Prompt(sample.prompt, next(left, None), **about)
    return Prompt(**about).with_turns([turn.mapped(lambda _: next(left)) for turn in sample.turns])


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


SUBSETS_BY_TURNS = ("over_safety", "typical", "attack", "control", "benign", "contrast")


def load_cases(run: Run, console: Console) -> Loaded:
    """Return the benchmark's cases, and print which cannot run here.

    Raises:
        UserError: none can run, or some fail their checks and ``benchmark.skip_bad`` is not set.
    """
    loaded = _checked(run, run.benchmark.load(), run.benchmark.name)
    if not loaded.samples:
        raise UserError(f"benchmark {run.benchmark.name} has no case that can run here; check benchmark.root")
    if loaded.missing:
        sentence = shortfall(len(loaded.samples), loaded.missing)
        console.print(f"[yellow]{sentence} Their ids are in environment.json.[/yellow]", highlight=False)
    return loaded


def development_cases(run: Run, tested: Sequence[Sample]) -> Loaded | None:
    """Return the cases of the benchmark's development split, none of them ``tested``; None where it has none.

    Raises:
        UserError: some fail their checks, or are tested too, and ``benchmark.skip_bad`` is not set.
    """
    loaded = run.benchmark.development()
    if loaded is None:
        return None
    name, clusters = f"{run.benchmark.name}, development split", not getattr(run.benchmark, "clusters_recur", False)
    return disjoint(_checked(run, loaded, name), tested, name=name, skip_bad=run.skip_bad, clusters=clusters)


def limited(samples: Sequence[Sample], limit: int | None) -> list[Sample]:
    """``limit`` cases in the benchmark's order, spread evenly over the subsets; over-safety comes first."""
    if limit is None or limit >= len(samples):
        return list(samples)
    queues = [[sample for sample in samples if sample.subset == subset] for subset in SUBSETS_BY_TURNS]
    turns = [queue[index] for index in range(max(map(len, queues))) for queue in queues if index < len(queue)]
    chosen = {sample.id for sample in turns[:limit]}
    return [sample for sample in samples if sample.id in chosen]


def _checked(run: Run, loaded: Loaded, name: str) -> Loaded:
    return checked(loaded, kind=run.benchmark.kind, name=name, skip_bad=run.skip_bad)
