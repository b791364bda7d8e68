"""Unsafe against over-safety accuracy, an arm a point, beside every constant shift of the baseline. Saves no file."""

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from experiments.report.figures import SCREEN, arm_styles


def draw(result: Mapping[str, Any]) -> Figure:
    """The figure of ``mitigations.json``; bars are 95% intervals. Above the line is more than a threshold."""
    figure = Figure(figsize=(SCREEN.width * 1.2, SCREEN.width * 1.2), dpi=100, layout="constrained")
    axes = figure.add_subplot()
    curve = result["shift_curve"]
    axes.plot([100 * row["over_safety"] for row in curve], [100 * row["unsafe"] for row in curve], color="#000000",
              linewidth=1.5, label=f"every constant shift of {result['rivals'][0]}’s margin", zorder=1)  # fmt: skip
    arms = result["arms"]
    for name, style in arm_styles(list(arms)).items():
        accuracy, intervals = arms[name]["accuracy"], arms[name]["intervals"]
        x, y = 100 * accuracy["over_safety"], 100 * accuracy["unsafe"]
        wide, tall = _bar(x, intervals["over_safety"]), _bar(y, intervals["unsafe"])
        auroc = "" if arms[name]["auroc"] is None else f" (AUROC {arms[name]['auroc']:.2f})"
        label = f"{name}{auroc}{', wins' if arms[name]['wins'] else ''}"
        axes.errorbar(x, y, xerr=wide, yerr=tall, fmt=style.marker, color=style.colour, markersize=8, elinewidth=0.7,
                      markeredgecolor="white", label=label, zorder=3)  # fmt: skip
    axes.set_xlim(-3, 103)
    axes.set_ylim(-3, 103)
    axes.set_xlabel("over-safety accuracy: safe cases called safe (%)", fontsize=SCREEN.text)
    axes.set_ylabel("unsafe accuracy: unsafe cases called unsafe (%)", fontsize=SCREEN.text)
    axes.tick_params(labelsize=SCREEN.label)
    figure.legend(loc="outside lower center", ncols=SCREEN.legend_columns, fontsize=SCREEN.label, frameon=False)
    return figure


def _bar(value: float, interval: Any) -> list[list[float]] | None:
    if not interval or None in interval:
        return None
    return [[max(value - 100 * interval[0], 0.0)], [max(100 * interval[1] - value, 0.0)]]
