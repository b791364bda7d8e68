"""Whether cases to learn from are evaluated too, found before any weights load: a method that has seen the answers to
its test proves nothing.

Two cases are the same if they share their id, or their picture and their text. They depend on each other if they share
a pair or a cluster. A cluster that was made of the cases themselves (``checks.clustered``) is about the picture.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from experiments.benchmarks.checks import Words, derived, message, picture_in
from experiments.types import Loaded, Problem, Sample
from interp.errors import UserError

SAME = "picture and text: are those"
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
    """Return the cases to learn from. With ``skip_bad``, skip cases that are ``tested`` or depend on a tested case.

    Both were checked. Left-out cases are listed under ``missing``, and all stay evaluated. Without ``clusters``, a
    cluster that the benchmark names itself may be on both sides.

    Raises:
        UserError: there are such cases and ``skip_bad`` is false; or no other is left to learn from.
    """
    problems = shared(learned.samples, tested, clusters=clusters)
    if not problems:
        return learned
    both = set(problems)
    separate = [sample for index, sample in enumerate(learned.samples) if index not in both]
    if not (skip_bad and separate):
        way_out = "keep each case on one side; no other case is left to learn from" if skip_bad else words.way_out
        text = message(name, list(problems.values()), len(learned.samples), folder, words)
        raise UserError(f"{text}\n{way_out}")
    left = {f"{problem.case[:60]} ({problem.place})": f"skipped, {problem.reason}" for problem in problems.values()}
    return learned._replace(samples=separate, missing=learned.missing | left)


def shared(learned: Sequence[Sample], tested: Sequence[Sample], *, clusters: bool = True) -> dict[int, Problem]:
    """Return by position in ``learned`` what a case shares with a ``tested`` case."""
    owners: dict[tuple[str, str], Sample] = {}  # what identifies a case → the first tested one that has it
    texts: dict[str, list[tuple[str, Sample]]] = {}  # by picture, the words of each
    for sample in tested:
        for trait in _traits(sample, clusters=True):
            owners.setdefault(trait, sample)
        if picture := picture_in(sample):
            texts.setdefault(picture, []).append((f" {_plain(sample.text)} ", sample))
    same = {}
    for index, sample in enumerate(learned):
        traits = ((what, owners.get((what, value))) for what, value in _traits(sample, clusters=clusters))
        for what, twin in ((SAME, _same(sample, texts)), *traits):
            if twin is not None:
                where = f" ({twin.place})" if twin.place else ""
                same[index] = Problem(sample.place, sample.id, f"{what} of the evaluated case {twin.id[:60]!r}{where}")
                break
    return same


def _traits(sample: Sample, *, clusters: bool) -> Iterator[tuple[str, str]]:
    """Return in words what two cases share if they are equal or depend on each other, and its value."""
    if sample.image is None:
        yield SAME, _plain(sample.text)
    yield "id: is that", sample.id
    if sample.pair:
        yield "pair: is that", sample.pair
    if derived(sample.cluster):
        yield "picture: is that", picture_in(sample) or f"text:{_plain(sample.text)}"
    elif sample.cluster and clusters:
        yield "cluster: is that", sample.cluster


def _same(sample: Sample, texts: Mapping[str, Sequence[tuple[str, Sample]]]) -> Sample | None:
    """Return a case with the same picture and text, even with other words around it; open it only if a text fits."""
    if sample.image is None:
        return None
    prompt = f" {_plain(sample.text)}  {_plain(sample.prompt)} "
    if not sample.picture and not any(text in prompt for pairs in texts.values() for text, _ in pairs):
        return None
    return next((other for text, other in texts.get(picture_in(sample), ()) if text in prompt), None)


def _plain(text: str) -> str:
    """Return only the words of a text, or the text itself if it has none."""
    return " ".join(re.findall(r"\w+", text.casefold())) or text.strip()
