"""The rows of a table that is published as .xlsx, or that was saved from one as .csv. Read as text and never run.

openpyxl reads the first sheet of an .xlsx file, a zip of XML, row by row. Formulas are not calculated; the value that
was saved with one is read.
"""

import csv
import io
import warnings
import zipfile
from pathlib import Path
from typing import Any

from experiments.benchmarks.checks import readable_text
from interp.errors import UserError

LARGEST = 64 * 2**20  # bytes of all parts, unpacked; the published tables have less than one thousandth
ROWS, COLUMNS = 100_000, 256  # a sheet may name far more than it holds


def read_rows(path: Path, columns: tuple[str, ...], way_out: str) -> list[tuple[int, dict[str, str]]]:
    """Line (the head is line 1) and cells of every row that is not wholly empty, by the names in the head.

    Raises:
        UserError: there is no such file, it is no such table, or one of ``columns`` is missing.
    """
    lines = _csv_lines(path, way_out) if path.suffix.lower() == ".csv" else workbook_lines(path, way_out)
    head = [cell.strip() for cell in lines[0][1]] if lines else []
    if missing := [name for name in columns if name not in head]:
        raise UserError(f"{path} has no column {missing[0]!r}; the published table has {', '.join(columns)}; {way_out}")
    return [
        (number, dict(zip(head, [*cells, *[""] * len(head)], strict=False)))
        for number, cells in lines[1:]
        if any(cell.strip() for cell in cells)
    ]


def _csv_lines(path: Path, way_out: str) -> list[tuple[int, list[str]]]:
    reader = csv.reader(io.StringIO(readable_text(path, way_out)), strict=True)
    try:
        return [(reader.line_num, cells) for cells in reader]
    except csv.Error as error:
        raise UserError(f"{path} is not CSV ({error}); {way_out}") from error


def workbook_lines(path: Path, way_out: str) -> list[tuple[int, list[str]]]:
    """Line and cells of the head, and of every row of the first sheet that holds anything.

    Raises:
        UserError: there is no such file, or it is no workbook.
    """
    from openpyxl import load_workbook

    try:
        _check_parts(path)
        return _first_sheet(path, load_workbook)
    except FileNotFoundError as error:
        raise UserError(f"{path} is missing; the benchmark is read from it; {way_out}") from error
    except Exception as error:  # openpyxl raises whatever it stumbles over
        raise UserError(f"{path} is not a readable .xlsx table ({error}); {way_out}") from error


def _check_parts(path: Path) -> None:
    """Checks that the parts are small when unpacked, and that none declares entities, which could make it grow.

    zipfile unpacks no more of a part than the size that it declares.
    """
    with zipfile.ZipFile(path) as book:
        if sum(part.file_size for part in book.infolist()) > LARGEST:
            raise ValueError(f"it unpacks to more than {LARGEST // 2**20} MiB")
        for part in book.infolist():
            if b"<!DOCTYPE" in book.read(part):
                raise ValueError(f"{part.filename} declares a document type")


def _first_sheet(path: Path, load_workbook: Any) -> list[tuple[int, list[str]]]:
    """The head and all rows that hold anything."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what it does not know of fonts and filters
        book = load_workbook(path, read_only=True, data_only=True, keep_links=False)
        try:
            sheet = book.worksheets[0]
            sheet.reset_dimensions()  # what a file says of its own size may be wrong
            lines = []
            for number, cells in enumerate(sheet.iter_rows(max_col=COLUMNS, values_only=True), 1):
                if number > ROWS:
                    raise ValueError(f"it has more than {ROWS:,} rows")
                texts = ["" if cell is None else str(cell) for cell in cells]
                width = max((at for at, text in enumerate(texts, 1) if text), default=0)
                if number == 1 or width:
                    lines.append((number, texts[:width]))
            return lines
        finally:
            book.close()
