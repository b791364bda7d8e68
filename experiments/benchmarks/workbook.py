"""The rows of a table that is published as .xlsx, or that was saved from one as .csv. Read as text and never run.

An .xlsx file is a zip of XML: ``xl/sharedStrings.xml`` holds the texts, ``xl/worksheets/sheet1.xml`` the first sheet's
cells. Formulas are not calculated; the value that was saved with one is read.
"""

import csv
import io
import re
import zipfile
from pathlib import Path
from xml.etree import ElementTree

from experiments.benchmarks.preflight import readable_text
from interp.errors import UserError

LARGEST = 64 * 2**20  # bytes of one unpacked part; the published tables have less than one thousandth
_CELL = re.compile(r"([A-Z]{1,3})[0-9]{1,7}")


def read_rows(path: Path, columns: tuple[str, ...], way_out: str) -> list[tuple[int, dict[str, str]]]:
    """Line (the head is line 1) and cells of every row that is not wholly empty, by the names in the head.

    Raises:
        UserError: there is no such file, it is no such table, or one of ``columns`` is missing.
    """
    lines = _csv_lines(path, way_out) if path.suffix.lower() == ".csv" else _xlsx_lines(path, way_out)
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


def _xlsx_lines(path: Path, way_out: str) -> list[tuple[int, list[str]]]:
    try:
        with zipfile.ZipFile(path) as book:
            names = set(book.namelist())
            texts = _shared(_part(book, "xl/sharedStrings.xml")) if "xl/sharedStrings.xml" in names else []
            return _cells(_part(book, "xl/worksheets/sheet1.xml"), texts)
    except FileNotFoundError as error:
        raise UserError(f"{path} is missing; the benchmark is read from it; {way_out}") from error
    except (OSError, zipfile.BadZipFile, ElementTree.ParseError, KeyError, ValueError, IndexError) as error:
        raise UserError(f"{path} is not a readable .xlsx table ({error}); {way_out}") from error


def _part(book: zipfile.ZipFile, name: str) -> ElementTree.Element:
    with book.open(name) as handle:
        data = handle.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise ValueError(f"{name} unpacks to more than {LARGEST // 2**20} MiB")
    if b"<!DOCTYPE" in data[:1024]:  # a workbook has none; entities could make it grow
        raise ValueError(f"{name} declares a document type")
    return ElementTree.fromstring(data)


def _shared(root: ElementTree.Element) -> list[str]:
    return [_text(item) for item in root if _tag(item) == "si"]


def _text(item: ElementTree.Element) -> str:
    """The text of an item, its runs of different fonts joined; phonetic hints are no text of it."""
    runs = [child for child in item if _tag(child) in ("t", "r")]
    return "".join(run.text or "" if _tag(run) == "t" else _text(run) for run in runs)


def _cells(root: ElementTree.Element, texts: list[str]) -> list[tuple[int, list[str]]]:
    lines: list[tuple[int, list[str]]] = []
    for row in (node for node in root.iter() if _tag(node) == "row"):
        cells: dict[int, str] = {}
        for node in (node for node in row if _tag(node) == "c"):
            column = _column(node.get("r", ""), len(cells))
            cells[column] = _value(node, texts)
        number = int(row.get("r") or (lines[-1][0] + 1 if lines else 1))
        lines.append((number, [cells.get(at, "") for at in range(max(cells, default=-1) + 1)]))
    return lines


def _value(node: ElementTree.Element, texts: list[str]) -> str:
    kind = node.get("t", "n")
    if kind == "inlineStr":
        return "".join(_text(child) for child in node if _tag(child) == "is")
    value = next((child.text or "" for child in node if _tag(child) == "v"), "")
    return texts[int(value)] if kind == "s" and value else value


def _column(place: str, following: int) -> int:
    """ "B7" → 1; a cell without a place follows the one before it."""
    found = _CELL.fullmatch(place)
    if found is None:
        return following
    number = 0
    for letter in found[1]:
        number = number * 26 + ord(letter) - ord("A") + 1
    if number > 16_384:
        raise ValueError(f"cell {place} lies beyond the last column of any workbook")
    return number - 1


def _tag(node: ElementTree.Element) -> str:
    return node.tag.rpartition("}")[2]
