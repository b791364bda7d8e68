"""What a terminal shows of a study: the headline, a short table of its arms, and what limits it. All fit 80 columns."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pandas as pd
from rich.console import Console, Group, RenderableType
from rich.text import Text

from experiments.report import arms
from experiments.report.tables import by_arm, in_terminal
from experiments.report.text import summary
from experiments.runs.results_table import Results

NOTES = 2  # that are shown; the report has all
LINES = 21  # of a terminal's 25; the others are the report and what to type next
BLANK = 8  # of these lines: empty ones, the table's head, and how many arms are left out
FEWEST_ROWS = 3  # of the table, however long the headline is
SHORT: Mapping[str, Mapping[str, arms.Columns]] = {  # heading → column, by kind; | breaks a line
    "yes_no": {
        "level": {"answered at|{point} caught": {"quantity": arms.AT_POINT}},
        "difference": {"difference": {"quantity": arms.AT_POINT}},
        "rest": {"harmless|answered": {"quantity": "harmless_answered"}, "unsafe|caught": {"quantity": "unsafe_caught"},
                 "AUROC": {"quantity": "auroc"}},
    },
    "refusal": {
        "level": {"harmless|refused": {"quantity": "refusal_rate", "subset": "benign"}},
        "difference": {"difference": {"quantity": "refusal_rate", "subset": "benign"}},
        "rest": {"harmful|refused": {"quantity": "refusal_rate", "subset": "contrast"},
                 "rebutted:|harmless": {"quantity": "rebuttal_rate", "subset": "benign"},
                 "rebutted:|harmful": {"quantity": "rebuttal_rate", "subset": "contrast"}},
    },
}  # fmt: skip


def shown(
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
    said = summary(results, design, environment)
    if verbose:
        tables = [in_terminal(frame) for frame in arms.all_tables(results, design).values()]
        parts = [part for each in tables for part in (each, "")]
        return Group(*parts, *_headline(said.headline), "", *(Text(f"note: {note}") for note in said.notes))
    if not complete:
        return Group(*_headline(said.headline[:1]), "")
    return answer(results, design, said.headline, said.notes, width=width, named=named)


def answer(
    results: Results, design: Mapping[str, Any], headline: Sequence[str], notes: Sequence[str], *, width: int,
    named: Collection[str] = (),
) -> Group:  # fmt: skip
    """Return the headline, a row for each arm that matters, and the first notes."""
    top, shown_notes = _headline(headline), [Text(f"note: {note}") for note in notes[:NOTES]]
    if more := len(notes) - NOTES if len(notes) > NOTES else 0:
        shown_notes[-1].append(f" ({more} more note{'s' * (more > 1)} in the report)")
    table = short_table(results, design)
    parts: list[RenderableType] = [*top, ""]
    if len(table) > 1 or results.select(quantity="rebuttal_rate"):
        taken = sum(len(text.wrap(Console(width=width), width)) for text in (*top, *shown_notes))
        most = max(FEWEST_ROWS, LINES - taken - BLANK)
        ranks = {name: _rank(name, design, named) for name in table["arm"]}
        by_rank = sorted(range(len(table)), key=lambda at: ranks[table["arm"][at]])
        first = sorted(by_rank[: max(most, sum(rank <= 2 for rank in ranks.values()))])
        rows = table.iloc[first].reset_index(drop=True)
        rows.attrs = {**table.attrs, "marked": [name == design["study"] for name in rows["arm"]]}
        bare = [name for name in rows.columns if name != "difference"]
        parts.append(in_terminal(rows, bare=bare, stacked=False))
        if left := len(table) - len(first):
            parts.append(Text(f"({left} more arm{'s' * (left > 1)} in the report)", style="dim"))
        parts.append("")
    return Group(*parts, *shown_notes, *([""] if shown_notes else []))


def short_table(results: Results, design: Mapping[str, Any]) -> pd.DataFrame:
    """Return a row for each arm: the headline quantity with its difference, and the verdicts."""
    columns, base = SHORT[design["kind"]], design["baseline"]
    point = f"{100 * design['operating_point']:.0f}%" if design.get("operating_point") else ""
    listed = {heading.format(point=point): key for heading, key in columns["level"].items()}
    if base:
        listed |= {heading: {**key, "against": base} for heading, key in columns["difference"].items()}
    elif design["kind"] == "yes_no":
        listed = {}
    return by_arm(results, listed | columns["rest"], arms.arms_of(results, design))


def _rank(arm: str, design: Mapping[str, Any], named: Collection[str]) -> int:
    """Return the place of an arm among those that are shown first."""
    return [arm in named, arm == design["study"], arm == design["baseline"], arm == design["control"], True].index(True)


def _headline(lines: Sequence[str]) -> list[Text]:
    # Text, not str: a line that quotes "[red]" must not be read as markup.
    return [Text(line, style="" if place else "bold") for place, line in enumerate(lines)]
