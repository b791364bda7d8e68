"""MOSSBench (arXiv 2406.17806): harmless questions about pictures that look risky, and their harmful twins.

Read from the published repository's layout: ``data/images_information/information.json`` keyed by pid,
``data/images``, and the same for the twins in ``data_contrast``.
Answering a benign case is right, refusing a twin is. The repository's published responses, ``data/results/<model>/
data.js``, are one assignment ``cache['<model>'] = {…}`` of valid JSON, which is read as data and never run. Knows
nothing of models, judges or metrics.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from experiments.benchmarks.published_benchmark import Collected, PublishedBenchmark, check_part, question
from experiments.benchmarks.rows import Unfit, encodable, json_file, json_value, need, readable_text
from interp.errors import UserError

REPOSITORY = "https://github.com/turningpoint-ai/MOSSBench"
TYPES = {"1": "Exaggerated Risk", "2": "Negated Harm", "3": "Counterintuitive Interpretation"}
UNDESCRIBED = "no description: the data set does not describe the picture"
_ASSIGNMENT = re.compile(r"\A\s*cache\[[^\]]{1,200}\]\s*=\s*")
_CLONE = "give the root of a clone of turningpoint-ai/MOSSBench: task.root=<folder>"
ALARMING_TYPES = ("1", "2")  # harmless requests whose pictures hold something risky, or harm that is crossed out
SAME_PICTURE = ("1", "3")  # the types whose twin keeps the picture and has another question


class Part(NamedTuple):
    """One of the two sets: where it lies, and what its cases are."""

    folder: str
    side: str
    letter: str  # before the pid, so that a case and its twin have ids of their own


BENIGN, CONTRAST = Part("data", "safe", "m"), Part("data_contrast", "unsafe", "c")
PARTS = {"benign": (BENIGN,), "contrast": (CONTRAST,), "both": (BENIGN, CONTRAST)}


class MOSSBenchEntry(NamedTuple):
    """A published entry that is whole, with the path of its picture, which may not be there."""

    pid: str
    fields: dict[str, Any]
    type: str  # of ``TYPES``
    image: Path


@dataclass(frozen=True)
class MOSSBench(PublishedBenchmark):
    """The benchmark in a clone at ``root``; ``sets`` says which set to ask: benign, contrast or both.

    ``strict`` stops where any entry or image cannot be used. ``described`` skips cases whose pictures the data set
    does not describe (4 of 300 benign cases, 22 of 244 twins).

    Raises:
        UserError: the set is unknown.
    """

    sets: str = "benign"
    described: bool = False
    name: str = "mossbench"
    untrainable: ClassVar[str] = "MOSSBench may not be trained on, as its authors say"
    GET = f"git clone {REPOSITORY}"

    def __post_init__(self) -> None:
        check_part("sets", self.sets, PARTS)

    def find(self) -> Collected:
        """Return all cases of the chosen sets."""
        cases = Collected(self.folder, expected=(UNDESCRIBED,))
        for part in PARTS[self.sets]:
            source, entries = _entries(self.folder, part)
            for position, (pid, fields) in enumerate(entries.items(), 1):
                with cases.entry(f"{part.letter}{pid[:20]}", source, f"entry {position}"):
                    _add(cases, part, _checked(self.folder, part, pid, fields))
        if self.described:
            cases.absent |= {case.id: UNDESCRIBED for case in cases.samples if not case.shows}
            cases.samples = [case for case in cases.samples if case.shows]
        return cases


def _entries(folder: Path, part: Part) -> tuple[Path, dict[str, Any]]:
    """Return the file of a set, and pid → fields in the file's order.

    Raises:
        UserError: the file is missing or of another shape.
    """
    source = folder / part.folder / "images_information" / "information.json"
    return source, json_file(source, dict, f"clone {REPOSITORY} and set benchmark.root to the clone")


def _checked(folder: Path, part: Part, pid: str, fields: Any) -> MOSSBenchEntry:
    """Return an entry that a case can be made of.

    A twin that keeps the picture may leave it to the benign set's folder.

    Raises:
        Unfit: a field is missing or of another kind.
    """
    if not re.fullmatch(r"[0-9]{1,6}", pid):
        raise Unfit("a pid is a number")
    need(fields, "question")
    over = need(need(fields, "metadata", dict), "over")
    if (kind := over.removeprefix("type ")) not in TYPES:
        raise Unfit(f"field 'over' is {over[:20]!r}; it is one of {', '.join(f'type {n}' for n in TYPES)}")
    image = folder / part.folder / need(fields, "image")
    if part is CONTRAST and kind in SAME_PICTURE and not os.path.lexists(image):
        image = folder / BENIGN.folder / fields["image"]
    return MOSSBenchEntry(pid, fields, kind, image)


def _add(cases: Collected, part: Part, entry: MOSSBenchEntry) -> None:
    text, tags = entry.fields["question"], _tags(entry.fields)
    cases.add(
        f"{part.letter}{entry.pid}",
        part.side,
        scenario=TYPES[entry.type],
        text=text,
        image=entry.image,
        cluster=question(text),
        tags={"pid": entry.pid, "type": entry.type} | tags,
        shows=tags["description"].strip() or tags["short_description"].strip(),
        alarming=entry.type in ALARMING_TYPES,
    )


def _tags(fields: dict[str, Any]) -> dict[str, str]:
    """Return the descriptions, "" if the set has none, and the code of the harm."""
    descriptions = {"description": fields.get("description"), "short_description": fields.get("short description")}
    tags = {name: encodable(text) if isinstance(text, str) else "" for name, text in descriptions.items()}
    if codes := re.findall(r"\d+", str(fields["metadata"].get("harm", ""))):  # a list of one number
        tags["harm"] = ",".join(codes)
    return tags


def published_questions(root: Path) -> dict[str, MOSSBenchEntry]:
    """Return the benign questions by pid, for their published responses. A picture may be missing.

    Raises:
        UserError: the file cannot be read, or an entry lacks a field.
    """
    source, entries = _entries(root, BENIGN)
    questions = {}
    for pid, fields in entries.items():
        try:
            questions[pid] = _checked(root, BENIGN, pid, fields)
            if not questions[pid].image.resolve().is_relative_to((root / "data").resolve()):
                raise Unfit(f"image {fields['image']!r} leaves {root / 'data'}")
        except Unfit as error:
            raise UserError(f"{source}: pid {pid}: {error}; use the file as it is published") from None
    return questions


class PublishedResponses(NamedTuple):
    """The published answers of each model, and the models whose published file is empty."""

    by_model: dict[str, dict[str, str | None]]  # model, as its folder is named → pid → response; None: null in the file
    empty: list[str]


def published_responses(root: Path) -> PublishedResponses:
    """Return everything in ``data/results``.

    The repository's own files of two models are empty; they are named, not read.

    Raises:
        UserError: no model has published responses here, or a file is not of the published shape.
    """
    texts = {path: readable_text(path, _CLONE) for path in sorted((root / "data" / "results").glob("*/data.js"))}
    by_model = {path.parent.name: _responses(path, text) for path, text in texts.items() if text.strip()}
    if not by_model:
        raise UserError(f"{root / 'data' / 'results'}: no <model>/data.js with published responses; {_CLONE}")
    return PublishedResponses(by_model, [path.parent.name for path, text in texts.items() if not text.strip()])


def _responses(path: Path, published: str) -> dict[str, str | None]:
    text, cut = _ASSIGNMENT.subn("", published, count=1)
    if not cut:
        raise UserError(f"{path}: does not begin with cache['<model>'] = …; give the published file")
    answers: dict[str, str | None] = {}
    entries = json_value(text.rstrip().removesuffix(";"), path, dict, "give the published file")
    for pid, entry in entries.items():
        response = entry.get("response") if isinstance(entry, dict) else 0
        if response is not None and not isinstance(response, str):
            raise UserError(f"{path}: pid {pid}: the response is no text; each entry has a response, a text or null")
        answers[pid] = response
    return answers
