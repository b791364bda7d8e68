"""The headline by part, what the model's training has seen of a case, as a table and a sentence (``metrics.parts``)."""

from collections.abc import Iterable, Mapping
from typing import Any

from experiments.report.arm_tables import ARM
from experiments.report.numbers import MISSING, fixed, share
from experiments.report.sentences.wording import word
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


def parts_sentence(metrics: Mapping[str, Any]) -> str:
    """AUROC, or both refusal rates, of the arm under study in every part; the baseline's in brackets."""
    arm, refusals = str(metrics["study"]), metrics.get("kind") == "refusal"
    names = ("contrast", "benign") if refusals else ("auroc",)

    def number(value: float | None) -> str:
        return share(value) if refusals else fixed(value, 3)

    found = []
    for part, block in metrics["parts"].items():
        if (answers := block["arms"].get(arm)) is None:
            continue
        values = answers["refusal_rate"] if refusals else answers
        text = f"{part} {_joined(number(values[name]) for name in names)} (n = {sum(answers['n'].values())}"
        if comparison := block["comparisons"].get(arm):
            changes = [comparison["delta"][name] for name in names]
            before = _joined(number(entry and entry["from"]) for entry in changes)
            changed = _joined(word(entry, of_rates=refusals) for entry in changes)
            text += f"; {comparison['against']} {before}, {changed}"
        found.append(f"{text})")
    what = f"{arm} refuses of harmful and of harmless requests" if refusals else f"the AUROC of {arm} is"
    return f"By what the model's training has seen of sentence and thing, {what}: {'; '.join(found)}."


def _joined(words: Iterable[str]) -> str:
    return " and ".join(words)
