"""The files of benchmarks: the rows of a table, with their line in the file, JSON, and text.

Published benchmarks and users' tables are read alike, as if the file were hostile. Text is data, nothing is unpickled,
and no code of a data set is run. pandas reads the first sheet of a workbook (.xlsx). It reads the saved value of a
formula and calculates nothing. Knows nothing of what the columns mean.
"""

import csv
import io
import json
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.types import Problem
from interp.errors import UserError

ENDINGS = (".jsonl", ".csv", ".tsv", ".parquet", ".xlsx")
DELIMITERS = (",", ";", "\t")  # spreadsheets in half of Europe write semicolons
ROWS = 100_000  # a sheet may name far more than it holds
LONGEST_CELL = 2**30  # characters that the csv module reads; what is too long to ask is told of its case
AS_UTF_8 = "save the table as UTF-8 (0xff or 0xfe at its start means UTF-16)"


class Rows(NamedTuple):
    """The rows, by column; the columns there are; the lines that are no rows; and where paths of pictures start."""

    rows: list[tuple[str, dict[str, Any]]]  # where each stands, and its values by column
    columns: list[str]
    problems: list[Problem]
    root: Path


def read_file(path: Path, wanted: Collection[str], *, option: str = "benchmark", get: str = "") -> Rows:
    """Return the rows of a file by its ending (default: JSON lines), with at least the columns ``wanted``.

    ``option`` is what the table's options are called in messages. With ``get``, what to get and where to put it, all
    that is ``wanted`` must be there.

    Raises:
        UserError: there is no such file, or it cannot be read as what its name says; or it lacks a published column.
    """
    readers: dict[str, Callable[[Path, Collection[str]], tuple[list[Any], list[str], list[Problem]]]] = {
        ".jsonl": _json_lines,
        ".csv": _csv,
        ".tsv": _csv,
        ".parquet": _parquet,
        ".arrow": _saved,
        ".xlsx": _workbook,
    }
    try:
        if get and not path.exists():
            raise UserError(f"{path} is missing; {get}")
        if not path.exists():
            raise UserError(f"{option}.path={path}: there is no such file; give a table in {', '.join(ENDINGS)}")
        if not path.is_file():  # reading a pipe or a device would wait for ever
            raise UserError(f"{option}.path={path}: is no regular file; give a table in {', '.join(ENDINGS)}")
        ending = path.suffix.lower()
        if ending != ".xlsx" and _begins(path, b"PK\x03\x04"):
            raise UserError(
                f"{path}: is a workbook (by its first bytes) with another ending; rename it to "
                f"{path.with_suffix('.xlsx').name}, or save it as CSV in UTF-8"
            )
        rows, columns, problems = readers.get(ending, _json_lines)(path, wanted)
    except (OSError, ValueError, MemoryError) as error:
        way_out = get or "save it again, or give another file"
        raise UserError(f"{path} cannot be read ({_brief(error)}); {way_out}") from error
    if get and (rows or not problems) and (missing := [name for name in wanted if name not in columns]):
        raise UserError(f"{path} has no column {missing[0]!r}; it needs {', '.join(wanted)}; {get}")
    if not rows and not problems and not get:
        raise UserError(f"{path} has no rows; give at least one case a row")
    return Rows(rows, columns, problems, path.absolute().parent)


def published_rows(path: Path, columns: Collection[str]) -> list[tuple[str, dict[str, Any]]]:
    """Return the places and rows of a file with these columns; None where a cell is empty.

    Raises:
        UserError: it cannot be read, or is not as it is published.
    """
    way_out = "take the file as it is published"
    rows = read_file(path, columns, get=way_out)
    if rows.problems or not rows.rows:
        wrong = f"{rows.problems[0].location}: {rows.problems[0].reason}" if rows.problems else "it has no rows"
        raise UserError(f"{path}: {wrong}; {way_out}")
    return rows.rows


def readable_text(path: Path, way_out: str, *, newline: str | None = None) -> str:
    """Return the text of a UTF-8 file, with or without byte order mark; ``newline=""`` keeps line ends.

    Raises:
        UserError: there is no such file, or it is not UTF-8.
    """
    try:
        with path.open(encoding="utf-8-sig", newline=newline) as file:
            return file.read()
    except FileNotFoundError as error:
        raise UserError(f"{path} is missing; {way_out}") from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{path}, line {line}: is not UTF-8 (byte {error.object[error.start]:#04x}); {way_out}"
        ) from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); {way_out}") from error


def json_file(path: Path, kind: type, way_out: str, **options: Any) -> Any:
    """Return the value of a JSON file, which is a list or an object as ``kind`` says; ``options`` are ``json.loads``'s.

    Raises:
        UserError: there is no such file, or it holds something else.
    """
    return json_value(readable_text(path, way_out), path, kind, way_out, **options)


def json_value(text: str, path: Path, kind: type, way_out: str, **options: Any) -> Any:
    """Return the value as ``json_file`` does, from the text of the file or of a part of it."""
    try:
        value = json.loads(text, **options)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON ({error}); {way_out}") from error
    if not isinstance(value, kind) or not value:
        name = "list" if kind is list else "object"
        raise UserError(f"{path} must be a JSON {name} with entries; {way_out}")
    return value


class Unfit(Exception):
    """An entry of a benchmark's file that no case can be made of; its text says why."""


def json_cell(value: Any, field: str) -> Any:
    """Return the value of a cell that may hold it as JSON.

    Raises:
        Unfit: its text is no JSON.
    """
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError) as error:
        raise Unfit(f"{field}: is not JSON ({error})") from error


def need(entry: Any, field: str, kind: type = str) -> Any:
    """Return the value of ``field`` in a JSON object or CSV row, of that type and not blank.

    Raises:
        Unfit: there is no such value.
    """
    if not isinstance(entry, Mapping):
        raise Unfit("not an object with fields")
    if field not in entry or entry[field] is None:
        raise Unfit(f"no field {field!r}")
    value = entry[field]
    if not isinstance(value, kind) or (isinstance(value, str) and not value.strip()):
        raise Unfit(f"field {field!r} is {str(value)[:40]!r}, which is no {'text' if kind is str else kind.__name__}")
    if isinstance(value, str) and value != encodable(value):
        raise Unfit(f"field {field!r} holds half a character, which no file of UTF-8 can")
    return value


def encodable(text: str) -> str:
    """Return the text with halves of surrogate pairs, which JSON can spell, replaced by '?'."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _begins(path: Path, first: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(first)) == first


def _brief(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


def _json_lines(path: Path, _: Collection[str]) -> tuple[list[Any], list[str], list[Problem]]:
    rows: list[Any] = []
    columns: dict[str, None] = {}
    problems = []
    for number, line in enumerate(readable_text(path, AS_UTF_8, newline="").split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            problems.append(Problem(f"line {number}", "", "row: is not JSON"))
            continue
        if isinstance(row, dict):
            columns.update(dict.fromkeys(row))
            rows.append((f"line {number}", row))
        else:
            problems.append(Problem(f"line {number}", "", "row: is no JSON object with the columns as its keys"))
    return rows, list(columns), problems


def _csv(path: Path, wanted: Collection[str]) -> tuple[list[Any], list[str], list[Problem]]:
    text = readable_text(path, AS_UTF_8, newline="")
    first = text.partition("\n")[0]
    delimiter = max(DELIMITERS, key=lambda one: len({cell.strip(' "\r') for cell in first.split(one)} & set(wanted)))
    csv.field_size_limit(LONGEST_CELL)
    try:
        lines = list(_csv_lines(text, delimiter))
    except csv.Error as error:
        raise UserError(f"{path}: is not CSV ({error}); save it again, with quotes around cells of text") from None
    return _from_cells(path, lines, wanted, delimiter)


def _from_cells(
    path: Path, lines: Sequence[tuple[int, list[str]]], wanted: Collection[str], delimiter: str
) -> tuple[list[Any], list[str], list[Problem]]:
    """Return the rows below the line of names; an empty or missing cell is None."""
    columns = [cell.strip() for cell in lines[0][1]] if lines else []
    _once(path, columns, wanted)
    rows, problems = [], []
    for number, cells in lines[1:]:
        if len(cells) > len(columns):
            rule = f"row: has {len(cells)} cells, and the first line names {len(columns)} columns"
            problems.append(Problem(f"line {number}", "", f"{rule}; put quotes around a cell with {delimiter!r}"))
        else:
            by_column = {name: cell or None for name, cell in zip(columns, cells, strict=False)}
            rows.append((f"line {number}", dict.fromkeys(columns) | by_column))
    return rows, columns, problems


def _once(path: Path, columns: list[str], wanted: Collection[str]) -> None:
    if twice := sorted({name for name in columns if name in wanted and columns.count(name) > 1}):
        raise UserError(f"{path}: has the column {twice[0]!r} more than once; rename one of them")


def _csv_lines(text: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Return the first line of each row, and its cells; a cell may have several lines."""
    table = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    begins = 1
    for cells in table:
        if cells:
            yield begins, cells
        begins = table.line_num + 1


def _workbook(path: Path, wanted: Collection[str]) -> tuple[list[Any], list[str], list[Problem]]:
    import pandas
    from openpyxl.utils.escape import unescape

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what openpyxl does not know of fonts and filters
            table = pandas.read_excel(path, header=None, dtype=str, na_filter=False, nrows=ROWS + 1, engine="openpyxl")
        if len(table) > ROWS:
            raise ValueError(f"it has more than {ROWS:,} rows")
        table = table.map(unescape)  # control characters, as Excel writes them: a line break is _x000D_
    except Exception as error:  # pandas and openpyxl raise whatever they stumble over
        way_out = "save it again, or save its first sheet as CSV in UTF-8"
        raise UserError(f"{path} is not a readable .xlsx table ({error}); {way_out}") from error
    lines = [(number, cells) for number, cells in enumerate(table.to_numpy().tolist(), 1) if any(cells)]
    return _from_cells(path, lines, wanted, ",")


def _parquet(path: Path, wanted: Collection[str]) -> tuple[list[Any], list[str], list[Problem]]:
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path)
        columns = [str(name) for name in file.schema_arrow.names]
        _once(path, columns, wanted)
        rows = _whole(file.read(columns=[name for name in columns if name in wanted] or None))
    except UserError:
        raise
    except Exception as error:  # the decoders raise whatever bad bytes provoke
        raise UserError(f"{path} is not a complete Parquet file ({_brief(error)}); write it again") from error
    return rows, columns, []


def _saved(path: Path, _: Collection[str]) -> tuple[list[Any], list[str], list[Problem]]:
    """Read a file that ``datasets`` saved."""
    import pyarrow

    with pyarrow.memory_map(str(path)) as source:
        table = pyarrow.ipc.open_stream(source).read_all()
        return _whole(table), table.column_names, []


def _whole(table: Any) -> list[Any]:
    table.validate(full=True)  # a damaged file may name places outside its own memory
    return [(f"row {number}", row) for number, row in enumerate(table.to_pylist(), 1)]
