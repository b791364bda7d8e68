"""One table of text, and every way to show it: terminal, Markdown, CSV, LaTeX, and the report's page.

Whoever has numbers to show turns them into text (``experiments.report.numbers``) and makes one ``Table``; no other
module draws tables. Most are made of records, each a mapping from heading to cell:

    table = Table.of("Arms", [{"arm": "vcd", "AUROC": Cell("0.81", "0.78–0.84")}], legend="AUROC: …")
    console.print(terminal(table))
"""

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from experiments.metrics.findings import Answer
from experiments.report.numbers import MISSING, Interval, fixed, fixed_interval, interval_of, percent, percent_interval


class Narrow(StrEnum):
    """What of a column's cells is shown in a terminal, which has 80 columns."""

    WHOLE = "everything"
    TERSE = "everything, intervals without the zero before the point"
    VALUE = "values without their intervals"
    NOTHING = "nothing"


@dataclass(frozen=True)
class Column:
    """A heading and how its cells stand.

    ``short`` is the heading in a terminal, with line breaks where it may break; ``fold`` the number of characters after
    which a terminal goes on in the next line, 0 for never.
    """

    heading: str
    align: Literal["left", "right"] = "right"
    short: str = ""
    fold: int = 0
    narrow: Narrow = Narrow.WHOLE


@dataclass(frozen=True)
class Cell:
    """A value as text, and what stands below it or behind it.

    ``interval`` is its 95% interval, ``bounds`` the lowest and highest value that the missing cases allow, ``below``
    any other second line ("of 300"). ``tone`` colours it on the page: good, bad or flat.
    """

    value: str
    interval: str = ""
    bounds: str = ""
    below: str = ""
    tone: str = ""

    def __str__(self) -> str:
        """Everything in one line: ``91.2 [88–94] {80–95}``."""
        parts = (self.value, self.below, f"[{self.interval}]" if self.interval else "", self._bounds)
        return " ".join(filter(None, parts))

    @property
    def lines(self) -> list[tuple[str, str]]:
        """The same as (text, rich style) by line."""
        parts = ((self.value, ""), (self.below, ""), (self.interval, "dim"), (self._bounds, "dim"))
        return [part for part in parts if part[0]]

    @property
    def _bounds(self) -> str:
        return f"{{{self.bounds}}}" if self.bounds else ""


@dataclass(frozen=True)
class Row:
    """Cells by column; where there are fewer, ``reason`` says why and takes the room of those that are not there."""

    cells: Sequence[Cell]
    style: Literal["", "bold", "dim"] = ""  # in a terminal
    rule: bool = False  # a line below it, in a terminal
    reason: str = ""
    marked: bool = False  # stands out on the page: the arm under study, our own row beside published ones


@dataclass(frozen=True)
class Table:
    """Rows of text under headings, each of which names one column."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Row] = field(default_factory=tuple)
    legend: str = ""

    def __post_init__(self) -> None:
        headings = [column.heading for column in self.columns]
        assert len(set(headings)) == len(headings), f"headings occur twice: {headings}"
        for row in self.rows:
            assert len(row.cells) == len(headings) or (row.reason and len(row.cells) < len(headings)), row

    @classmethod
    def of(
        cls,
        title: str,
        records: Iterable[Mapping[str, "str | Cell"]],
        *,
        columns: Sequence[Column] | None = None,
        legend: str = "",
    ) -> "Table":
        """A table of records, which give the headings unless ``columns`` does; what a record lacks is empty.

        Without ``columns`` the first column is aligned left and every other right.
        """
        listed = list(records)
        if columns is None:
            headings = list(dict.fromkeys(heading for record in listed for heading in record))
            columns = [Column(name, "right" if at else "left") for at, name in enumerate(headings)]
        cells = ([record.get(column.heading, "") for column in columns] for record in listed)
        return cls(title, columns, [Row([as_cell(one) for one in row]) for row in cells], legend)

    def records(self) -> list[dict[str, str]]:
        """A mapping from heading to text a row."""
        return [dict(zip((c.heading for c in self.columns), line, strict=True)) for line in self.lines()]

    def lines(self) -> list[list[str]]:
        """The text of every row; a reason is followed by empty cells, so that every line has as many."""
        rows_as_text = [[*map(str, row.cells), *([row.reason] if row.reason else [])] for row in self.rows]
        return [[*line, *[""] * (len(self.columns) - len(line))] for line in rows_as_text]


def rate(value: float | None, interval: Interval, bounds: str = "") -> Cell:
    """A fraction of 1 in per cent with its 95% interval: ``54.2 [40–60]``; "too few" where it has none."""
    return Cell(percent(value), percent_interval(interval) or _few(value), bounds)


def number(value: float | None, interval: Interval, digits: int = 2, mark: str = "") -> Cell:
    """A plain number with its 95% interval, "too few" where it has none; ``mark`` follows the number."""
    return Cell(fixed(value, digits) + mark, fixed_interval(interval, digits) or _few(value))


def _few(value: float | None) -> str:
    return "" if value is None else Answer.TOO_FEW.value


def change(entry: Mapping[str, Any] | None, *, digits: int | None = None) -> Cell:
    """A difference with the wider of its intervals, which decides what is said of it; ``MISSING`` without one.

    In points, or as a plain number where ``digits`` are given; "too few" where that is what is said.
    """
    if entry is None:
        return Cell(MISSING)
    ends, few = interval_of(entry), entry.get("statement") == Answer.TOO_FEW
    shown = percent_interval(ends, 1) if digits is None else fixed_interval(ends, digits)
    value = percent(entry["value"], sign=True) if digits is None else fixed(entry["value"], digits, sign=True)
    return Cell(value, shown or (Answer.TOO_FEW.value if few else ""))


def estimate(entry: Mapping[str, Any], digits: int = 2, *, sign: bool = False) -> Cell:
    """A value with its 95% interval, the wider where there is one over templates too: ``0.54 [0.40–0.60]``."""
    return Cell(fixed(entry["value"], digits, sign=sign), fixed_interval(interval_of(entry), digits))


def percentage(entry: Mapping[str, Any]) -> Cell:
    """The same of a fraction of 1, in per cent: ``54% [40–60]``."""
    return Cell(f"{percent(entry['value'], 0)}%", percent_interval((entry["low"], entry["high"])))


def as_cell(value: str | Cell) -> Cell:
    """A text as a cell of its own."""
    return Cell(value) if isinstance(value, str) else value


def say(*shown: RenderableType) -> None:
    """Prints tables as they are, and lines without markup, colours or breaks."""
    console = Console()
    for one in shown:
        if isinstance(one, str):
            console.print(one, highlight=False, soft_wrap=True, markup=False)
        else:
            console.print(one)


def terminal(table: Table, *, stacked: bool = True, legend: bool = True) -> RenderableType:
    """The table for a terminal: intervals below their numbers, or behind them unless ``stacked``; the legend below."""
    # No padding: the box sets columns apart by one space already, and the widest numbers then just fit 80 columns.
    drawn = RichTable(title=Text(table.title, style="bold"), title_justify="left", box=box.SIMPLE_HEAD, padding=0,
                      pad_edge=False, show_edge=False)  # fmt: skip
    shown = [(at, column) for at, column in enumerate(table.columns) if column.narrow is not Narrow.NOTHING]
    for _, column in shown:
        drawn.add_column(Text(column.short or column.heading), justify=column.align, no_wrap=not column.fold,
                         overflow="fold", max_width=column.fold or None)  # fmt: skip
    for row in table.rows:
        cells = [*row.cells, *[Cell(MISSING)] * (len(table.columns) - len(row.cells))]
        drawn.add_row(*(_in_terminal(cells[at], column, stacked) for at, column in shown), style=row.style or None)
        if row.rule:
            drawn.add_section()
    return Group(drawn, Text(table.legend, style="dim")) if legend and table.legend else drawn


def _in_terminal(cell: Cell, column: Column, stacked: bool) -> Text:
    if column.narrow is Narrow.VALUE:
        cell = Cell(cell.value, below=cell.below)
    elif column.narrow is Narrow.TERSE:
        value, interval = re.sub(r"<0\.", "<.", cell.value), re.sub(r"\b0\.", ".", cell.interval)
        cell = Cell(value, interval, cell.bounds, cell.below)
    lines = [Text("\n".join(_folded(text, column.fold)), style) for text, style in cell.lines]
    return Text("\n" if stacked else " ").join(lines)


def _folded(text: str, width: int) -> list[str]:
    """Over as many lines as it needs, broken behind "_", "-", "=" and the like where it can be."""
    lines = [""]
    for piece in re.split(r"(?<=[_\-/=,\s])", text) if width else [text]:
        if lines[-1] and len((lines[-1] + piece).rstrip()) > width:
            lines.append("")
        lines[-1] += piece
    return [line.rstrip() for line in lines]


def markdown(table: Table) -> str:
    """The table in GitHub's Markdown, without title and legend."""

    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(re.sub(r"[\\|<]", r"\\\g<0>", cell).replace("\n", " ") for cell in cells) + " |"

    rule = "|" + "".join(" ---: |" if column.align == "right" else " --- |" for column in table.columns)
    return "\n".join([line(column.heading for column in table.columns), rule, *map(line, table.lines())])


def grouped(rows: Iterable[Mapping[str, Any]], *names: str) -> dict[tuple[Any, ...], list[Mapping[str, Any]]]:
    """The rows by their values under ``names``, in the order in which these occur."""
    found: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in names), []).append(row)
    return found


def by_layer(
    rows: Iterable[Mapping[str, Any]], cell: Callable[[Mapping[str, Any]], str | Cell]
) -> dict[str, str | Cell]:
    """The part of a record that has a cell for each row's layer."""
    return {f"layer {row['layer']}": cell(row) for row in rows}


def csv_text(table: Table) -> str:
    """The table as CSV with every cell quoted; one that a spreadsheet would take for a formula begins with ``'``."""
    file = io.StringIO(newline="")
    writer = csv.writer(file, quoting=csv.QUOTE_ALL)
    for cells in ([column.heading for column in table.columns], *table.lines()):
        writer.writerow([f"'{cell}" if re.match(r"'*[=+\-@\t\r＝＋－＠]", cell) else cell for cell in cells])
    return file.getvalue().removesuffix("\r\n")


_IN_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "−": "$-$", "′": "$'$",
             "–": "--", "…": r"\dots{}", "×": r"$\times$", "Δ": r"$\Delta$", "α": r"$\alpha$", "β": r"$\beta$",
             "κ": r"$\kappa$", "≤": r"$\leq$"} | {sign: f"\\{sign}" for sign in "&%$#_{}"}  # fmt: skip


def latex(table: Table) -> str:
    """The table as a LaTeX ``tabular`` with booktabs' rules, without title and legend."""

    def line(cells: Iterable[str]) -> str:
        return " & ".join("".join(_IN_LATEX.get(sign, sign) for sign in cell) for cell in cells) + r" \\"

    aligned = "".join(column.align[0] for column in table.columns)
    return "\n".join([f"\\begin{{tabular}}{{{aligned}}}", r"\toprule", line(c.heading for c in table.columns),
                      r"\midrule", *map(line, table.lines()), r"\bottomrule", r"\end{tabular}"])  # fmt: skip


def copies(table: Table) -> dict[str, str]:
    """The texts that the page's buttons copy, by the name of the form."""
    return {"Markdown": markdown(table), "CSV": csv_text(table), "LaTeX": latex(table)}
