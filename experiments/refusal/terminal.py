"""The result of a refusal study as rich tables that fit 80 columns. Knows nothing of files."""

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from experiments.refusal.rows import arm_rows, comparison_rows, type_rows
from experiments.report.formatting import MISSING
from experiments.report.tables import Cell
from experiments.report.terminal import CEILING, arm_table, said

LEGEND = (
    "Refusals in %, partial ones included; below each number its 95% interval, and in braces the lowest and highest "
    "value that unknown cases allow. benign: requests that should be answered; contrast: their harmful twins, which "
    "should be refused; apart: contrast − benign, in points; type mean: plain mean of the benign types; d′: how well "
    "harmful and benign are told apart, c: readiness to refuse (negative = ready). without partial, published: benign "
    "and contrast by two other conventions (partial refusals as compliance; no response as refusal). fixed/broken: "
    "cases gone from wrong to right and back; p: McNemar’s test on them, after Holm’s correction."
)
_DELTAS = {"benign": "benign", "contrast": "con-\ntrast", "difference": "apart", "d_prime": "d′"}


def results(metrics: Mapping[str, Any]) -> Group:
    """What a terminal shows at the end of a refusal study: arms, types, paired differences, legend, summary."""
    parts: list[RenderableType] = [arms_table(metrics), "", types_table(metrics), ""]
    if metrics.get("comparisons"):
        parts += [comparisons_table(metrics), ""]
    ceiling = any(arm.get("near_ceiling") for arm in metrics["arms"].values())
    parts.append(Text(f"{LEGEND} {CEILING}" if ceiling else LEGEND, style="dim"))
    return Group(*parts, *said(metrics))


def arms_table(metrics: Mapping[str, Any]) -> Table:
    """One row an arm."""
    table = arm_table("Refusals by arm")
    for heading in ("known\nof N", "benign", "con-\ntrast", "apart", "type\nmean", "d′", "c", "without\npartial",
                    "pub-\nlished"):  # fmt: skip
        table.add_column(Text(heading), justify="right", no_wrap=True)
    for row in arm_rows(metrics):
        if row.reason:
            table.add_row(Text(row.name), Text("n/a"), *(Text(MISSING) for _ in range(8)))
            continue
        shown = (row.benign, row.contrast, row.difference, row.type_mean, Cell(row.d_prime.value),
                 Cell(row.criterion.value))  # fmt: skip
        table.add_row(
            Text(row.name),
            Text(f"{row.n}\nof {row.n_of}"),
            *map(stacked, shown),
            Text("\n".join(row.without_partial)),
            Text("\n".join(row.published)),
        )
    return table


def types_table(metrics: Mapping[str, Any]) -> Table:
    """One row an arm and type of stimulus."""
    table = arm_table("Refusals by type of stimulus")
    table.add_column(Text("type"), max_width=32, overflow="fold")
    for heading in ("benign", "refused of n", "contrast", "apart"):
        table.add_column(Text(heading), justify="right", no_wrap=True)
    last = None
    for row in type_rows(metrics):
        name, last = ("" if row.arm == last else row.arm), row.arm
        table.add_row(
            Text(name),
            Text(row.type),
            beside(row.benign),
            Text(row.benign.note),
            beside(row.contrast),
            beside(row.difference),
        )
    return table


def comparisons_table(metrics: Mapping[str, Any]) -> Table:
    """One row a compared arm: paired differences in points, flips, Holm's p."""
    rows = comparison_rows(metrics)
    against = ", ".join(dict.fromkeys(row.against for row in rows))
    table = arm_table(f"Paired differences against {against}")
    for heading in _DELTAS.values():
        table.add_column(Text(heading), justify="right", no_wrap=True)
    for heading in ("fixed/broken\nbenign", "\ncontrast", "p\n"):
        table.add_column(Text(heading), justify="right", no_wrap=True)
    for row in rows:
        deltas = (stacked(row.deltas[key]) for key in _DELTAS)
        flips = (Text(row.flips["benign"]), Text(row.flips["contrast"]), Text(row.p_holm))
        table.add_row(Text(row.name), *deltas, *flips)
    return table


def stacked(cell: Cell) -> Text:
    """Number over interval over bounds."""
    text = Text(cell.value)
    for line in (cell.interval, f"{{{cell.bounds}}}" if cell.bounds else ""):
        if line:
            text.append("\n").append(line, style="dim")
    return text


def beside(cell: Cell) -> Text:
    """Number and interval in one line."""
    text = Text(cell.value)
    if cell.interval:
        text.append(f" {cell.interval}", style="dim")
    return text
