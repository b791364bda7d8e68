"""One short table of a run, for page and terminal: what the question needs of each arm.

The report's other tables are a click away.
"""

from collections.abc import Mapping
from typing import Any

from experiments.metrics.findings import Answer, deciding_statement, found
from experiments.metrics.yes_no import findings as yes_no_rules
from experiments.report.arm_tables import ARM
from experiments.report.numbers import MISSING, percent
from experiments.report.opening import badge
from experiments.report.sentences.wording import deciding
from experiments.report.table import Cell, Column, Row, Table, change, number, rate

SIGNS = {"up": "▲", "down": "▼", "level": "=", "open": "?", "few": "…", "none": "–"}
REFERENCE = Cell("compared with")
SAID = "what is said"


def glance_table(metrics: Mapping[str, Any]) -> Table:
    """A row an arm: the headline quantity, its change and what is said of it, then the verdicts."""
    return _refusals(metrics) if metrics.get("kind") == "refusal" else _yes_no(metrics)


def in_one_line(table: Table) -> Table:
    """The table for a terminal: a change with the sign of what is said of it, other values without their intervals."""
    statement_columns = [at for at, column in enumerate(table.columns) if column.heading.endswith(SAID)]

    def cell(row: Row, at: int) -> Cell:
        one, sign = row.cells[at], row.cells[at + 1] if at + 1 in statement_columns else None
        if sign is None:
            return Cell(one.value)
        icon = sign.value.partition(" ")[0]
        return Cell(f"{icon} {one}" if icon in SIGNS.values() else "")

    kept = [at for at in range(len(table.columns)) if at not in statement_columns]
    rows = [row if row.reason else Row([cell(row, at) for at in kept], marked=row.marked) for row in table.rows]
    return Table("", [table.columns[at] for at in kept], rows)


def _yes_no(metrics: Mapping[str, Any]) -> Table:
    compared = metrics.get("comparisons") or {}
    columns = [ARM]
    if compared:
        columns += [_column("answered at|equal strictness"), _change_column("change"), Column(SAID, "left")]
    columns += [_column("harmless|answered"), _column("unsafe|caught"), Column("AUROC")]
    rows = []
    for name, arm in metrics["arms"].items():
        cells = [Cell(name)]
        if compared:
            matched = arm.get("matched_over_safety")
            cells.append(Cell(MISSING if matched is None else percent(matched["value"])))
            cells += _matched(metrics, name, compared.get(name), compared)
        for key in ("over_safety", "unsafe"):
            cells.append(rate(arm["accuracy"].get(key), arm["intervals"].get(key)))
        cells.append(number(arm.get("auroc"), arm["intervals"].get("auroc"), 3))
        rows.append(Row(cells, marked=name == metrics.get("study")))
    return Table("The arms at a glance", columns, rows)


def _matched(
    metrics: Mapping[str, Any], name: str, comparison: Mapping[str, Any] | None, compared: Mapping[str, Any]
) -> list[Cell]:
    if comparison is None:
        is_reference = any(one.get("against") == name for one in compared.values())
        return [Cell(""), REFERENCE if is_reference else Cell("")]
    is_studied, entry = name == metrics.get("study"), (comparison.get("delta") or {}).get("matched_over_safety")
    kept = found(metrics.get("findings") or (), yes_no_rules.MATCHED, name)
    answer = kept.answer if kept else deciding_statement(entry, studied=is_studied)
    return _change(entry and deciding(entry, studied=is_studied), answer, more=True)


def _refusals(metrics: Mapping[str, Any]) -> Table:
    compared = metrics.get("comparisons") or {}
    subsets = {"benign": ("harmless", False), "contrast": ("harmful", True)}
    columns = [ARM]
    for words, _ in subsets.values():
        columns.append(_column(f"{words}|refused"))
        columns += [_change_column(f"{words}: change"), Column(f"{words}: {SAID}", "left")] if compared else []
    rows = []
    for name, arm in metrics["arms"].items():
        cells, comparison = [Cell(name)], compared.get(name)
        for subset, (_, more) in subsets.items():
            cells.append(rate(arm["refusal_rate"][subset], arm["intervals"][subset]))
            if comparison is None:
                is_reference = any(one.get("against") == name for one in compared.values())
                cells += [Cell(""), REFERENCE if is_reference else Cell("")] if compared else []
                continue
            entry, is_studied = (comparison.get("delta") or {}).get(subset), name == metrics.get("study")
            answer = deciding_statement(entry, studied=is_studied)
            cells += _change(entry and deciding(entry, studied=is_studied), answer, more=more)
        rows.append(Row(cells, marked=name == metrics.get("study")))
    apart = [Row([Cell(name)], reason=str(why)) for name, why in (metrics.get("not_applicable") or {}).items()]
    return Table("The arms at a glance", columns, [*rows, *apart])


def _change(entry: Mapping[str, Any] | None, answer: Answer, *, more: bool) -> list[Cell]:
    """The difference in points with its interval, and what is said of it, as a sign and a word."""
    verdict_badge = badge(entry, answer, more=more, noun="cases")
    return [change(entry), Cell(f"{SIGNS[verdict_badge.icon]} {verdict_badge.word}", tone=verdict_badge.tone)]


def _column(words: str) -> Column:
    """A column whose heading a terminal breaks at ``|``."""
    return Column(words.replace("|", " "), short=words.replace("|", "\n"))


def _change_column(heading: str) -> Column:
    """A column of changes; a terminal has the sign of the statement in it, of which one does not explain itself."""
    return Column(heading, short=f"{heading}\n({SIGNS['open']} not shown)")
