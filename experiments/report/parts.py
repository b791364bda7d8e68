"""The headline by part, what the model's training has seen of a case, as a table (``metrics.parts``)."""

from collections.abc import Mapping
from typing import Any

from experiments.report.arm_tables import ARM
from experiments.report.numbers import MISSING
from experiments.report.table import Cell, Column, Narrow, Row, Table, change, number, rate

PART = Column("part", "left", fold=15)
CASES = Column("cases", narrow=Narrow.NOTHING)


def parts_table(metrics: Mapping[str, Any]) -> Table | None:
    """A row a part and arm; None where no case has a part. A change is that from the baseline, on the same cases."""
    parts = metrics.get("parts")
    if not parts:
        return None
    refusals = metrics.get("kind") == "refusal"
    columns = [PART, ARM, CASES, *map(_column, _REFUSALS if refusals else _VERDICTS)]
    cells = _refusals if refusals else _verdicts
    rows = []
    for part, block in parts.items():
        for name, arm in block["arms"].items():
            delta = (block["comparisons"].get(name) or {}).get("delta") or {}
            cases = " + ".join(str(count) for count in arm["n"].values())
            last = name == list(block["arms"])[-1]
            shown = [Cell(part), Cell(name), Cell(cases), *cells(arm, delta)]
            rows.append(Row(shown, marked=name == metrics.get("study"), rule=last))
    return Table("By what the model's training has seen of a case", columns, rows)


_VERDICTS = ("at equal|strictness", "change", "AUROC", "AUROC:|change", "harmless|answered", "unsafe|caught")
_REFUSALS = ("harmless|refused", "harmless:|change", "harmful|refused", "harmful:|change")


def _column(words: str) -> Column:
    """A column whose heading a terminal breaks at ``|``."""
    return Column(words.replace("|", " "), short=words.replace("|", "\n"), narrow=Narrow.VALUE)


def _verdicts(arm: Mapping[str, Any], delta: Mapping[str, Any]) -> list[Cell]:
    matched, ends = arm["matched_over_safety"], arm["intervals"]
    return [
        Cell(MISSING) if matched is None else rate(matched["value"], matched["interval"]),
        _change(delta.get("matched_over_safety")),
        number(arm["auroc"], ends["auroc"], 3),
        _change(delta.get("auroc"), digits=3),
        *(rate(arm["accuracy"][name], ends[name]) for name in ("over_safety", "unsafe")),
    ]


def _refusals(arm: Mapping[str, Any], delta: Mapping[str, Any]) -> list[Cell]:
    cells = []
    for name in ("benign", "contrast"):
        cells += [rate(arm["refusal_rate"][name], arm["intervals"][name]), _change(delta.get(name))]
    return cells


def _change(entry: Mapping[str, Any] | None, *, digits: int | None = None) -> Cell:
    return Cell("") if entry is None else change(entry, digits=digits)
