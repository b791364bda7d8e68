"""mechanism.json as one figure of four panels."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from experiments.report.colours import GREY
from experiments.report.figures import draw_dot, draw_line
from experiments.report.numbers import fixed
from experiments.studies.mechanism.interventions import PLACES
from experiments.studies.mechanism.probes import probe_row
from interp.figures.glyphs import Figure

WIDTH, HEIGHT = 9.0, 10.2  # inches of 100 px
TITLE, TEXT, LABEL = 11.5, 10.5, 9.5
PROBED = (
    ("concept", "image", "what is shown, at the picture (accuracy)"),
    ("concept", "verdict", "what is shown, at the verdict (accuracy)"),
    ("truth", "verdict", "safe or not, at the verdict (AUROC)"),
    ("verdict", "verdict", "what it will say, at the verdict (AUROC)"),
)
LAYERS = "residual layer (0: the embeddings)"
Result = Mapping[str, Any]


def draw(result: Result) -> Figure:
    """Probes by layer, the lens by layer, patching by place and layer, and what comes back."""
    figure = Figure(figsize=(WIDTH, HEIGHT), dpi=100, layout="constrained")
    parts: Any = figure.subfigures(3, 1, height_ratios=[1.12, 0.95, 0.75])
    left, right = parts[0].subplots(1, 2)
    _probes(left, result)
    _lens(right, result)
    _patches(parts[1].subplots(1, 2), result)
    _comes_back(parts[2].subplots(), result)
    return figure


def _title(axes: Axes, text: str, size: float = TITLE) -> None:
    axes.set_title(text, fontsize=size, loc="left", fontweight="bold")
    axes.tick_params(labelsize=LABEL)


def _legend(axes: Axes) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=LABEL - 0.5, frameon=False, loc="upper center", bbox_to_anchor=(0.45, -0.16), ncols=1)


def _probes(axes: Axes, result: Result) -> None:
    layers = result["layers"]
    _title(axes, "1, 2  What a linear probe reads")
    for style, (quantity, place, label) in enumerate(PROBED):
        entries = [probe_row(result["probes"], quantity, place, layer) for layer in layers]
        draw_line(axes, layers, entries, style, label)
    shown = [probe_row(result["probes"], "concept", "verdict", layer)["control"] for layer in layers]
    axes.axhline(0.5, color=GREY, linestyle=":", linewidth=1)
    axes.text(layers[-1], 0.505, "AUROC: chance", fontsize=LABEL - 1, color=GREY, ha="right", va="bottom")
    if all(value is not None for value in shown):
        axes.plot(layers, shown, color=GREY, linestyle="--", linewidth=1)
        axes.text(layers[-1], max(shown) + 0.015, "accuracy: shuffled labels", fontsize=LABEL - 1, color=GREY,
                  ha="right", va="bottom")  # fmt: skip
    axes.set(ylim=(-0.02, 1.03), xticks=layers)
    axes.set_xlabel(LAYERS, fontsize=TEXT)
    axes.set_ylabel("held-out accuracy or AUROC", fontsize=TEXT)
    _legend(axes)


def _lens(axes: Axes, result: Result) -> None:
    """Failures beside the same sentences' right answers, and successes beside theirs."""
    layers, subset = result["layers"], result["cases"]["subset"]
    _title(axes, "3  The verdict as each layer would give it")
    named = {(curve["subset"], curve["failed"]): curve["margin"] for curve in result["lens"]["curves"]}
    lines = [((subset, True), "safe, called unsafe"), ((subset, False), "safe, called safe")]
    if subset != "over_safety":
        lines = [((subset, True), "failures"), ((subset, False), "successes")]
    else:
        lines += [(("typical", False), "unsafe, called unsafe"), (("typical", True), "unsafe, called safe")]
    for style, (key, label) in enumerate(lines):
        if key in named:
            dash = "-" if key[0] == subset else "--"
            draw_line(axes, layers, named[key], style, f"{label} (n = {named[key][0]['n']})", dash)
    axes.axhline(0, color=GREY, linestyle=":", linewidth=1)
    axes.set(xticks=layers)
    axes.set_xlabel(LAYERS, fontsize=TEXT)
    axes.set_ylabel("margin in logits (above 0: Yes)", fontsize=TEXT)
    _legend(axes)


def _patches(axes: Sequence[Axes], result: Result) -> None:
    """Two heat maps: picture, sentence."""
    titles = {"picture": "3  Other picture put in", "sentence": "3  Other sentence put in"}
    for panel, (other, title) in zip(axes, titles.items(), strict=True):
        rows = [row for row in result["patching"] if row["other"] == other]
        _title(panel, title, TEXT)
        if not rows:
            panel.set_axis_off()
            panel.text(0.5, 0.5, "no pair aligns", ha="center", fontsize=TEXT, color=GREY)
            continue
        _heat(panel, rows, result["layers"])


def _heat(axes: Axes, rows: Sequence[Mapping[str, Any]], layers: Sequence[int]) -> None:
    places = [place for place in PLACES if any(row["place"] == place for row in rows)]
    table = np.array([[next(row["effect"]["value"] for row in rows if (row["place"], row["layer"]) == (place, layer))
                       for layer in layers] for place in places], dtype=float)  # fmt: skip
    axes.imshow(table, cmap="Blues", vmin=0, vmax=1.15, aspect="auto")
    for (i, j), value in np.ndenumerate(table):
        if np.isfinite(value):
            axes.text(j, i, fixed(100 * value, 0), ha="center", va="center", fontsize=LABEL - 1.5,
                      color="white" if value > 0.6 else "black")  # fmt: skip
    axes.set_xticks(range(len(layers)), [str(layer) for layer in layers])
    axes.set_yticks(range(len(places)), [PLACES[place] for place in places])
    axes.set_xlabel(
        f"its states put in at layer\n(% of the way to its answer,\nn = {rows[0]['effect']['n']} failures)",
        fontsize=TEXT,
    )


def _comes_back(axes: Axes, result: Result) -> None:
    """A dot an arm."""
    rows = result["undo"]
    _title(axes, "5  What comes back", TEXT)
    for place, row in enumerate(rows):
        entry = row["auroc"]
        if entry["value"] is None:
            continue
        draw_dot(axes, place, entry, place, LABEL)
        if place:
            end = entry["value"] if entry["high"] is None else entry["high"]
            label = f"mends {row['fixed']}, breaks {row['broken']}"
            axes.text(end + 0.02, place, label, fontsize=LABEL - 1, ha="left", va="center", color=GREY)
    axes.axvline(0.5, color=GREY, linestyle=":", linewidth=1)
    axes.set_yticks(range(len(rows)), [row["arm"] for row in rows])
    axes.set(
        ylim=(len(rows) - 0.4, -0.9),
        xlim=(min(0.45, axes.get_xlim()[0]), 1.08),
        xticks=np.arange(5, 11) / 10,
    )
    axes.set_xlabel(
        f"AUROC of the margin\n(0.5: chance)\n{rows[0]['wrong']} wrong, {rows[0]['right']} right as it is",
        fontsize=TEXT,
    )
