"""The grid as a terminal shows it: one row a setting, the baseline first."""

from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from experiments.report.formatting import fixed, percent
from experiments.summary import points

COLUMNS = ("α", "step", "unsafe", "over-\nsafety", "over-\nall", "yes", "AUROC", "d′", "above shifts\n(95%)")


def table(result: Mapping[str, Any]) -> Table:
    """Accuracies and Yes in %; the last column is unsafe accuracy minus that of the shift of equal over-safety."""
    shown = Table(title="VCD by weight and noise step", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), title_justify="left")
    for name in COLUMNS:
        shown.add_column(name, justify="right", no_wrap=True)
    shown.add_row("–", "–", *_cells(result["baseline"]), "")
    for row in result["points"]:
        best = "bold" if row["name"] == result["best"] else None
        height = row["above_shift_curve"]
        cell = points(height["value"], unit="")
        if height["low"] is not None:
            cell += f" ({points(height['low'], unit='')} to {points(height['high'], unit='')})"
        shown.add_row(f"{row['alpha']:g}", str(row["noise_step"]), *_cells(row), cell, style=best)
    return shown


def _cells(values: Mapping[str, Any]) -> list[str]:
    rates = [percent(values[name]) for name in ("unsafe", "over_safety", "overall", "yes_rate")]
    return [*rates, fixed(values["auroc"], 3), fixed(values["d_prime"], 2)]
