"""Tables and sentences of terminal and report.

A table is a pivot of the results table as a DataFrame; here are its forms for terminal, page, LaTeX, CSV and Markdown.
A cell is a ``Row`` of the results table, a text, or None. Numbers become text here, in the last step, and nowhere else.
A missing number becomes ``MISSING``, never a zero. A minus sign is a true one, and a rounded zero carries no sign. A
table's title, note and marked rows are in ``frame.attrs``.

A sentence is a Jinja template in ``templates/text/`` that reads rows of the results table. The templates decide
nothing. A claim has one phrase (``experiments.metrics.estimates.CLAIMS``).
"""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from csv import QUOTE_ALL
from functools import cache
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple

import pandas as pd
from jinja2 import ChainableUndefined, Environment, PackageLoader
from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from experiments.metrics.estimates import HIGHER, INCONCLUSIVE, LOWER, NO_DIFFERENCE, NOT_TESTED, TOO_FEW
from experiments.runs.labels import safe_cell
from experiments.runs.results_table import Results, Row
from interp.checkpoints.config import ORGANISM

MISSING = "n/a"
MINUS = "\N{MINUS SIGN}"
TO = "\N{EN DASH}"

Interval = Sequence[float | None] | None  # (low, high)


def fixed(value: float | None, digits: int, *, sign: bool = False) -> str:
    """Return ``value`` with ``digits`` decimals."""
    if value is None or math.isnan(value):
        return MISSING
    text = f"{value:+.{digits}f}" if sign else f"{value:.{digits}f}"
    if float(text) == 0:
        text = text.lstrip("+-")
    return text.replace("-", MINUS)


def percent(rate: float | None, digits: int = 1, *, sign: bool = False) -> str:
    """Return a fraction of 1 as percent (or, for differences, percentage points), without the sign %."""
    return fixed(None if rate is None else 100 * rate, digits, sign=sign)


def share(rate: float | None) -> str:
    """Return a fraction of 1 in percent, with the sign %: ``44.1%``."""
    text = percent(rate)
    return text if text == MISSING else f"{text}%"


def span(numbers: Interval, digits: int, factor: float = 1, *, sign: bool = False) -> str:
    """Return numbers from low to high: ``88–94``, with signs ``−3.6, +12.5``. None is ""."""
    ends = [fixed(number if number is None else factor * number, digits, sign=sign) for number in numbers or ()]
    return (", " if sign or MINUS in "".join(ends) else TO).join(ends)


def p_value(p: float | None) -> str:
    """Return a p value with three decimals, or ``<0.001``."""
    if p is None:
        return MISSING
    return "<0.001" if p < 0.001 else f"{p:.3f}"


Cell = Row | str | None
Pick = str | Callable[[Row], str]

SIGNS = {HIGHER: "▲", LOWER: "▼", NO_DIFFERENCE: "=", INCONCLUSIVE: "?", TOO_FEW: "…", NOT_TESTED: "", "": ""}
PLAIN = {  # quantity → digits; every other quantity is a fraction, shown in percent
    "auroc": 3, "auroc_within": 3, "d_prime": 2, "criterion": 2, "status": 0, "verdict": 0, "answered": 0,
    "compared": 0, "cases_fixed": 0, "cases_broken": 0, "pairs_both_answered": 0, "pairs_both_refused": 0,
    "pairs_wrong_way_round": 0, "sentences_needed": 0, "cases_needed": 0, "kappa": 2, "alpha": 2,
}  # fmt: skip


def unit(quantity: str, digits: int) -> None:
    """Declare that a quantity is a plain number with so many digits, not a fraction."""
    PLAIN[quantity] = digits


class Shown(NamedTuple):
    """A cell as text: its value, interval and bounds."""

    value: str
    interval: str = ""
    bounds: str = ""

    def __str__(self) -> str:
        """Everything in one line: ``17.3 [7–33] {16.0–18.1}``."""
        ends = [f"[{self.interval}]"] if self.interval else []
        return " ".join([self.value, *ends, *([f"{{{self.bounds}}}"] if self.bounds else [])])


def cell_text(cell: Cell, *, interval: bool = True, sign: bool = False) -> Shown:
    """Return a cell as text: fractions in percent, differences in points and with their sign.

    Args:
        cell: of a table.
        interval: whether its interval is shown.
        sign: whether the claim's sign leads a difference.
    """
    if cell is None or isinstance(cell, str):
        return Shown(MISSING if cell is None else cell)
    signed, digits = bool(cell.against), PLAIN.get(cell.quantity)
    factor, (decimals, of_ends, of_bounds) = (100, (1, int(signed), 1)) if digits is None else (1, (digits,) * 3)
    value = span([cell.value], decimals, factor, sign=signed and decimals > 0)
    text, limits = span(cell.interval, of_ends, factor, sign=signed), span(cell.bounds, of_bounds, factor)
    same = cell.bounds is not None and len({span([end], of_bounds, factor) for end in cell.bounds}) == 1
    if cell.claim == TOO_FEW or (cell.value is not None and not text and cell.clusters is not None and not signed):
        text = text or TOO_FEW
    lead = f"{SIGNS[cell.claim]} " if sign and SIGNS.get(cell.claim) else ""
    return Shown(f"{lead}{value}", text if interval else "", "" if same or signed else limits)


def pivot(
    rows: Iterable[Row], index: Pick | Mapping[str, Pick], columns: Pick, *, title: str = "", note: str = ""
) -> pd.DataFrame:
    """Return rows of the results table as a table, in the order of the rows.

    Args:
        rows: one for each cell; of two for one cell, the last counts.
        index: what names a line: a column or function, or several by heading.
        columns: what names a column.
        title: of the table.
        note: what stands below it.
    """
    leads = index if isinstance(index, Mapping) else {str(index) if isinstance(index, str) else "": index}
    *picks, column = (pick if callable(pick) else attrgetter(pick) for pick in (*leads.values(), columns))
    lines: dict[tuple[str, ...], dict[str, Cell]] = {}
    headings: dict[str, None] = {}
    for row in rows:
        key, heading = tuple(pick(row) for pick in picks), column(row)
        lines.setdefault(key, {})[heading] = row
        headings[heading] = None
    records: list[dict[str, Cell]] = [
        {**dict(zip(leads, key, strict=True)), **{name: line.get(name, "") for name in headings}}
        for key, line in lines.items()
    ]
    return table(records, [*leads, *headings], title=title, note=note)


def by_arm(
    results: Results, columns: Mapping[str, Mapping[str, str]], arms: Sequence[str], *, title: str = "", note: str = "",
    marked: str = "", absent: Cell = None,
) -> pd.DataFrame:  # fmt: skip
    """Return a table with a line for each arm.

    Args:
        results: the results table.
        columns: heading → key of the row that it shows (``Results.get``); a column that no arm has is left out.
        arms: in their order.
        title: of the table.
        note: what stands below it.
        marked: the arm whose line is emphasised.
        absent: the cell of a level that an arm does not have; differences are then empty.
    """
    records = [
        {"arm": arm} | {heading: results.get(arm, **key) for heading, key in columns.items()} for arm in arms  # type: ignore[arg-type]
    ]  # fmt: skip
    present = [heading for heading in columns if any(record[heading] is not None for record in records)]
    for record in records:
        missing = [heading for heading in present if record[heading] is None]
        record |= {heading: "" if "against" in columns[heading] else absent for heading in missing}
    return table(records, ["arm", *present], title=title, note=note, marked=[arm == marked for arm in arms])


def table(
    records: Iterable[Mapping[str, Any]], columns: Sequence[str] | None = None, *, title: str = "", note: str = "",
    marked: Sequence[bool] = (),
) -> pd.DataFrame:  # fmt: skip
    """Return records as a table; what a record lacks is empty."""
    listed = list(records)
    names = list(columns or dict.fromkeys(name for record in listed for name in record))
    cells = [[record.get(name, "") for name in names] for record in listed]
    frame = pd.DataFrame({name: pd.Series([line[at] for line in cells], dtype=object) for at, name in enumerate(names)})
    frame.attrs = {"title": title, "note": note, "marked": [*marked, *[False] * (len(listed) - len(marked))]}
    return frame


def lines_of(frame: pd.DataFrame) -> list[tuple[bool, list[Shown]]]:
    """Return whether each line is marked, and its cells as text."""
    marks = frame.attrs.get("marked") or [False] * len(frame)
    cells = [[cell_text(cell, sign=True) for cell in line] for line in frame.itertuples(index=False, name=None)]
    return list(zip(marks, cells, strict=True))


def texts(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the table with every cell as one line of text, and headings without the breaks of a terminal."""
    cells = [[str(cell_text(cell)) for cell in line] for line in frame.itertuples(index=False, name=None)]
    return pd.DataFrame(cells, columns=[str(name).replace("|", " ") for name in frame.columns], dtype=object)


def in_terminal(frame: pd.DataFrame, *, bare: Collection[str] = (), stacked: bool = True) -> RenderableType:
    """Return the table for a terminal; headings break at ``|``.

    Args:
        frame: the table.
        bare: columns without their intervals.
        stacked: intervals below their numbers, not behind them.
    """
    # The box sets columns apart by one space, and the widest numbers then just fit 80 columns.
    title = Text(frame.attrs["title"], style="bold") if frame.attrs.get("title") else None
    drawn = RichTable(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False
    )
    for number, name in enumerate(frame.columns):
        drawn.add_column(Text(str(name).replace("|", "\n")), justify="right" if number else "left", overflow="fold")
    marks = frame.attrs.get("marked") or [False] * len(frame)
    for marked, line in zip(marks, frame.itertuples(index=False, name=None), strict=True):
        cells = []
        for name, cell in zip(frame.columns, line, strict=True):
            parts = cell_text(cell, interval=name not in bare, sign=True)
            value = [parts.value, *([parts.interval if stacked else f"[{parts.interval}]"] if parts.interval else [])]
            cells.append(Text("\n" if stacked else " ").join(map(Text, value)))
        drawn.add_row(*cells, style="bold" if marked else None)
    note = frame.attrs.get("note")
    return Group(drawn, Text(note, style="dim")) if note else drawn


def say(*renderables: RenderableType) -> None:
    """Print tables as they are, and lines without markup, colours or breaks."""
    console = Console()
    for each in renderables:
        console.print(each, highlight=False, soft_wrap=isinstance(each, str), markup=False)


def markdown(frame: pd.DataFrame) -> str:
    """Return the table in GitHub's Markdown, without title and note."""

    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(re.sub(r"[\\|<]", r"\\\g<0>", " ".join(cell.splitlines())) for cell in cells) + " |"

    plain = texts(frame)
    rule = "|" + "".join(" ---: |" if number else " --- |" for number in range(len(plain.columns)))
    return "\n".join([line(plain.columns), rule, *map(line, plain.to_numpy().tolist())])


def markdown_text(text: str) -> str:
    """Return a text in Markdown, in one line and without markup of its own."""
    return re.sub(r"([\\`*_\[\]<>|])", r"\\\1", " ".join(text.splitlines()))


def csv_text(frame: pd.DataFrame) -> str:
    """Return the table as CSV, every cell quoted. What a spreadsheet would take for a formula begins with ``'``."""
    safe = texts(frame).map(safe_cell)
    safe.columns = safe.columns.map(safe_cell)
    return safe.to_csv(index=False, quoting=QUOTE_ALL, lineterminator="\r\n").removesuffix("\r\n")


_IN_LATEX = str.maketrans({
    "−": "$-$", "′": "$'$", "–": "--", "…": r"\dots{}", "×": r"$\times$", "Δ": r"$\Delta$", "α": r"$\alpha$",
    "β": r"$\beta$", "κ": r"$\kappa$", "≤": r"$\leq$", "▲": r"$\uparrow$", "▼": r"$\downarrow$",
    "\n": " ", "\r": " ", "\t": " ",
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", **{sign: f"\\{sign}" for sign in "&%$#_{}"},
})  # fmt: skip


def latex_text(text: str) -> str:
    """Return a text for LaTeX, in one line: nothing in it is a command, nor an argument of the one before."""
    return ("{}" if text.startswith(("[", "*")) else "") + text.translate(_IN_LATEX)


def latex(frame: pd.DataFrame) -> str:
    """Return the table as a LaTeX ``tabular`` with booktabs' rules, without title and note."""
    escaped = texts(frame).map(latex_text)
    head, *body = (" & ".join(line) + r" \\" for line in (escaped.columns.map(latex_text), *escaped.to_numpy()))
    begin = rf"\begin{{tabular}}{{l{'r' * (len(escaped.columns) - 1)}}}"
    rules = r"\toprule", r"\midrule", r"\bottomrule"
    return "\n".join([begin, rules[0], head, rules[1], *body, rules[2], r"\end{tabular}"])


def copies(frame: pd.DataFrame) -> dict[str, str]:
    """Return the texts that the page's buttons copy, by form."""
    plain = texts(frame)
    return {"Markdown": markdown(plain), "CSV": csv_text(plain), "LaTeX": latex(plain)}


class _Missing(ChainableUndefined):
    """A value that a run does not have: false in a test, and an error if it is printed."""

    __str__ = ChainableUndefined._fail_with_undefined_error


def _in_one_line(value: Any) -> Any:
    """Return a printed value without line breaks: texts of models and data stay in their sentence."""
    return " ".join(value.splitlines()) if isinstance(value, str) else value


@cache
def _templates(finalize: Callable[[Any], Any] | None) -> Environment:
    templates = Environment(
        loader=PackageLoader("experiments.report", "templates/text"), undefined=_Missing, trim_blocks=True,
        lstrip_blocks=True, autoescape=False, finalize=finalize,
    )  # fmt: skip
    templates.filters |= {
        "share": share, "number": fixed, "count": count, "about": about, "change": change, "ends": ends,
        "value": value, "listed": listed, "json": _json, "markdown": lambda text: markdown_text(str(text)),
    }  # fmt: skip
    return templates


def _json(content: Mapping[str, Any]) -> str:
    content = {name: entry for name, entry in content.items() if not isinstance(entry, _Missing)}
    return json.dumps(content, indent=2, ensure_ascii=False, default=str)


def lines(template: str, **context: Any) -> list[str]:
    """Return the lines of a text template without empty ones; leading blanks are kept.

    Args:
        template: its name, without ``.txt.j2``.
        context: what it reads, mostly ``results`` (``Results``) and ``design`` (metrics.json).
    """
    text = _templates(_in_one_line).get_template(f"{template}.txt.j2").render(**context)
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def page(template: str, **context: Any) -> str:
    """Return the text of a template, blank lines included; ``template`` is the name of its file."""
    return _templates(None).get_template(template).render(**context)


def headline(results: Results, design: Mapping[str, Any], arm: str | None = None) -> list[str]:
    """Return what a run says of its arm under study: the claim, its numbers, and what a decision would need."""
    return lines(f"headline_{design['kind']}", results=results, design=design, arm=arm or design["study"])


def count(number: float | None) -> str:
    """Return a whole number with separators: ``1,500``."""
    return MISSING if number is None else f"{round(number):,}"


def about(number: float) -> str:
    """Return a number with two significant digits: 103 is ``100``."""
    return f"{float(f'{number:.2g}'):,.0f}"


def value(row: Row | None) -> str:
    """Return the value of a row in its unit: ``17.3%``, ``0.661``, ``+4.5 points``."""
    text = cell_text(row).value
    return (
        text
        if text == MISSING or (row and row.quantity in PLAIN)
        else text + (" points" if row and row.against else "%")
    )


def ends(row: Row, *, name: bool = False) -> str:
    """Return the interval of a row in brackets: ``[−7.6, +8.8]``; with its name ``[97.5% interval −7.6 to +8.8]``.

    An end that is not 0 is not rounded to it, so that a reader sees on which side it lies.
    """
    if row.interval is None:
        return "[too few cases for an interval]"
    digits = PLAIN.get(row.quantity)
    scale, digits = (100.0, 1) if digits is None else (1.0, digits)

    def end(number: float) -> str:
        precision = digits
        while number and precision < digits + 2 and round(scale * number, precision) == 0:
            precision += 1
        return fixed(scale * number, precision, sign=bool(row.against))

    low, high = map(end, row.interval)
    return f"[{level(row)} interval {low} to {high}]" if name else f"[{low}, {high}]"


def level(row: Row) -> str:
    """Return the level of a row's interval in percent: ``97.5%``."""
    return f"{100 * (row.level or 0.95):.3g}%"


def change(row: Row | None, *, name: bool = False) -> str:
    """Return a difference with its interval: ``+4.5 points [−3.5, +12.4]``."""
    return MISSING if row is None else f"{value(row)} {ends(row, name=name)}"


def listed(names: Any) -> str:
    """Return names in a sentence: ``a, b and c``."""
    *first, last = [str(name) for name in names] or [""]
    return f"{', '.join(first)} and {last}" if first else last


MADE_FOR = {
    "iconworld": ("llava", "smol", "thinking"),
    "iconworld_requests": ("smol", "thinking"),
}  # benchmark → organisms


OPTIONAL = (
    "thoughts",
    "no_picture",
    "batches",
    "refusal_margin",
    "same_text",
    "not_applicable",
)  # parts of metrics.json


class Summary(NamedTuple):
    """A run in words: what it says of its arm under study, and what limits it."""

    headline: list[str]
    notes: list[str]


def summary(results: Results, design: Mapping[str, Any], environment: Mapping[str, Any]) -> Summary:
    """Return the summary of a run, the same for terminal and report.

    Args:
        results: its results table.
        design: its metrics.json.
        environment: its environment.json.
    """
    model, benchmark = environment.get("model") or {}, environment.get("benchmark") or {}
    design = dict.fromkeys(OPTIONAL, MappingProxyType({})) | dict(design)
    context = {"results": results, "design": design, "environment": environment, "arm": design["study"]}
    organism, name = str(model.get("path") or ""), str(benchmark.get("name") or "the benchmark")
    organism = organism.removeprefix(ORGANISM) if organism.startswith(ORGANISM) else ""
    missing = benchmark.get("missing")
    about = {
        "benchmark": name,
        "foreign": bool(organism) and organism not in MADE_FOR.get(name, ()),
        "shortfall": shortfall(int(benchmark.get("complete") or 0), missing if isinstance(missing, Mapping) else {}),
    }
    people = [str(line) for line in environment.get("people") or ()]
    body = [*headline(results, design), *lines("contrasts", **context, **about)]
    return Summary([*body, *people], lines("notes", **context, **about))


def shortfall(samples: int, missing: Mapping[str, str]) -> str:
    """Return a sentence on the cases of a benchmark that cannot run here, and why; "" if all can."""
    if not missing:
        return ""
    reasons = Counter(reason.partition(":")[0] for reason in missing.values())
    why = ", ".join(f"{number:,} × {reason}" for reason, number in reasons.most_common())
    return f"{samples:,} of the benchmark's {samples + len(missing):,} cases can run here ({why})."
