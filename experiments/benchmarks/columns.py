"""The one reader of published sets of requests: a table or a JSON list, and a map that says what its columns mean.

In a template ``{name}`` is a field of the entry. ``{n}`` is the entry's number from 0 on, ``{line}`` its number
as a reader of the file counts. Knows no benchmark.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import Formatter
from typing import Any, ClassVar

from experiments.benchmarks.published_benchmark import SIDES, Collected, PublishedBenchmark, check_part, first_there
from experiments.benchmarks.rows import Unfit, encodable, json_file, need, read_file
from interp.errors import UserError

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Columns:
    """How the entries of a file become cases.

    Args:
        files: names in the benchmark's folder; the first that is there is read.
        id: template of the case's id.
        needs: the columns that a table must have.
        key: which list of a JSON object has the entries; "" if the file is a list itself.
        records: makes the records of an entry, one a case; by default the entry itself.
        text, scenario, label: templates; each field in them must be there.
        sides: label → safe or unsafe, or "" for a label that is not asked.
        image: templates of file names. The first file that is there is shown. None for a benchmark of text only.
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
        pictured = any(columns.image for columns in maps)
        cases = Collected(self.folder if pictured else None, pictured, self.CLUSTER_ON_IMAGE)
        for columns in maps:
            _read(cases, self.folder, columns, self.GET)
        return cases


def _read(cases: Collected, folder: Path, columns: Columns, get: str) -> None:
    for number, (source, where, entry) in enumerate(_entries(cases, folder, columns, get)):
        about = {"n": number, "line": where.split()[1]}
        records: list[Record] = []
        with cases.entry(_filled(columns.id, about).rstrip(".-"), source, where):
            if not isinstance(entry, Mapping):
                raise Unfit("not an object with fields")
            whole_entry = {**entry, **about}
            records = [whole_entry] if columns.records is None else columns.records(whole_entry)
        for record in records:
            case = encodable(_filled(columns.id, record))[:60]  # no published set has more than 30 characters
            with cases.entry(case, source, where):
                _add(cases, folder, columns, case, record)


def _entries(cases: Collected, folder: Path, columns: Columns, get: str) -> Iterator[tuple[Path, str, Any]]:
    """Return file, position and entry of all entries. Anything else is counted as absent."""
    source = first_there(folder, *columns.files)
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
    picture = first_there(folder, *names) if names else None
    cluster, pair = _filled(columns.cluster, record), _filled(columns.pair, record) or None
    if side := columns.sides[label]:
        cases.add(case, side, scenario=scenario.strip(), text=text, prompt=columns.before + text, image=picture,
                  cluster=cluster, pair=pair, tags=tags)  # fmt: skip


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
