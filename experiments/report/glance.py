"""One short table of a run, for page and terminal: what the question needs of each arm.

The report's other tables are a click away.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from experiments.metrics.findings import Answer
from experiments.report.arm_tables import by_arm
from experiments.report.numbers import percent
from experiments.report.opening import MATCHED, as_judged, badge
from experiments.report.sentences.wording import SAID
from experiments.report.table import Cell, Column, Row, Table, change, number, rate

SIGNS = [said.sign for said in SAID.values()]
STATEMENT = "what is said"


def glance_table(metrics: Mapping[str, Any]) -> Table:
    """A row an arm: the headline quantity, its change and what is said of it, then the verdicts."""

    def verdicts(rates: str, key: str, arm: Any) -> Cell:
        return rate(arm[rates].get(key), arm["intervals"].get(key))

    compared = bool(metrics.get("comparisons"))
    cells: dict[Column, Callable[[Any], Cell]] = {}
    if metrics.get("kind") == "refusal":
        for subset, (words, more) in {"benign": ("harmless", False), "contrast": ("harmful", True)}.items():
            cells[_column(f"{words}|refused")] = partial(verdicts, "refusal_rate", subset)
            cells |= _changes(metrics, subset, f"{words}: ", more=more) if compared else {}
    else:
        if compared:
            matched = _column("answered at|equal strictness")
            cells[matched] = lambda arm: Cell(percent((arm.get(MATCHED) or {}).get("value")))
            cells |= _changes(metrics, MATCHED, "", more=True)
        for key, heading in (("over_safety", "harmless|answered"), ("unsafe", "unsafe|caught")):
            cells[_column(heading)] = partial(verdicts, "accuracy", key)
        cells[Column("AUROC")] = lambda arm: number(arm.get("auroc"), arm["intervals"].get("auroc"), 3)
    named = {name: {**arm, "name": name} for name, arm in metrics["arms"].items()}
    return by_arm("The arms at a glance", {**metrics, "arms": named}, cells)


def _changes(metrics: Mapping[str, Any], key: str, lead: str, *, more: bool) -> dict[Column, Callable[[Any], Cell]]:
    """Two columns: the difference in points with its interval, and what is said of it, as a sign and a word."""
    compared = metrics["comparisons"]

    def difference(arm: Any) -> Cell:
        return change(as_judged(metrics, arm["name"], key)[0]) if arm["name"] in compared else Cell("")

    def said(arm: Any) -> Cell:
        if arm["name"] not in compared:
            return Cell("compared with" if arm["name"] in [one.get("against") for one in compared.values()] else "")
        shown = badge(*as_judged(metrics, arm["name"], key), more=more, noun="cases")
        return Cell(f"{SAID[shown.answer].sign} {shown.word}", tone=shown.tone)

    # A terminal has the sign of the statement in the column of changes; one sign does not explain itself.
    short = f"{lead}change\n({SAID[Answer.NOT_SHOWN].sign} not shown)"
    return {Column(f"{lead}change", short=short): difference, Column(f"{lead}{STATEMENT}", "left"): said}


def in_one_line(table: Table) -> Table:
    """The table for a terminal: a change with the sign of what is said of it, other values without their intervals."""
    statement_columns = [at for at, column in enumerate(table.columns) if column.heading.endswith(STATEMENT)]

    def cell(row: Row, at: int) -> Cell:
        one, sign = row.cells[at], row.cells[at + 1] if at + 1 in statement_columns else None
        if sign is None:
            return Cell(one.value)
        icon = sign.value.partition(" ")[0]
        return Cell(f"{icon} {one}" if icon in SIGNS else "")

    kept = [at for at in range(len(table.columns)) if at not in statement_columns]
    rows = [row if row.reason else Row([cell(row, at) for at in kept], marked=row.marked) for row in table.rows]
    return Table("", [table.columns[at] for at in kept], rows)


def _column(words: str) -> Column:
    """A column whose heading a terminal breaks at ``|``."""
    return Column(words.replace("|", " "), short=words.replace("|", "\n"))
