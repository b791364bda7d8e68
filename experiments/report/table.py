"""One table as a DataFrame of cells, and every view of it: terminal, page, Markdown, CSV and LaTeX.

Whoever has numbers to show makes cells of them (``rate``, ``number``, ``change``, …) and one ``Table`` of records, each
a mapping from heading to cell; no other module draws tables.

    table = Table.of("Arms", [{"arm": "vcd", "AUROC": Cell("0.81", "0.78–0.84")}], legend="AUROC: …")
    console.print(terminal(table))
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from csv import QUOTE_ALL
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Literal

import pandas as pd
from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from experiments.metrics.findings import Answer
from experiments.report.numbers import MISSING, Interval, fixed, fixed_interval, interval_of, percent, percent_interval
from experiments.runs.labels import safe_cell


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
    any other second line ("of 300"). ``tone`` colours it on the page: good, bad or flat. A ``reason`` why a row has no
    more cells takes the room of those that are not there.
    """

    value: str
    interval: str = ""
    bounds: str = ""
    below: str = ""
    tone: str = ""
    reason: bool = False

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


Record = Mapping[str, "str | Cell"]


@dataclass(frozen=True)
class Table:
    """A frame of cells, a row a record and a column a heading; ``marked`` rows stand out: the arm under study."""

    title: str
    frame: pd.DataFrame
    columns: Sequence[Column]
    marked: Sequence[bool] = ()
    legend: str = ""

    @classmethod
    def of(
        cls,
        title: str,
        records: Iterable[Record],
        *,
        columns: Sequence[Column] | None = None,
        layout: Iterable[Column] = (),
        marked: Sequence[bool] = (),
        legend: str = "",
    ) -> "Table":
        """A table of records; what a record lacks is empty.

        ``columns`` are all of it, in their order. Without, the records give the headings, and columns that are not in
        ``layout`` stand as usual: the first aligned left, every other right.
        """
        listed = list(records)
        if columns is None:
            own = {column.heading: column for column in layout}
            headings = dict.fromkeys(heading for record in listed for heading in record)
            columns = [own.get(name, Column(name, "right" if at else "left")) for at, name in enumerate(headings)]
        shown = [[as_cell(record.get(column.heading, "")) for column in columns] for record in listed]
        names = [column.heading for column in columns]
        assert len(set(names)) == len(names), f"headings occur twice: {names}"
        return cls(title, pd.DataFrame(shown, columns=names, dtype=object), columns, marked, legend)

    def only(self, places: Sequence[int]) -> "Table":
        """These rows alone."""
        marked = [self.rows[at][0] for at in places]
        return replace(self, frame=self.frame.iloc[places].reset_index(drop=True), marked=marked)

    def split(self, wide: int) -> list["Table"]:
        """The table, or several of about as many columns each, all led by the first: at most ``wide`` characters."""
        needs = [max(map(len, (name, *column))) for name, column in self.text.items()]
        parts = _packed(needs, wide)
        while wide and len(narrower := _packed(needs, wide - 1)) == len(parts):
            parts, wide = narrower, wide - 1
        return [
            replace(self, frame=self.frame.iloc[:, part], columns=[self.columns[at] for at in part]) for part in parts
        ]

    @property
    def rows(self) -> list[tuple[bool, list[Cell]]]:
        """Whether each row is marked, and its cells."""
        marked = [*self.marked, *[False] * (len(self.frame) - len(self.marked))]
        return list(zip(marked, self.frame.to_numpy().tolist(), strict=True))

    @property
    def text(self) -> pd.DataFrame:
        """The frame with every cell as a line of text."""
        return self.frame.map(str)

    def records(self) -> list[dict[str, str]]:
        """A mapping from heading to text a row."""
        return self.text.to_dict("records")


def _packed(needs: Sequence[int], wide: int) -> list[list[int]]:
    """Places in turn, the first in every part, as many as have ``wide`` characters together; two at least."""
    parts = [[0]]
    for at, need in enumerate(needs[1:], start=1):
        if len(parts[-1]) > 1 and sum(needs[one] for one in parts[-1]) + need > wide:
            parts.append([0])
        parts[-1].append(at)
    return parts


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
    for marked, cells in table.rows:
        if any(cell.reason for cell in cells):
            cells = [cells[0], *[Cell(MISSING)] * (len(cells) - 1)]
        drawn.add_row(
            *(_in_terminal(cells[at], column, stacked) for at, column in shown), style="bold" if marked else None
        )
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
    text = table.text
    return "\n".join([line(text.columns), rule, *map(line, text.to_numpy().tolist())])


def markdown_text(text: str) -> str:
    """The text in Markdown, in one line and without markup of its own."""
    return re.sub(r"([\\`*_\[\]<>|])", r"\\\1", " ".join(text.splitlines()))


def csv_text(table: Table) -> str:
    """The table as CSV with every cell quoted; one that a spreadsheet would take for a formula begins with ``'``."""
    safe = table.text.map(safe_cell).rename(columns=safe_cell)
    return safe.to_csv(index=False, quoting=QUOTE_ALL, lineterminator="\r\n").removesuffix("\r\n")


_IN_LATEX = str.maketrans({
    "−": "$-$", "′": "$'$", "–": "--", "…": r"\dots{}", "×": r"$\times$", "Δ": r"$\Delta$", "α": r"$\alpha$",
    "β": r"$\beta$", "κ": r"$\kappa$", "≤": r"$\leq$", "▲": r"$\uparrow$", "▼": r"$\downarrow$",
    "\n": " ", "\r": " ", "\t": " ",
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", **{one: f"\\{one}" for one in "&%$#_{}"},
})  # fmt: skip


def latex_text(text: str) -> str:
    """The text for LaTeX, in one line: nothing in it is a command, nor an argument of the one before."""
    return ("{}" if text.startswith(("[", "*")) else "") + text.translate(_IN_LATEX)


def latex(table: Table) -> str:
    """The table as a LaTeX ``tabular`` with booktabs' rules, without title and legend."""
    aligned = "".join(column.align[0] for column in table.columns)
    escaped = table.text.map(latex_text).rename(columns=latex_text)
    made: str = escaped.to_latex(index=False, escape=False, column_format=aligned)
    return made.rstrip("\n")


def copies(table: Table) -> dict[str, str]:
    """The texts that the page's buttons copy, by the name of the form."""
    return {"Markdown": markdown(table), "CSV": csv_text(table), "LaTeX": latex(table)}
