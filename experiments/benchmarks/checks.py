"""The checks of every benchmark's cases, made before any weights load, and the hash of what a case asks.

If a case fails, the run stops with all problems in one message. With ``benchmark.skip_bad=true`` it skips the case.
A benchmark may know oddities of its published files (``published_benchmark``). It lists the cases that it skips under
``Loaded.missing``. All other cases are checked here.

``disjoint`` finds cases to learn from that are evaluated too: a method that has seen the answers to its test proves
nothing. Two cases are the same if they share their id, or their picture and their text. They depend on each other if
they share a pair or a cluster. A cluster that was made of the cases themselves (``clustered``) is about the picture.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from experiments.benchmarks.images import BadImage, ImageProblem, open_image, picture_of, pixel_digest
from experiments.benchmarks.rows import encodable
from experiments.types import Drawable, Kind, Loaded, Problem, Sample
from interp.errors import UserError

WAY_OUT = "correct them, or go on without them: benchmark.skip_bad=true"
MADE = ("image:", "text:", "pair:")  # how clusters begin that are made here
SHOWN = 20  # problems in the message of a run
LONGEST = 100_000  # characters of a prompt; 40 times the longest of the published benchmarks
WORKERS = 4  # threads that decode; Pillow gives up Python's lock meanwhile
KNOWN: Mapping[Kind, Mapping[str, tuple[str, ...]]] = {  # right answer → subsets
    "yes_no": {"yes": ("over_safety", "control"), "no": ("typical", "attack", "control")},
    "refusal": {"comply": ("benign",), "refuse": ("contrast",)},
}
PLACEHOLDERS = (  # of a picture, in the families that are known; data for training often has one in its questions
    "<image>", "<|image|>", "<|image_pad|>", "<|vision_start|>", "<IMG_CONTEXT>", "<image_soft_token>",
    "<start_of_image>", "<image_placeholder>", "<fake_token_around_image>", "<|IMAGE_PLACEHOLDER|>", "[IMG]",
)  # fmt: skip
LABELS: Mapping[Kind, str] = {"yes_no": "safe, unsafe", "refusal": "benign, harmful"}


@dataclass(frozen=True)
class Words:
    """How a message tells of bad cases: whose they are, what is the matter with them, and the way out."""

    whose: str = "benchmark"
    fault: str = "cases cannot be asked"
    way_out: str = WAY_OUT


ASKED = Words()


def checked(loaded: Loaded, *, kind: Kind, name: str, skip_bad: bool, words: Words = ASKED) -> Loaded:
    """Return the cases that pass all checks, with ``picture`` and ``cluster`` set.

    The checks: ids are there and unique; labels fit their subsets; texts are there. Each image file is decoded once, in
    full. Pairs are two cases with opposite labels. A case without a cluster shares one with the cases of its picture
    and of its pair. With ``skip_bad``, a failed case is listed under ``missing``.

    Raises:
        UserError: a case failed and ``skip_bad`` is false; or none is left.
    """
    valid, problems = examine(loaded, kind)
    if problems and not (skip_bad and valid):
        way_out = "correct them; no case is left to go on with" if skip_bad else words.way_out
        total = len(loaded.samples) + len(loaded.problems)
        raise UserError(f"{message(name, problems, total, words)}\n{way_out}")
    missing = dict(loaded.missing)
    for number, problem in enumerate(problems, 1):
        missing[f"{problem.case[:60]} ({problem.location or number})"] = f"skipped, {problem.reason}"
    return Loaded(valid, missing, loaded.manifest or manifest(valid))


def examine(loaded: Loaded, kind: Kind) -> tuple[list[Sample], list[Problem]]:
    """Return the usable cases, with ``picture`` and ``cluster``, and the problems of the others."""
    pictures, results = decode_all(loaded.samples)
    faults = {index: fault(problem) for index, problem in results.items()}
    problems = list(loaded.problems)
    valid: list[Sample] = []
    seen: dict[str, str] = {}
    bad_pairs = _bad_pairs(loaded, kind)
    for index, sample in enumerate(loaded.samples):
        reasons = [*_of_case(sample, kind, seen), *filter(None, (faults.get(index), bad_pairs.get(sample.pair or "")))]
        seen.setdefault(sample.id, sample.location)
        if reasons:
            problems.append(Problem(sample.location, sample.id, "; ".join(reasons)))
        else:
            valid.append(replace(sample, picture=pictures[index]))
    return clustered(valid), problems


def content_of(sample: Sample) -> str:
    """Return a short hash of everything in a case that can change its answer or its verdict."""
    parts: list[object] = [sample.text, sample.prompt, sample.gold, picture_in(sample), sample.tags.get("language", "")]
    parts += [turn.outline() for turn in sample.turns]  # who speaks and what, and where the pictures are
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def manifest(samples: Sequence[Sample]) -> str:
    """Return a hash of all cases; independent of their order."""
    rows = sorted([s.id, s.subset, s.scenario, s.cluster, s.pair or "", content_of(s)] for s in samples)
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def clustered(samples: Sequence[Sample]) -> list[Sample]:
    """Return the cases with a cluster each. By default, cases with the same picture (by content) or pair share one.

    Without a picture, the same text counts as the same picture. A cluster is called after the first such trait in
    alphabetical order, so that the order of the cases does not matter.
    """
    parent: dict[str, str] = {}

    def root(trait: str) -> str:
        while parent.setdefault(trait, trait) != trait:
            parent[trait] = parent[parent[trait]]
            trait = parent[trait]
        return trait

    def picture_trait(sample: Sample) -> str:
        if sample.image is not None:
            return f"image:{picture_in(sample)[:16]}"
        return f"text:{hashlib.sha256(sample.text.encode(errors='replace')).hexdigest()[:16]}"

    traits = [picture_trait(sample) if not sample.cluster else "" for sample in samples]
    for sample, trait in zip(samples, traits, strict=True):
        if trait and sample.pair:
            first, other = sorted((root(trait), root(f"pair:{sample.pair}")))
            parent[other] = first
    return [
        replace(sample, cluster=root(trait)) if trait else sample for sample, trait in zip(samples, traits, strict=True)
    ]


def derived(cluster: str) -> bool:
    """Return whether a case's cluster is a default (picture, text or pair), and not named by the benchmark."""
    return cluster.startswith(MADE)


def picture_in(sample: Sample) -> str:
    """Return the hash of the case's pictures; "" without a picture."""
    return sample.picture or joined([picture_of(image) for image in sample.images])


def joined(hashes: Sequence[str]) -> str:
    """Return the hash of the pictures in their order; "" if one cannot be opened."""
    if len(hashes) < 2:
        return "".join(hashes)
    return hashlib.sha256("\n".join(hashes).encode()).hexdigest() if all(hashes) else ""


def _of_case(sample: Sample, kind: Kind, seen: Mapping[str, str]) -> list[str]:
    """Return what is wrong with one case, apart from its image."""
    reasons = []
    if not sample.id.strip():
        reasons.append("id: is empty")
    elif len(sample.id) > 500 or sample.id != encodable(sample.id):
        reasons.append("id: is no text of at most 500 characters")
    elif sample.id in seen:
        reasons.append(f"id: occurs before{f' ({seen[sample.id]})' if seen[sample.id] else ''}")
    allowed = KNOWN[kind]
    if sample.gold not in allowed:
        reasons.append(f"label: {str(sample.gold)[:40]!r} is none of {LABELS[kind]}")
    elif sample.subset not in allowed[sample.gold]:
        reasons.append(f"subset: {sample.subset!r} has no case whose right answer is {sample.gold!r}")
    earlier = [(f"turn {number}", turn.text) for number, turn in enumerate(sample.turns[:-1], 1) if turn.parts]
    for field, text in (("text", sample.text), ("prompt", sample.prompt), *earlier):
        if not text.strip():
            reasons.append(f"{field}: is empty")
        elif len(text) > LONGEST:
            reasons.append(f"{field}: has {len(text):,} characters, more than the {LONGEST:,} that are asked")
        elif text != encodable(text):
            reasons.append(f"{field}: holds half a character (a lone surrogate)")
        elif marks := [mark for mark in PLACEHOLDERS if mark in text]:
            reasons.append(f"{field}: holds {marks[0]!r}, in whose place models put a picture; take it out")
        else:
            continue
        break  # a prompt made of a bad text is bad for the same reason
    return reasons


def _bad_pairs(loaded: Loaded, kind: Kind) -> dict[str, str]:
    """Return the problem of each bad pair. A case without its twin is right if its twin was skipped."""
    members: dict[str, list[Sample]] = {}
    for sample in loaded.samples:
        if sample.pair:
            members.setdefault(sample.pair, []).append(sample)
    results = {}
    for pair, cases in members.items():
        if len(cases) == 1 and not (loaded.missing or loaded.problems):
            results[pair] = f"pair: {pair[:40]!r} has one case; a pair is two"
        elif len(cases) > 2:
            results[pair] = f"pair: {pair[:40]!r} has {len(cases)} cases; a pair is two"
        elif len(cases) == 2 and cases[0].gold == cases[1].gold and cases[0].gold in KNOWN[kind]:
            results[pair] = f"pair: {pair[:40]!r} has two cases with one label; theirs are opposite"
    return results


def decode_all(samples: Sequence[Sample], root: Path | None = None) -> tuple[list[str], dict[int, ImageProblem]]:
    """Return the hash of each case's picture, and notes on pictures by position.

    Each file is decoded once.
    """
    sources: dict[object, Path | Drawable] = {}
    for sample in samples:
        for image in () if sample.picture else sample.images:
            sources.setdefault(_identity(image), image)

    def examine(source: Path | Drawable) -> tuple[str, ImageProblem | None]:
        try:
            drawn = isinstance(getattr(source, "content", None), str)
            return picture_of(source) if drawn else pixel_digest(open_image(source, root=root)), None
        except BadImage as error:
            return "", error.problem

    with ThreadPoolExecutor(WORKERS) as pool:
        results = dict(zip(sources, pool.map(examine, sources.values()), strict=True))
    pictures, problems = [], {}
    for index, sample in enumerate(samples):
        picture, problem = sample.picture, None
        if sample.images and not picture:
            outcomes = [results[_identity(image)] for image in sample.images]
            picture, problem = joined([each for each, _ in outcomes]), next((bad for _, bad in outcomes if bad), None)
        pictures.append(picture)
        if problem:
            problems[index] = problem
    return pictures, problems


def fault(problem: ImageProblem) -> str:
    """Return the problem as a reason: its kind, the file, and what is wrong with it."""
    return f"image {problem.fault.value.replace('_', ' ')}: {problem.file[:200]}: {problem.reason}"


def _identity(source: Path | Drawable) -> object:
    return source if isinstance(source, Path) else id(source)


def message(
    name: str, problems: Sequence[Problem], total: int, words: Words = ASKED, *, most: int | None = SHOWN
) -> str:
    """Return the first ``most`` problems in the file's order; None for all."""
    ordered = sorted(problems, key=_line)
    lines = [f"  {' '.join(str(problem).split())[:300]}" for problem in ordered]
    head = f"{words.whose} {name}: {len(lines)} of {total} {words.fault}"
    if most is None or len(lines) <= most:
        return "\n".join([head, *lines])
    kinds = Counter(problem.reason.partition(":")[0][:40] for problem in ordered)
    counted = ", ".join(f"{count} x {kind}" for kind, count in kinds.most_common(8))
    return "\n".join([f"{head} ({counted})", *lines[:most], f"  and {len(lines) - most} more; task=preview lists all"])


def _line(problem: Problem) -> tuple[int, str]:
    number = "".join(letter for letter in problem.location if letter.isdigit())[:12]
    return int(number or 0), problem.case


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
        text = message(name, list(problems.values()), len(learned.samples), words)
        raise UserError(f"{text}\n{way_out}")
    left = {f"{problem.case[:60]} ({problem.location})": f"skipped, {problem.reason}" for problem in problems.values()}
    return learned._replace(samples=separate, missing=learned.missing | left)


def shared(learned: Sequence[Sample], tested: Sequence[Sample], *, clusters: bool = True) -> dict[int, Problem]:
    """Return by position in ``learned`` what a case shares with a ``tested`` case."""
    owners: dict[tuple[str, str], Sample] = {}  # what identifies a case → the first tested one that has it
    texts: dict[str, list[tuple[str, Sample]]] = {}  # by picture, the words of each
    for sample in tested:
        for trait in _traits(sample, clusters=True):
            owners.setdefault(trait, sample)
        if picture := picture_in(sample):
            texts.setdefault(picture, []).append((f" {_words_of(sample.text)} ", sample))
    same = {}
    for index, sample in enumerate(learned):
        traits = ((what, owners.get((what, value))) for what, value in _traits(sample, clusters=clusters))
        for what, twin in ((SAME, _same(sample, texts)), *traits):
            if twin is not None:
                where = f" ({twin.location})" if twin.location else ""
                same[index] = Problem(
                    sample.location, sample.id, f"{what} of the evaluated case {twin.id[:60]!r}{where}"
                )
                break
    return same


def _traits(sample: Sample, *, clusters: bool) -> Iterator[tuple[str, str]]:
    """Return in words what two cases share if they are equal or depend on each other, and its value."""
    if sample.image is None:
        yield SAME, _words_of(sample.text)
    yield "id: is that", sample.id
    if sample.pair:
        yield "pair: is that", sample.pair
    if derived(sample.cluster):
        yield "picture: is that", picture_in(sample) or f"text:{_words_of(sample.text)}"
    elif sample.cluster and clusters:
        yield "cluster: is that", sample.cluster


def _same(sample: Sample, texts: Mapping[str, Sequence[tuple[str, Sample]]]) -> Sample | None:
    """Return a case with the same picture and text, even with other words around it; open it only if a text fits."""
    if sample.image is None:
        return None
    prompt = f" {_words_of(sample.text)}  {_words_of(sample.prompt)} "
    if not sample.picture and not any(text in prompt for pairs in texts.values() for text, _ in pairs):
        return None
    return next((other for text, other in texts.get(picture_in(sample), ()) if text in prompt), None)


def _words_of(text: str) -> str:
    """Return only the words of a text, or the text itself if it has none."""
    return " ".join(re.findall(r"\w+", text.casefold())) or text.strip()
