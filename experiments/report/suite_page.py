"""One page for several benchmarks of one model: refusal of harmful against refusal of benign, a panel an arm."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.lines import Line2D

from experiments.report import colours
from experiments.report.arm_tables import known_cell
from experiments.report.colours import GREY
from experiments.report.figures import SCREEN, arm_styles, embedded, svg_bytes
from experiments.report.numbers import fixed, percent, percent_interval
from experiments.report.safety_figure import Point, draw, points
from experiments.report.table import Cell, Column, Table, copies, rate
from interp.figures.glyphs import Figure, cut, encoded

ACROSS = 3  # panels in a row
SIDE = 3.0  # inches of a panel
NOTE = "calling a sentence unsafe stands for refusing it"


def by_arm(metrics: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Point]]:
    """Arm → benchmark → its point, arms in the order in which they first appear."""
    found: dict[str, dict[str, Point]] = {}
    for benchmark, one in metrics.items():
        for point in points(one):
            found.setdefault(point.name, {})[benchmark] = point
    return found


def panels_of_arms(panels: Mapping[str, Mapping[str, Point]], benchmarks: Sequence[str]) -> Figure:
    """A panel an arm, all on one scale; in each a dot a benchmark with its 95% intervals."""
    across = min(ACROSS, max(1, len(panels)))
    down = math.ceil(max(1, len(panels)) / across)
    figure = Figure(figsize=(SIDE * across + 0.4, SIDE * down + 0.9), dpi=100, layout="constrained")
    grid = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
    styles = arm_styles(list(benchmarks))
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for place, (axes, (arm, shown)) in enumerate(zip(grid.flat, panels.items(), strict=False)):
        if place + across >= len(panels):  # no panel below
            axes.set_xlabel("benign refused (%)", fontsize=SCREEN.text)
            axes.tick_params(labelbottom=True)
        if place % across == 0:
            axes.set_ylabel("harmful refused (%)", fontsize=SCREEN.text)
        axes.set_title(cut(arm, SCREEN.name_length), fontsize=SCREEN.text)
        draw(axes, [point._replace(name=name) for name, point in shown.items()], styles, SCREEN, step=25)
    handles = [Line2D([], [], color=styles[name].colour, marker=styles[name].marker, markeredgecolor="white",
                      linestyle="", label=cut(name, SCREEN.name_length)) for name in benchmarks]  # fmt: skip
    handles.append(Line2D([], [], color=GREY, linestyle=":", label="both refused alike"))
    figure.legend(handles=handles, loc="outside lower center", ncols=min(4, len(handles)), fontsize=SCREEN.label,
                  frameon=False)  # fmt: skip
    return figure


def table(metrics: Mapping[str, Mapping[str, Any]]) -> Table:
    """A row a benchmark and arm: both rates with intervals, cases, d′ and the flip rate where there are pairs."""
    records, marked = [], []
    for benchmark, one in metrics.items():
        shown = {point.name: point for point in points(one)}
        for name, arm in one["arms"].items():
            point = shown.get(name) or Point(name, math.nan, math.nan)
            pairs = arm.get("pairs")
            records.append({
                "benchmark": benchmark,
                "arm": name,
                "known of N": known_cell(arm),
                "benign refused": Cell(percent(point.benign), percent_interval(point.benign_interval)),
                "harmful refused": Cell(percent(point.contrast), percent_interval(point.contrast_interval)),
                "d′": fixed(arm.get("d_prime"), 2),
                "flip rate": rate(pairs["flip_rate"], pairs["interval"]) if pairs else percent(arm.get("flip_rate")),
            })  # fmt: skip
            marked.append(name == one.get("study"))
    return Table.of("Every benchmark and arm", records, layout=[Column("arm", "left")], marked=marked)


def sentences(metrics: Mapping[str, Mapping[str, Any]], left_out: Sequence[str]) -> list[str]:
    """One sentence a benchmark on the arm under study, and what was ``left_out``, as it would be typed."""
    lines = []
    for benchmark, one in metrics.items():
        study = str(one.get("study"))
        point = next((point for point in points(one) if point.name == study), None)
        if point is None:
            lines.append(f"{benchmark}: {study} has no rate of benign or of harmful requests; its report says why.")
            continue
        rates = f"{percent(point.benign)}% of benign and {percent(point.contrast)}% of harmful requests refused"
        note = "" if one.get("kind") == "refusal" else f" ({NOTE})"
        lines.append(f"{benchmark}: under {study}, {rates}{note}.")
    if left_out:
        lines.append(f"Left out, because no folder was given: {', '.join(left_out)}.")
    return lines


def describe(panels: Mapping[str, Mapping[str, Point]]) -> str:
    """The figure in words, for those who do not see it."""
    listed = "; ".join(
        f"{arm}: " + ", ".join(f"{name} benign {percent(p.benign)}%, harmful {percent(p.contrast)}%" for name, p in
                               shown.items())
        for arm, shown in panels.items()
    )  # fmt: skip
    return f"Refusal of harmful requests against refusal of benign ones, a panel an arm. {listed}."


def write(
    folder: Path,
    metrics: Mapping[str, Mapping[str, Any]],
    *,
    model: str,
    reports: Mapping[str, Path],
    left_out: Sequence[str],
) -> dict[str, Any]:
    """Writes the figure, the numbers and the page into ``folder``; returns the numbers.

    ``reports`` are the run directories of the benchmarks, to which the page links.
    """
    panels = by_arm(metrics)
    figure = panels_of_arms(panels, list(metrics))
    drawing = svg_bytes(figure)
    (folder / "suite.svg").write_bytes(drawing)
    (folder / "suite.png").write_bytes(encoded(figure, "png"))
    numbers = {
        "model": model,
        "arms": {arm: {name: point._asdict() for name, point in shown.items()} for arm, shown in panels.items()},
        "summary": sentences(metrics, left_out),
        "left_out": list(left_out),
        "runs": {name: str(path) for name, path in reports.items()},
    }
    text = json.dumps(numbers, indent=1, ensure_ascii=False)
    (folder / "suite.json").write_text(f"{text}\n", encoding="utf-8")
    environment = Environment(
        loader=PackageLoader("experiments.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters["copies"] = copies
    page = environment.get_template("suite.html.j2").render(
        model=model,
        colours=colours.css(),
        figure=embedded("suite", drawing, alt=describe(panels)),
        table=table(metrics),
        sentences=sentences(metrics, left_out),
        note=NOTE if any(one.get("kind") != "refusal" for one in metrics.values()) else "",
        links=[(name, os.path.relpath(path / "report.html", folder)) for name, path in reports.items()],
    )
    (folder / "suite.html").write_text(page, encoding="utf-8")
    return numbers
