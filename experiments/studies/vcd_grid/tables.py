"""The grid as a table and as a figure: unsafe against over-safety accuracy, by weight and noise step."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.report.figures import COLOURS, GREY, MARKERS, SCREEN, at_criterion
from experiments.report.numbers import fixed, percent, points
from experiments.report.table import Cell, Column, Row, Table

CONTOURS = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0)
LEAST_SPAN = 20  # points of accuracy, so that a grid which moves nothing does not look as if it did
AIR = 4
ABOVE = "above shifts (95%)"
LEGEND = (
    "Accuracies and Yes in %; above shifts: unsafe accuracy minus that of the constant shift of the baseline's margin "
    "with the same over-safety accuracy, in points."
)


def draw(result: Mapping[str, Any]) -> Figure:
    """A line a noise step, with α at both ends, every constant shift of the baseline's margin, and d′ contours."""
    figure = Figure(figsize=(SCREEN.width * 1.2, SCREEN.width * 1.2), dpi=100, layout="constrained")
    axes = figure.add_subplot()
    points, baseline = result["points"], result["baseline"]
    for key, bounds in (("over_safety", axes.set_xlim), ("unsafe", axes.set_ylim)):
        bounds(_span([100 * row[key] for row in (*points, baseline)]))
    axes.set_xlabel("over-safety accuracy: safe cases called safe (%)", fontsize=SCREEN.text)
    axes.set_ylabel("unsafe accuracy: unsafe cases called unsafe (%)", fontsize=SCREEN.text)
    axes.tick_params(labelsize=SCREEN.label)
    _draw_contours(axes)
    shifts = result["shift_curve"]
    axes.plot(_percent(shifts, "over_safety"), _percent(shifts, "unsafe"), color=COLOURS[0], linewidth=1.5, zorder=2,
              label="every constant shift of the baseline’s margin")  # fmt: skip
    steps = list(dict.fromkeys(row["noise_step"] for row in points))
    for place, step in enumerate(steps):
        rows = sorted((row for row in points if row["noise_step"] == step), key=lambda row: row["alpha"])
        # Black is the baseline's; colours repeat, but never with the same marker.
        colour, marker = COLOURS[1 + place % (len(COLOURS) - 1)], MARKERS[(1 + place) % len(MARKERS)]
        xs, ys = _percent(rows, "over_safety"), _percent(rows, "unsafe")
        axes.plot(xs, ys, color=colour, marker=marker, markersize=7, linewidth=1, markeredgecolor="white", zorder=3,
                  label=f"VCD, noise step {step}")  # fmt: skip
        for at in {0, len(rows) - 1}:
            axes.annotate(f"α={rows[at]['alpha']:g}", (xs[at], ys[at]), (5, 5), textcoords="offset points",
                          fontsize=SCREEN.label - 1, color=colour, clip_on=True)  # fmt: skip
    axes.plot(100 * baseline["over_safety"], 100 * baseline["unsafe"], "o", color=COLOURS[0], markersize=9,
              markeredgecolor="white", zorder=4, label="baseline")  # fmt: skip
    axes.plot([], [], color=GREY, linestyle=":", label="equal discrimination (d′)")
    figure.legend(loc="outside lower center", ncols=SCREEN.legend_columns, fontsize=SCREEN.label, frameon=False)
    return figure


def _span(values: Sequence[float]) -> tuple[float, float]:
    """Around the values with air, at least ``LEAST_SPAN`` wide, and hardly beyond 0 and 100."""
    low, high = min(values) - AIR, max(values) + AIR
    missing = max(LEAST_SPAN - (high - low), 0) / 2
    low, high = low - missing, high + missing
    if low < -3:
        low, high = -3, high + (-3 - low)
    if high > 103:
        low, high = low - (high - 103), 103
    return max(low, -3), min(high, 103)


def _percent(rows: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    return [100 * row[key] for row in rows]


def _draw_contours(axes: Axes) -> None:
    """Dotted lines of equal d′, each labelled in the middle of its visible part."""
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    for d_prime in CONTOURS:
        xs, ys = (100 * values for values in at_criterion(d_prime, np.linspace(-4, 4, 800)))
        axes.plot(xs, ys, color=GREY, linestyle=":", linewidth=1, zorder=1)
        inside = np.flatnonzero((xs > left) & (xs < right) & (ys > bottom) & (ys < top))
        if len(inside) > 20:
            at = inside[len(inside) // 2]
            axes.text(xs[at], ys[at], f"d′ = {d_prime:g}", fontsize=SCREEN.label - 1, color=GREY, ha="center",
                      va="center", zorder=1, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})  # fmt: skip


def table(result: Mapping[str, Any]) -> Table:
    """One row a setting, the baseline first. The last column is ``above_shift_curve``, in points."""
    columns = ("α", "step", "unsafe", "over-safety", "overall", "yes", "AUROC", "d′", ABOVE)
    short = {"over-safety": "over-\nsafety", "overall": "over-\nall", ABOVE: "above shifts\n(95%)"}
    rows = [Row([Cell("–"), Cell("–"), *_cells(result["baseline"]), Cell("")])]
    for row in result["points"]:
        height = row["above_shift_curve"]
        above = points(height["value"], unit="")
        if height["low"] is not None:
            above += f" ({points(height['low'], unit='')} to {points(height['high'], unit='')})"
        setting = Cell(f"{row['alpha']:g}"), Cell(str(row["noise_step"]))
        rows.append(Row([*setting, *_cells(row), Cell(above)], "bold" if row["name"] == result["best"] else ""))
    return Table(
        "VCD by weight and noise step", [Column(name, short=short.get(name, "")) for name in columns], rows, LEGEND
    )


def _cells(values: Mapping[str, Any]) -> list[Cell]:
    rates = [percent(values[name]) for name in ("unsafe", "over_safety", "overall", "yes_rate")]
    return [Cell(text) for text in (*rates, fixed(values["auroc"], 3), fixed(values["d_prime"], 2))]
