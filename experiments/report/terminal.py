"""The result of a study as rich tables that fit 80 columns. Knows nothing of files or of where it is printed."""

import re
from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from experiments.report.numbers import MISSING
from experiments.report.yes_no import ACCURACIES, CEILING_MARK, ArmRow, Cell, ComparisonRow, arm_rows, comparison_rows

_HEADINGS = {"typical": "typ-\nical", "attack": "att-\nack", "over_safety": "over-\nsafety", "overall": "over-\nall"}
_DELTAS = {"overall": "overall", "unsafe": "unsafe", "over_safety": "over-\nsafety", "auroc": "AUROC"}
NAME_WIDTH = 16  # "calibrated_shift", and all that 80 columns leave; longer names go on in the next line

LEGEND = (
    "Accuracies and flips in %; below each number its 95% interval. typical, attack: unsafe cases called unsafe; "
    "over-safety: safe cases called safe; overall: mean of the three. d′: how well safe and unsafe are told apart, "
    "from the verdicts; c: readiness to say “unsafe” (negative = ready); AUROC: the same question as d′, from the "
    "margins, 0.5 = chance; flips: pairs of the same sentence with two images where both are right. fixed/broken: "
    "cases gone from wrong to right and back; p: McNemar’s test on them, after Holm’s correction."
)
CEILING = f"{CEILING_MARK} a rate is so near 0 or 1 that a mere change of threshold moves this d′ a lot."


def results(metrics: Mapping[str, Any]) -> Group:
    """What a terminal shows at the end of a study: arms, paired differences, what the columns are, the summary."""
    parts: list[RenderableType] = [arms_table(metrics), ""]
    legend = LEGEND
    if any(arm.get("near_ceiling") for arm in metrics["arms"].values()):
        legend += " " + CEILING
    if metrics.get("comparisons"):
        parts += [comparisons_table(metrics), ""]
    parts.append(Text(legend, style="dim"))
    return Group(*parts, *said(metrics))


def said(metrics: Mapping[str, Any]) -> list[RenderableType]:
    """The summary's sentences and the caveats, a paragraph each."""
    # Text, not str: a sentence that quotes "[red]" from a configuration must not be read as markup.
    summary = [Padding(Text(str(sentence), style="bold"), (1, 0, 0, 0)) for sentence in metrics.get("summary") or ()]
    return [*summary, *(Padding(Text(f"note: {sentence}"), (1, 0, 0, 0)) for sentence in metrics.get("caveats") or ())]


def arms_table(metrics: Mapping[str, Any]) -> Table:
    """One row an arm, numbers above their intervals."""
    table = arm_table("Arms")
    table.add_column(Text("n of n"), justify="right", no_wrap=True)
    for key in ACCURACIES:
        table.add_column(Text(_HEADINGS[key]), justify="right", no_wrap=True)
    for heading in ("d′", "c", "AUROC", "flips"):
        table.add_column(Text(heading), justify="right", no_wrap=True)
    for row in arm_rows(metrics):
        table.add_row(_folded(row.name), *_arm_cells(row))
    return table


def comparisons_table(metrics: Mapping[str, Any]) -> Table:
    """One row a compared arm: paired differences in points, McNemar's counts, Holm's p, and whether it wins."""
    rows = comparison_rows(metrics)
    against = ", ".join(dict.fromkeys(row.against for row in rows))
    table = arm_table(f"Paired differences against {against}")
    for heading in _DELTAS.values():
        table.add_column(Text(heading), justify="right", no_wrap=True)
    for heading in ("fixed/\nbroken", "p\nwins"):
        table.add_column(Text(heading), justify="right", no_wrap=True)
    for row in rows:
        table.add_row(_folded(row.name), *_comparison_cells(row))
    return table


def arm_table(title: str) -> Table:
    """An empty table whose first column names the arms."""
    # No padding: the box sets columns apart by one space already, and the widest numbers then just fit.
    table = Table(title=Text(title, style="bold"), title_justify="left", box=SIMPLE_HEAD, padding=0, pad_edge=False,
                  show_edge=False)  # fmt: skip
    table.add_column(Text("arm"), max_width=NAME_WIDTH, overflow="fold")
    return table


def _arm_cells(row: ArmRow) -> list[Text]:
    accuracies = [_stacked(row.accuracies[key]) for key in ACCURACIES]
    auroc = Cell(row.auroc.value, row.auroc.interval.replace("0.", "."))  # two columns of width for two zeros
    # d′ and c stand without intervals: ten columns with them do not fit a terminal; the report has them.
    detection = [Text(row.d_prime.value), Text(row.criterion.value), _stacked(auroc)]
    return [Text(f"{row.n}\nof {row.n_of}"), *accuracies, *detection, _stacked(row.flip_rate)]


def _comparison_cells(row: ComparisonRow) -> list[Text]:
    counts = Text(MISSING if row.fixed is None else f"{row.fixed}/\n{row.broken}")
    deltas = (row.deltas.get(key, Cell(MISSING)) for key in _DELTAS)
    return [*map(_stacked, deltas), counts, Text(f"{row.p_holm.replace('<0.', '<.')}\n{row.wins}")]


def _folded(name: str) -> Text:
    """The name over as many lines as it needs, broken behind "_", "-", "=" and the like where it can be."""
    lines = [""]
    for piece in re.split(r"(?<=[_\-/=,\s])", name):
        if lines[-1] and len(lines[-1]) + len(piece) > NAME_WIDTH:
            lines.append("")
        lines[-1] += piece
    return Text("\n".join(lines))


def _stacked(cell: Cell) -> Text:
    text = Text(cell.value)
    if cell.interval:
        text.append("\n").append(cell.interval, style="dim")
    return text
