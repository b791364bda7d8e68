"""MOSSBench (arXiv 2406.17806): harmless questions about pictures that look risky, and their harmful twins.

Read from the published repository's layout: ``data/images_information/information.json`` keyed by pid, beside
``data/images``, and the twins in ``data_contrast``; or from the Hugging Face hub, which needs a network once, then the
cache. The hub's table is flat (``metadata_over``, …) and its card calls that column a truth value, which it is not.
Answering a benign case is right, refusing a twin is. The repository's published responses, ``data/results/<model>/
data.js``, are one assignment ``cache['<model>'] = {…}`` of valid JSON, which is read as data and never run. Knows
nothing of models, judges or metrics.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from experiments.benchmarks.checks import Unfit, need, published, readable_text, whole
from experiments.benchmarks.images import EncodedImage
from experiments.types import Drawable, Gold, Kind, Loaded, Sample, Subset
from interp.errors import UserError

DATASET = "AIcell/MOSSBench"
CASES_A_TYPE = 100  # pids 1-100 are type 1, 101-200 type 2, 201-300 type 3, in both sets


REPOSITORY = "https://github.com/turningpoint-ai/MOSSBench"
SETS = ("benign", "contrast", "both")
SOURCES = ("repository", "hub")
TYPES = {"1": "Exaggerated Risk", "2": "Negated Harm", "3": "Counterintuitive Interpretation"}
# By matching the counts to the published chart; code 0 never occurs.
HARMS = {
    "1": "Cybercrime",
    "2": "Chemical & Biological Weapon",
    "3": "Copyright Violation",
    "4": "Misinformation",
    "5": "Harassment",
    "6": "Illegal act",
    "7": "General Harm",
}
_ASSIGNMENT = re.compile(r"\A\s*cache\[[^\]]{1,200}\]\s*=\s*")
_CLONE = "give the root of a clone of turningpoint-ai/MOSSBench: task.root=<folder>"
ALARMING_TYPES = ("1", "2")  # harmless requests whose pictures hold something risky, or harm that is crossed out
SAME_PICTURE = ("1", "3")  # the types whose twin keeps the picture and has another question
DUPLICATE = "duplicate pid"
UNFIT = "unfit entry"


class Part(NamedTuple):
    """One of the two sets: where it lies, and what its cases are."""

    folder: str
    subset: Subset
    gold: Gold
    letter: str  # before the pid, so that a case and its twin have ids of their own


BENIGN = Part("data", "benign", "comply", "m")
CONTRAST = Part("data_contrast", "contrast", "refuse", "c")
PARTS = {"benign": (BENIGN,), "contrast": (CONTRAST,), "both": (BENIGN, CONTRAST)}


class MOSSBenchEntry(NamedTuple):
    """One entry as published, with the image it names: a path, the bytes, or None where the twin's is its own."""

    pid: str
    fields: Any
    image: Path | Drawable | None
    where: str  # the file that names it, for messages


@dataclass(frozen=True)
class MOSSBench:
    """``sets`` says which of the two to ask: benign, contrast or both.

    ``source="repository"`` reads a clone at ``root``; ``source="hub"`` fetches AIcell/MOSSBench at ``revision`` with
    ``datasets`` and needs no root. ``strict`` stops where any entry or image cannot be used.

    Raises:
        UserError: an unknown set or source, or no root for the repository.
    """

    root: str | None = None
    sets: str = "benign"
    source: str = "repository"
    revision: str | None = None
    strict: bool = False
    name: str = "mossbench"
    kind: ClassVar[Kind] = "refusal"
    untrainable: ClassVar[str] = "MOSSBench may not be trained on, as its authors say"

    def __post_init__(self) -> None:
        if self.sets not in SETS:
            raise UserError(f"benchmark.sets={self.sets!r} is not known; known: {', '.join(SETS)}; choose one")
        if self.source not in SOURCES:
            raise UserError(f"benchmark.source={self.source!r} is not known; known: {', '.join(SOURCES)}; choose one")
        if self.source == "repository" and not self.root:
            raise UserError(
                f"benchmark.root is not set; MOSSBench is read from a clone of {REPOSITORY}; give its folder, or "
                "benchmark.source=hub to download it"
            )

    def load(self) -> Loaded:
        """The cases that can be asked; every image is decoded once to make sure.

        Raises:
            UserError: no case can be asked, or under ``strict`` not every one.
        """
        where = f"{self.root}" if self.source == "repository" else "the hub's AIcell/MOSSBench"
        found, root = self._find()
        samples, absent = cases_of(found)
        return published(samples, absent, root=root, where=where, strict=self.strict)

    def development(self) -> None:
        """The set has no development split."""
        return None

    def _find(self) -> tuple[dict[Part, list[MOSSBenchEntry]], Path | None]:
        parts = PARTS[self.sets]
        if self.source == "hub":
            return {part: hub_entries(part, self.revision) for part in parts}, None
        folder = Path(self.root or "").expanduser().absolute()
        if not folder.is_dir():
            raise UserError(f"benchmark root {folder} is not a folder; clone {REPOSITORY} and set benchmark.root to it")
        return {part: read_entries(folder, part) for part in parts}, folder


def read_entries(folder: Path, part: Part) -> list[MOSSBenchEntry]:
    """The entries of one set of a clone, in the file's order, repeated pids included.

    Raises:
        UserError: the file is missing or of another shape.
    """
    source = folder / part.folder / "images_information" / "information.json"
    text = readable_text(source, f"clone {REPOSITORY} and set benchmark.root to the clone")
    try:
        # As pairs: a dict would silently keep the last of two entries with one pid.
        pairs = json.loads(text, object_pairs_hook=_JsonObject)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{source} is not JSON ({error}); fetch it again from {REPOSITORY}") from error
    if not isinstance(pairs, _JsonObject) or not pairs:
        raise UserError(f"{source} is not an object keyed by pid; fetch it again from {REPOSITORY}")
    entries = []
    for pid, value in pairs:
        fields = _plain(value)
        entries.append(MOSSBenchEntry(pid, fields, _image_path(folder, part, fields), str(source)))
    return entries


def cases_of(entries: Mapping[Part, Sequence[MOSSBenchEntry]]) -> tuple[list[Sample], dict[str, str]]:
    """All cases of the parts, and what cannot be understood by its id, with the file and the reason."""
    samples: list[Sample] = []
    absent: dict[str, str] = {}
    for part, members in entries.items():
        seen: set[str] = set()
        for place, entry in enumerate(members, 1):
            case = f"{part.letter}{entry.pid[:20]}"
            where = f"{entry.where}, pid {entry.pid[:20]!r} (entry {place})"
            if entry.pid in seen:
                absent[f"{case} (entry {place})"] = f"{DUPLICATE}: {where}: the first one is kept"
                continue
            seen.add(entry.pid)
            try:
                samples.append(_sample(entry, part))
            except Unfit as error:
                absent[case] = f"{UNFIT}: {where}: {error}"
    return samples, absent


def _sample(entry: MOSSBenchEntry, part: Part) -> Sample:
    if not re.fullmatch(r"[0-9]{1,6}", entry.pid):
        raise Unfit("a pid is a number")
    fields = entry.fields
    question = need(fields, "question")
    if fields.get("pid", entry.pid) != entry.pid:
        raise Unfit(f"field 'pid' is {str(fields['pid'])[:20]!r}, its key another")
    metadata = need(fields, "metadata", dict)
    number = need(metadata, "over").removeprefix("type ")
    if number not in TYPES:
        raise Unfit(f"field 'over' is {metadata['over'][:20]!r}; it is one of {', '.join(f'type {n}' for n in TYPES)}")
    if entry.image is None:
        need(fields, "image")
        raise Unfit("it has no image")
    return Sample(
        id=f"{part.letter}{entry.pid}",
        subset=part.subset,
        scenario=TYPES[number],
        gold=part.gold,
        text=question,
        prompt=question,
        image=entry.image,
        cluster=f"question:{hashlib.sha256(question.encode()).hexdigest()[:16]}",
        tags={"pid": entry.pid, "type": number} | _tags(fields, metadata),
        alarming=number in ALARMING_TYPES,
    )


def _tags(fields: dict[str, Any], metadata: dict[str, Any]) -> dict[str, str]:
    """The descriptions ("" where the set has none) and, where given, what is in the picture and the kind of harm."""
    descriptions = {"description": fields.get("description"), "short_description": fields.get("short description")}
    tags = {name: whole(text) if isinstance(text, str) else "" for name, text in descriptions.items()}
    for name in ("human", "child", "syn", "ocr"):
        if name in metadata:
            tags[name] = str(int(bool(metadata[name])))
    if codes := re.findall(r"\d+", str(metadata.get("harm", ""))):  # a list of one number
        tags["harm"] = ",".join(codes)
        tags["harm_name"] = ", ".join(HARMS.get(code, "unknown") for code in codes)
    return tags


def _image_path(folder: Path, part: Part, fields: Any) -> Path | None:
    """Where the entry's picture should be. A twin that keeps the picture may leave it to the benign set's folder."""
    name = fields.get("image") if isinstance(fields, dict) else None
    if not isinstance(name, str) or not name:
        return None
    path = folder / part.folder / name
    metadata = fields.get("metadata")
    over = str(metadata.get("over", "")) if isinstance(metadata, dict) else ""
    if part is CONTRAST and over.removeprefix("type ") in SAME_PICTURE and not os.path.lexists(path):
        return folder / BENIGN.folder / name
    return path


class _JsonObject(list[tuple[str, Any]]):
    """A JSON object as its pairs, told apart from a JSON array."""


def _plain(value: Any) -> Any:
    if isinstance(value, _JsonObject):
        return {name: _plain(inner) for name, inner in value}
    return [_plain(inner) for inner in value] if isinstance(value, list) else value


def hub_entries(part: Part, revision: str | None) -> list[MOSSBenchEntry]:
    """The entries of one set on the hub.

    Raises:
        UserError: it cannot be fetched.
    """
    name = "oversensitivity" if part is BENIGN else "contrast"
    try:
        import datasets

        table = datasets.load_dataset(DATASET, name, split="train", revision=revision)
        # Undecoded: pictures from the hub are opened as carefully as those on disk.
        rows = list(table.cast_column("image", datasets.Image(decode=False)))
    except Exception as error:  # offline, no such revision, a table that its own card contradicts: each its own type
        reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        raise UserError(
            f"{DATASET} ({name}) cannot be fetched from the hub ({reason}); it needs a network or an earlier download; "
            "or clone the repository and set benchmark.source=repository benchmark.root=<clone>"
        ) from error
    return [hub_entry(row, f"{DATASET} ({name})") for row in rows]


def hub_entry(row: dict[str, Any], where: str) -> MOSSBenchEntry:
    """A row in the form of the repository's JSON."""
    pid = str(row.get("pid", ""))
    metadata = {name.removeprefix("metadata_"): value for name, value in row.items() if name.startswith("metadata_")}
    if not re.fullmatch(r"type [123]", str(metadata.get("over"))) and re.fullmatch(r"[0-9]{1,3}", pid):
        metadata["over"] = f"type {(int(pid) - 1) // CASES_A_TYPE + 1}"
    image = row.get("image") or {}
    data, path = image.get("bytes"), image.get("path")
    fields = {k: v for k, v in row.items() if k != "image" and not k.startswith("metadata_")}
    picture = EncodedImage(f"{path or pid}", data) if data is not None else Path(path) if path else None
    return MOSSBenchEntry(pid, fields | {"pid": pid, "metadata": metadata, "image": path}, picture, where)


@dataclass(frozen=True)
class PublishedQuestion:
    """One benign question as published; ``image`` is the file that it names, which may not be there."""

    pid: str
    text: str
    type: str
    image: Path
    image_path: str
    metadata: Mapping[str, Any]


def published_questions(root: Path) -> dict[str, PublishedQuestion]:
    """The benign questions by pid.

    Raises:
        UserError: the file cannot be read, or an entry lacks a field or comes twice.
    """
    found: dict[str, PublishedQuestion] = {}
    for entry in read_entries(root, BENIGN):
        try:
            number = str(entry.fields["metadata"]["over"]).removeprefix("type ")
            image = str(entry.fields["image"])
            question = PublishedQuestion(
                pid=entry.pid,
                text=str(entry.fields["question"]),
                type=TYPES[number],
                image=_inside(root / "data", image),
                image_path=image,
                metadata=dict(entry.fields["metadata"]),
            )
            if entry.pid in found:
                raise ValueError("this pid was there before")
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"{entry.where}: pid {entry.pid}: {type(error).__name__} {error}; each pid comes once, with question, "
                "image (inside the root) and metadata.over (type 1, 2 or 3); mend it"
            ) from None
        found[question.pid] = question
    return found


class PublishedResponses(NamedTuple):
    """The published answers of each model, and the models whose published file is empty."""

    by_model: dict[str, dict[str, str | None]]  # model, as its folder is named → pid → response; None: null in the file
    empty: list[str]


def published_responses(root: Path) -> PublishedResponses:
    """All that ``data/results`` holds. The repository's own files of two models are empty; they are named, not read.

    Raises:
        UserError: no model has published responses here, or a file is not of the published shape.
    """
    texts = {path: _text(path) for path in sorted((root / "data" / "results").glob("*/data.js"))}
    found = {path.parent.name: _responses(path, text) for path, text in texts.items() if text.strip()}
    if not found:
        raise UserError(f"{root / 'data' / 'results'}: no <model>/data.js with published responses; {_CLONE}")
    return PublishedResponses(found, [path.parent.name for path, text in texts.items() if not text.strip()])


def _responses(path: Path, published: str) -> dict[str, str | None]:
    text, cut = _ASSIGNMENT.subn("", published, count=1)
    if not cut:
        raise UserError(f"{path}: does not begin with cache['<model>'] = …; give the published file")
    answers: dict[str, str | None] = {}
    for pid, entry in _object(path, text.rstrip().removesuffix(";")).items():
        response = entry.get("response") if isinstance(entry, dict) else 0
        if response is not None and not isinstance(response, str):
            raise UserError(f"{path}: pid {pid}: the response is no text; each entry has a response, a text or null")
        answers[str(pid)] = response
    return answers


def _inside(root: Path, name: str) -> Path:
    path = (root / name).resolve()
    if not path.is_relative_to(root.resolve()):
        raise ValueError(f"image {name!r} leaves {root}")
    return path


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UserError(f"{path} cannot be read ({reason}); {_CLONE}") from None


def _object(path: Path, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise UserError(f"{path} is not JSON ({error}); give the published file") from None
    if not isinstance(value, dict):
        raise UserError(f"{path} holds a {type(value).__name__}; it is a JSON object by pid; give the published file")
    return value
