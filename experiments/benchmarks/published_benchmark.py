"""What the loaders of published benchmarks share, and the one reader of published sets of requests.

A loader settles what it knows of its published files. It skips and counts a case whose picture is missing, and an entry
that no case can be made of. A set of requests is a table or a JSON list, and a map that says what its columns mean. In
a template ``{name}`` is a field of the entry. ``{n}`` is the entry's number from 0 on, ``{line}`` its number as a
reader of the file counts. Knows no benchmark.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from string import Formatter
from typing import Any, ClassVar

from experiments.benchmarks.checks import decode_all, fault, manifest
from experiments.benchmarks.images import cell_picture
from experiments.benchmarks.rows import Unfit, encodable, json_file, need, read_file
from experiments.types import Gold, Kind, Loaded, Sample, Subset
from interp.errors import UserError
from interp.messages import Message

LONGEST_ID = 80  # characters; no published set has more than 30
SIDES: Mapping[str, tuple[Subset, Gold]] = {"safe": ("benign", "comply"), "unsafe": ("contrast", "refuse")}


@dataclass
class Collected:
    """Cases as they are made of a benchmark's files, and cases that cannot run, with the reason.

    No picture may leave ``root`` (None: pictures are no files). ``images``: whether a case is asked only with its
    picture. With ``cluster_on_image`` the cases that show one picture share a cluster. Reasons that are ``expected``
    hold for the published files themselves. The words of a reason before its first colon are its kind.
    """

    root: Path | None
    images: bool = True
    cluster_on_image: bool = False
    expected: tuple[str, ...] = ()
    samples: list[Sample] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)  # case → reason
    _seen: set[str] = field(default_factory=set)
    _where: tuple[object, str] = ("", "")  # file, and place in it, of the entry that is read

    @contextmanager
    def entry(self, case: str, source: object, position: str) -> Iterator[None]:
        """While open, an entry at ``place`` of ``source`` is read. If it is unfit, ``case`` cannot run."""
        self._where = (source, position)
        try:
            yield
        except Unfit as error:
            self._leave_out("unfit entry", case, str(error))

    def add(self, case: str, side: str, *, text: str, prompt: str = "", **about: Any) -> None:
        """Add a case of a refusal benchmark; ``side`` is safe or unsafe, ``prompt`` by default the text.

        ``about`` are further fields of ``Sample``.
        """
        subset, gold = SIDES[side]
        self.keep(Sample(case, subset, gold=gold, text=text, prompt=prompt or text, **about))

    def keep(self, sample: Sample) -> None:
        """Return one case; of two with the same id, the first."""
        if sample.id in self._seen:
            self._leave_out("duplicate id", sample.id, "the first one is kept")
        else:
            self._seen.add(sample.id)
            self.samples.append(sample)

    def _leave_out(self, kind: str, case: str, reason: str) -> None:
        source, position = self._where
        key = f"{case} ({position})" if case in self._seen else case
        self._seen.add(case)
        self.absent[key] = f"{kind}: {source}, {position}, case {case}: {reason}"


@dataclass(frozen=True)
class PublishedBenchmark:
    """A published benchmark in the folder ``root``; under ``strict`` every case of it must be there.

    A loader says in ``GET`` what to get and where to put it, and finds the cases.
    """

    root: str | None = None
    strict: bool = False
    kind: ClassVar[Kind] = "refusal"
    GET: ClassVar[str] = ""

    def find(self) -> Collected:
        """Return all cases that the published files name."""
        raise NotImplementedError

    def load(self) -> Loaded:
        """Return the usable cases; every picture is decoded once as a check.

        Raises:
            UserError: no case can be asked, or under ``strict`` not every one.
        """
        return runnable(self.find(), strict=self.strict, get=self.GET)

    def development(self) -> None:
        """Return None: the set has no development split, so thresholds are cross-fitted."""
        return None

    @property
    def folder(self) -> Path:
        """Return the folder ``root``.

        Raises:
            UserError: none was given, or it is no folder.
        """
        if not self.root:
            raise UserError(f"benchmark.root is not set; {self.GET}; set benchmark.root to that folder")
        folder = Path(self.root).expanduser().absolute()
        if not folder.is_dir():
            raise UserError(f"benchmark root {folder} is not a folder; {self.GET}; set benchmark.root to that folder")
        return folder


def runnable(collected: Collected, *, strict: bool = False, get: str = "") -> Loaded:
    """Return the usable cases. ``get`` says in messages what to download, and to which folder.

    Every image is decoded once. If it cannot be used, it is taken off its case; the tag ``image_note`` says why.

    Raises:
        UserError: nothing can run, or under ``strict`` not everything can.
    """
    pictures, problems = decode_all(collected.samples, collected.root)
    settled, reasons = [], {}
    for position, (sample, picture) in enumerate(zip(collected.samples, pictures, strict=True)):
        problem = problems.get(position)
        note = fault(problem) if problem else collected.absent.get(sample.id, "")
        if note:
            reasons[sample.id] = note
        cluster = f"image:{picture[:16]}" if picture and collected.cluster_on_image else sample.cluster
        tags = {**sample.tags, "image_note": note} if note else sample.tags
        image = sample.image if picture else None
        settled.append(replace(sample, image=image, picture=picture, cluster=cluster, tags=tags))
    reasons |= {case: reason for case, reason in collected.absent.items() if case not in reasons}
    total = len({sample.id for sample in collected.samples} | set(collected.absent))
    faults = {case: reason for case, reason in reasons.items() if reason not in collected.expected}
    if strict and faults:
        case, reason = next(iter(faults.items()))
        counted = f"{len(faults)} of {total} cases cannot run as published (first {case}: {reason})"
        raise UserError(f"{counted}; strict=true asks for all of them; {get} or set strict=false")
    usable = [sample for sample in settled if sample.image is not None or not collected.images]
    if not usable:
        case, reason = next(iter((faults or reasons).items()), ("", "it names no case"))
        counted = f"none of the {total} cases in {collected.root or 'the data set'} can run ({case}: {reason})"
        raise UserError(f"{counted}; at least one is needed; {get} or check benchmark.root")
    there = {sample.id for sample in usable}
    return Loaded(usable, {case: why for case, why in reasons.items() if case not in there}, manifest(usable))


def check_part(option: str, value: str, values: Mapping[str, object] | Sequence[str]) -> None:
    """Raise a ``UserError`` if the option that chooses the questions has a value that is not ``known``."""
    if value not in values:
        raise UserError(f"benchmark.{option}={value!r} is not known; known: {', '.join(values)}; choose one")


def question(text: str) -> str:
    """Return the cluster of all cases with this question."""
    return f"question:{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:16]}"


def first_there(folder: Path, *names: str) -> Path:
    """Return the first file that exists; if none does, the first name, for the message."""
    return next((folder / name for name in names if os.path.isfile(folder / name)), folder / names[0])


Record = Mapping[str, Any]


@dataclass(frozen=True)
class Columns:
    """How the entries of a file become cases.

    Args:
        files: names or patterns in the benchmark's folder; all files of the first that is there are read.
        id: template of the case's id.
        needs: the columns that a table must have.
        key: which list of a JSON object has the entries; "" if the file is a list itself.
        records: makes the records of an entry, one a case; by default the entry itself.
        text, scenario, label: templates; each field in them must be there.
        sides: label → safe or unsafe, or "" for a label that is not asked.
        image: templates of file names. The first file that is there is shown. None for a benchmark of text only.
        cells: columns that name or hold the pictures of a conversation, which are in its first turn.
        rounds: templates of the user's turns of a conversation, between which the model answers.
        before: what the published evaluation says before the text.
        cluster, pair: templates; "" if there is none.
        tags: name of the tag → template; a tag without a value is left out.
    """

    files: tuple[str, ...]
    id: str
    needs: tuple[str, ...] = ()
    key: str = ""
    records: Callable[[Record], list[Record]] | None = None
    text: str = "{text}"
    scenario: str = "{scenario}"
    label: str = "{side}"
    sides: Mapping[str, str] = field(default_factory=lambda: {side: side for side in SIDES})
    image: tuple[str, ...] = ()
    cells: tuple[str, ...] = ()
    rounds: tuple[str, ...] = ()
    before: str = ""
    cluster: str = ""
    pair: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)


Parts = Mapping[str, tuple[Columns, ...]]  # value of an option → the maps that it reads


@dataclass(frozen=True)
class PublishedSet(PublishedBenchmark):
    """A benchmark that column maps describe: ``PARTS`` has the maps of each value of the option ``OPTION``.

    Raises:
        UserError: the option has an unknown value.
    """

    OPTION: ClassVar[str] = ""
    PARTS: ClassVar[Parts] = {}
    CLUSTER_ON_IMAGE: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.OPTION:
            check_part(self.OPTION, getattr(self, self.OPTION), self.PARTS)

    def find(self) -> Collected:
        """Return all cases that the files name."""
        maps = self.PARTS[getattr(self, self.OPTION) if self.OPTION else ""]
        pictured = any(columns.image or columns.cells for columns in maps)
        cases = Collected(self.folder if pictured else None, pictured, self.CLUSTER_ON_IMAGE)
        for columns in maps:
            _read(cases, self.folder, columns, self.GET)
        return cases


def _read(cases: Collected, folder: Path, columns: Columns, get: str) -> None:
    for number, (source, where, entry) in enumerate(_entries(cases, folder, columns, get)):
        about = {"n": number, "line": where.split()[1], "where": where}
        record: Record = {**entry, **about} if isinstance(entry, Mapping) else about
        records: list[Record] = []
        with cases.entry(_filled(columns.id, record)[:LONGEST_ID].rstrip(".-"), source, where):
            if record is about:
                raise Unfit("not an object with fields")
            records = [record] if columns.records is None else columns.records(record)
        for record in records:
            case = encodable(_filled(columns.id, record))[:LONGEST_ID]
            with cases.entry(case, source, where):
                _add(cases, folder, columns, case, record)


def _entries(cases: Collected, folder: Path, columns: Columns, get: str) -> Iterator[tuple[Path, str, Any]]:
    """Return file, position and entry of all entries. Anything else is counted as absent."""
    patterns = (sorted(folder.glob(name)) for name in columns.files)
    for source in next(filter(None, patterns), [folder / columns.files[0]]):
        if source.suffix == ".json":
            published = json_file(source, dict if columns.key else list, get)
            entries = published.get(columns.key) if columns.key else published
            if not isinstance(entries, list):
                raise UserError(f"{source} has no list {columns.key!r}, as the published file has; {get}")
            where = f" of {columns.key!r}" if columns.key else ""
            yield from ((source, f"entry {n}{where}", entry) for n, entry in enumerate(entries, 1))
        else:
            rows = read_file(source, columns.needs, get=get)
            for position, _, reason in rows.problems:
                cases.absent[f"row ({position})"] = f"unfit entry: {source}, {position}: {reason}"
            yield from ((source, position, row) for position, row in rows.rows)


def _add(cases: Collected, folder: Path, columns: Columns, case: str, record: Record) -> None:
    """Add the case of one record.

    Raises:
        Unfit: a field is missing, or has a value that no case can have.
    """
    scenario, text = (_filled(template, record, strict=True) for template in (columns.scenario, columns.text))
    label = _filled(columns.label, record, strict=True).strip()
    if label not in columns.sides:
        raise Unfit(f"label {label[:20]!r} is not known; it is one of {', '.join(columns.sides)}")
    tags = {name: value for name, template in columns.tags.items() if (value := _filled(template, record))}
    names = [_filled(template, record, strict=True) for template in columns.image]
    cluster, pair = _filled(columns.cluster, record), _filled(columns.pair, record) or None
    pictures: list[Any] = [first_there(folder, *names)] if names else []
    pictures += [cell_picture(record.get(name), pair or case, folder, "benchmark") for name in columns.cells]
    turns: list[Message] = []
    for template in columns.rounds:
        parts = (*pictures, _filled(template, record, strict=True))
        turns += [Message("assistant"), Message("user", parts[-1:])] if turns else [Message("user", parts)]
    if side := columns.sides[label]:
        cases.add(case, side, scenario=scenario.strip(), text=text, prompt=columns.before + text, cluster=cluster,
                  image=next(iter(pictures), None), pair=pair, tags=tags, turns=tuple(turns))  # fmt: skip


def _filled(template: str, record: Record, *, strict: bool = False) -> str:
    """Return the template with the fields of the record in it.

    If ``strict``, a field must hold text. Otherwise what is no short value is an empty text.

    Raises:
        Unfit: under ``strict`` a field holds no text.
    """
    parts = []
    for words, name, *_ in Formatter().parse(template):
        parts.append(words)
        if name:
            value = need(record, name) if strict else record.get(name)
            parts.append(encodable(str(value)) if isinstance(value, str | int | float) else "")
    return "".join(parts)
