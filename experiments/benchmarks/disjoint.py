"""Whether cases to learn from are evaluated too, found before any weights load: a method that has seen the answers to
its test proves nothing.

Two cases are one where they share their id, or their picture and their text; a re-encoded or resized file is the same
picture (``interp.training_rows``). They depend on each other where they share a pair or a cluster. A cluster that was
made of the cases themselves (``checks.clustered``) stands for the picture.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from experiments.benchmarks.checks import Words, derived, message, picture_in
from experiments.benchmarks.images import BadImage, EncodedImage, open_image
from experiments.types import Loaded, Problem, Sample
from interp.errors import UserError
from interp.training_rows import TrainingRows, row_hash

SAME = "picture and text: are those"
NEARLY = "picture and text: are nearly those"
BENCHMARK = Words(
    fault="cases to learn from are evaluated too",
    way_out="keep each case, pair and cluster on one side, or learn from the others alone: benchmark.skip_bad=true",
)


def disjoint(
    learned: Loaded,
    tested: Sequence[Sample],
    *,
    name: str,
    skip_bad: bool,
    folder: Path,
    words: Words = BENCHMARK,
    clusters: bool = True,
) -> Loaded:
    """The cases to learn from; with ``skip_bad`` those left out that are ``tested`` too, or depend on a tested one.

    Both were checked. Left-out cases are listed under ``missing``, and all stay evaluated. Without ``clusters``, those
    that the benchmark names itself may stand on both sides.

    Raises:
        UserError: there are such cases and ``skip_bad`` is false; or no other is left to learn from.
    """
    problems = shared(learned.samples, tested, clusters=clusters)
    if not problems:
        return learned
    both = set(problems)
    kept = [sample for place, sample in enumerate(learned.samples) if place not in both]
    if not (skip_bad and kept):
        way_out = "keep each case on one side; no other case is left to learn from" if skip_bad else words.way_out
        text = message(name, list(problems.values()), len(learned.samples), folder, words)
        raise UserError(f"{text}\n{way_out}")
    left = {f"{problem.case[:60]} ({problem.place})": f"skipped, {problem.reason}" for problem in problems.values()}
    return learned._replace(samples=kept, missing=learned.missing | left)


def shared(learned: Sequence[Sample], tested: Sequence[Sample], *, clusters: bool = True) -> dict[int, Problem]:
    """By position in ``learned``, what a case shares with one that is ``tested``."""
    known: dict[tuple[str, str], Sample] = {}  # what identifies a case → the first tested one that has it
    asked: dict[str, list[tuple[str, Sample]]] = {}  # by picture, the words of each
    for sample in tested:
        for trait in _traits(sample, clusters=True):
            known.setdefault(trait, sample)
        if picture := picture_in(sample):
            asked.setdefault(picture, []).append((f" {_plain(sample.text)} ", sample))
    nearly = _nearly(learned, tested)
    found = {}
    for place, sample in enumerate(learned):
        traits = ((what, known.get((what, value))) for what, value in _traits(sample, clusters=clusters))
        for what, one in ((SAME, _same(sample, asked)), (NEARLY, nearly.get(place)), *traits):
            if one is not None:
                where = f" ({one.place})" if one.place else ""
                found[place] = Problem(sample.place, sample.id, f"{what} of the evaluated case {one.id[:60]!r}{where}")
                break
    return found


def _traits(sample: Sample, *, clusters: bool) -> Iterator[tuple[str, str]]:
    """What a case shares with another where they are one or depend on each other, in words, and its value."""
    if sample.image is None:
        yield SAME, _plain(sample.text)
    yield "id: is that", sample.id
    if sample.pair:
        yield "pair: is that", sample.pair
    if derived(sample.cluster):
        yield "picture: is that", picture_in(sample) or f"text:{_plain(sample.text)}"
    elif sample.cluster and clusters:
        yield "cluster: is that", sample.cluster


def _same(sample: Sample, asked: Mapping[str, Sequence[tuple[str, Sample]]]) -> Sample | None:
    """One with its picture and text, be it in other words around it; it is only opened where a text is known."""
    if sample.image is None:
        return None
    prompt = f" {_plain(sample.text)}  {_plain(sample.prompt)} "
    if not sample.picture and not any(text in prompt for ones in asked.values() for text, _ in ones):
        return None
    return next((one for text, one in asked.get(picture_in(sample), ()) if text in prompt), None)


def _nearly(learned: Sequence[Sample], tested: Sequence[Sample]) -> dict[int, Sample]:
    """By position in ``learned``, a tested case with its text and, re-encoded or resized, its picture.

    Files alone are opened, and these where a text is shared; drawn pictures are known by what they are drawn from.
    """
    known: dict[str, list[Sample]] = {}
    for sample in tested:
        if isinstance(sample.image, Path | EncodedImage):
            known.setdefault(_plain(sample.text), []).append(sample)
    hashes: dict[str, list[tuple[bytes, Sample]]] = {}
    found: dict[int, Sample] = {}
    for place, sample in enumerate(learned):
        text = _plain(sample.text)
        if text not in known or not isinstance(sample.image, Path | EncodedImage):
            continue
        if text not in hashes:
            hashes[text] = [(own, one) for one in known[text] if (own := _hashed(one))]
        if own := _hashed(sample):
            same = TrainingRows.of_hashes([own]).overlap([other for other, _ in hashes[text]])
            ones = [one for (_, one), is_same in zip(hashes[text], same, strict=True) if is_same]
            found |= {place: ones[0]} if ones else {}
    return found


def _hashed(sample: Sample) -> bytes:
    """Of the picture alone; empty where it cannot be opened."""
    assert sample.image is not None
    try:
        return row_hash("", "", open_image(sample.image))
    except BadImage:
        return b""


def _plain(text: str) -> str:
    """The words alone; the text itself where it has none."""
    return " ".join(re.findall(r"\w+", text.casefold())) or text.strip()
