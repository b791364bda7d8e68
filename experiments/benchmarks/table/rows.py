"""The rows of a table in a file or on the hub, as plain values with the line that they stand in.

Read as if the file were hostile: text is data, nothing is unpickled, no code of a data set is run. Knows nothing of
what the columns mean.
"""

import csv
import io
import json
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from experiments.benchmarks.workbook import workbook_lines
from experiments.types import Problem
from interp.errors import UserError

ENDINGS = (".jsonl", ".csv", ".parquet", ".xlsx")
ZIP = b"PK\x03\x04"  # the first bytes of a workbook, whatever it is called
DELIMITERS = (",", ";", "\t")  # spreadsheets in half of Europe write semicolons
LONGEST_CELL = 2**30  # characters that the csv module reads; what is too long to ask is told of its case
# Kinds of data set on the hub: of these the files are read and nothing else.
HUB_FORMATS = ("parquet", "csv", "json", "arrow", "imagefolder")


class Rows(NamedTuple):
    """The rows, by column; the columns there are; the lines that are no rows; and where paths of pictures start."""

    rows: list[tuple[str, dict[str, Any]]]  # where each stands, and its values by column
    columns: list[str]
    problems: list[Problem]
    root: Path | None


def read_file(path: Path, wanted: Collection[str], *, option: str = "benchmark") -> Rows:
    """The rows of a file of one of ``ENDINGS``, with at least those of its columns that are ``wanted``.

    ``option`` is what the table's options are called in messages.

    Raises:
        UserError: there is no such file, or it cannot be read as what its name says.
    """
    readers: dict[str, Callable[[Path, Collection[str]], tuple[list[Any], list[str], list[Problem]]]] = {
        ".jsonl": _json_lines,
        ".csv": _csv,
        ".parquet": _parquet,
        ".xlsx": _workbook,
    }
    try:
        if not path.exists():
            raise UserError(f"{option}.path={path}: there is no such file; give a table in {', '.join(ENDINGS)}")
        if not path.is_file():  # reading a pipe or a device would wait for ever
            raise UserError(f"{option}.path={path}: is no regular file; give a table in {', '.join(ENDINGS)}")
        ending = path.suffix.lower()
        if ending != ".xlsx" and _begins(path, ZIP):
            raise UserError(f"{path}: is by its first bytes a workbook, which its name does not say; call it "
                            f"{path.with_suffix('.xlsx').name}, or save it as CSV in UTF-8")  # fmt: skip
        rows, columns, problems = readers[ending](path, wanted)
    except (OSError, ValueError, MemoryError) as error:
        raise UserError(f"{path} cannot be read ({_brief(error)}); save it again, or give another file") from error
    if not rows and not problems:
        raise UserError(f"{path} has no rows; give at least one case a row")
    return Rows(rows, columns, problems, path.absolute().parent)


def read_hub(
    name: str, configuration: str | None, revision: str | None, split: str, *, option: str = "benchmark"
) -> Rows:
    """The rows of one split of a data set on the hub, pictures as their bytes. ``option`` as in ``read_file``.

    Raises:
        UserError: it cannot be fetched, or is of a kind that is more than files of data.
    """
    try:
        import datasets

        builder = datasets.load_dataset_builder(name, configuration, revision=revision)
        form = type(builder).__module__.split(".")[-1]
        if form in HUB_FORMATS:
            table = datasets.load_dataset(name, configuration, split=split, revision=revision)
            for column, feature in table.features.items():
                if isinstance(feature, datasets.Image):  # opened here as carefully as pictures on disk
                    table = table.cast_column(column, datasets.Image(decode=False))
            rows = [(f"row {number}", dict(row)) for number, row in enumerate(table, 1)]
            return Rows(rows, list(table.column_names), [], Path(datasets.config.HF_CACHE_HOME))
    except Exception as error:  # offline, no such name, revision or split, a damaged file: each its own type
        raise UserError(
            f"the hub's {name} ({split}) cannot be fetched ({_brief(error)}); look at {option}.path, "
            f"{option}.configuration, {option}.split and {option}.revision, or download it and give a file"
        ) from error
    raise UserError(
        f"the hub's {name} is a data set of the kind {form}; only files of {', '.join(HUB_FORMATS)} are read; "
        "download it and give a table in a file"
    )


def _begins(path: Path, first: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(first)) == first


def _brief(error: BaseException) -> str:
    said = str(error).strip().splitlines()
    return f"{type(error).__name__}: {said[0][:200]}" if said else type(error).__name__


def _text(path: Path) -> str:
    data = path.read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        said = "it looks like UTF-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else f"byte {data[error.start]:#04x}"
        raise UserError(f"{path}, line {line}: is not UTF-8 ({said}); save the table as UTF-8") from None


def _json_lines(path: Path, _: Collection[str]) -> tuple[list[Any], list[str], list[Problem]]:
    rows: list[Any] = []
    columns: dict[str, None] = {}
    problems = []
    for number, line in enumerate(_text(path).split("\n"), 1):
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
    text = _text(path)
    first = text.partition("\n")[0]
    delimiter = max(DELIMITERS, key=lambda one: len({cell.strip(' "\r') for cell in first.split(one)} & set(wanted)))
    csv.field_size_limit(LONGEST_CELL)
    try:
        lines = list(_csv_lines(text, delimiter))
    except csv.Error as error:
        raise UserError(f"{path}: is not CSV ({error}); save it again, with quotes around cells of text") from None
    columns = [cell.strip() for cell in lines[0][1]] if lines else []
    if twice := sorted({name for name in columns if name in wanted and columns.count(name) > 1}):
        raise UserError(f"{path}: has the column {twice[0]!r} more than once; rename one of them")
    rows, problems = [], []
    for number, cells in lines[1:]:
        if len(cells) > len(columns):
            rule = f"row: has {len(cells)} cells, and the first line names {len(columns)} columns"
            problems.append(Problem(f"line {number}", "", f"{rule}; put quotes around a cell with {delimiter!r}"))
        else:
            rows.append((f"line {number}", {name: cell or None for name, cell in zip(columns, cells, strict=False)}))
    return rows, columns, problems


def _csv_lines(text: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """The line in which each row begins, and its cells; a cell may go on over lines."""
    table = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    begins = 1
    for cells in table:
        if cells:
            yield begins, cells
        begins = table.line_num + 1


def _workbook(path: Path, wanted: Collection[str]) -> tuple[list[Any], list[str], list[Problem]]:
    lines = workbook_lines(path, "save it again, or save its first sheet as CSV in UTF-8")
    columns = [cell.strip() for cell in lines[0][1]] if lines else []
    if twice := sorted({name for name in columns if name in wanted and columns.count(name) > 1}):
        raise UserError(f"{path}: has the column {twice[0]!r} more than once; rename one of them")
    filled = ((number, [*cells, *[""] * len(columns)]) for number, cells in lines[1:])
    rows = [(f"line {number}", {name: cell or None for name, cell in zip(columns, cells, strict=False)})
            for number, cells in filled]  # fmt: skip
    return rows, columns, []


def _parquet(path: Path, wanted: Collection[str]) -> tuple[list[Any], list[str], list[Problem]]:
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path)
        columns = [str(name) for name in file.schema_arrow.names]
        if twice := sorted({name for name in columns if name in wanted and columns.count(name) > 1}):
            raise UserError(f"{path}: has the column {twice[0]!r} more than once; rename one of them")
        table = file.read(columns=[name for name in columns if name in wanted])
        table.validate(full=True)  # a damaged file may name places outside its own memory
        rows = [(f"row {number}", row) for number, row in enumerate(table.to_pylist(), 1)]
    except UserError:
        raise
    except Exception as error:  # the decoders raise whatever bad bytes provoke
        raise UserError(f"{path} is not a whole Parquet file ({_brief(error)}); write it again") from error
    return rows, columns, []
