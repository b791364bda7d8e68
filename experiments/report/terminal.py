"""What a terminal shows of a study: the headline, a short table of its arms, and what limits it. All fit 80 columns."""

from collections.abc import Collection, Mapping
from typing import Any

import pandas as pd
from rich.console import Console, Group, RenderableType
from rich.text import Text

from experiments.report import arms
from experiments.report.tables import SIGNS, in_terminal
from experiments.report.text import summary
from experiments.runs.results_table import Results, Row

NOTES = 2  # that are shown; the report has all
LINES = 20  # of a terminal's 25; the others are the report and what to type next
BLANK = 7  # of these lines: two empty ones, the table's head, and what its signs mean
FEWEST_ROWS = 3  # of the table, however long the headline is


def render(
    results: Results, design: Mapping[str, Any], environment: Mapping[str, Any], *, verbose: bool, width: int,
    named: Collection[str] = (), complete: bool = True,
) -> Group:  # fmt: skip
    """Return what is printed of a run: its answer, with ``verbose`` all tables and notes, or only the first line.

    Args:
        results: its results table.
        design: its metrics.json.
        environment: its environment.json.
        verbose: show everything.
        width: columns of the terminal.
        named: arms that the command names; they are shown before others.
        complete: False if the arms are not what the run was begun for.
    """
    words = summary(results, design, environment)
    # Text, not str: a line that quotes "[red]" must not be read as markup.
    top = [Text(line, style="" if place else "bold") for place, line in enumerate(words.headline)]
    notes = [Text(f"note: {note}") for note in words.notes]
    if verbose:
        tables = [in_terminal(frame) for frame in arms.all_tables(results, design).values()]
        return Group(*(part for each in tables for part in (each, "")), *top, "", *notes)
    if not complete:
        return Group(top[0], "")
    if more := len(notes[NOTES:]):
        notes = notes[:NOTES]
        notes[-1].append(f" ({more} more note{'s' * (more > 1)} in the report)")
    parts: list[RenderableType] = [*top, ""]
    table = arms.glance(results, design)
    if len(table) > 1 or results.select(quantity="rebuttal_rate"):
        used = sum(len(text.wrap(Console(width=width), width)) for text in (*top, *notes))
        wanted = {*named, design["study"], design["baseline"]} & {*table["arm"]}
        ranked = sorted(table["arm"], key=lambda arm: (arm not in wanted, arm != design["control"]))
        room = LINES - used - BLANK
        most = max(FEWEST_ROWS, room - (room < len(table)), len(wanted))  # a line says how many are left out
        rows = table[table["arm"].isin(ranked[:most])]
        rows.attrs = {"marked": list(rows["arm"] == design["study"]), "note": _legend(rows)}
        parts.append(in_terminal(rows, bare=[name for name in rows.columns if name != "difference"], stacked=False))
        if left := len(table) - len(rows):
            parts.append(Text(f"({left} more arm{'s' * (left > 1)} in the report)", style="dim"))
        parts.append("")
    return Group(*parts, *notes, *([""] if notes else []))


def _legend(rows: pd.DataFrame) -> str:
    """Return what the table's signs, units and last columns mean, in two lines."""
    compared = [cell for cell in rows.get("difference", ()) if isinstance(cell, Row) and cell.claim]
    signs = [f"{SIGNS[claim]} {claim}" for claim in dict.fromkeys(cell.claim for cell in compared) if SIGNS[claim]]
    first = f"{', '.join(signs)} (percent; points [interval])" if signs else "rates in percent"
    return f"{first}\nlast columns: by each arm's own verdicts"
