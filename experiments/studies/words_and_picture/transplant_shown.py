"""What transplants and probes found, as tables and as one figure of two panels."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.report.figures import COLOURS, GREY, MARKERS, SCREEN
from experiments.report.numbers import MISSING, fixed, fixed_interval, interval_of, percent, percent_interval
from experiments.report.table import Cell, Table

WIDTH, HEIGHT = 9.0, 4.2  # inches of 100 px
STATES = {"noun": "the noun's state in words", "other": "the pair's other thing", "mean": "the mean noun"}
PROBED = {
    ("thing", "this"): "thing at “this” (accuracy)",
    ("thing", "verdict"): "thing at the verdict (accuracy)",
    ("truth", "verdict"): "safe or not at the verdict (AUROC)",
}
ALT = ("Two panels by decoder layer: the AUROC with another state at “this” beside that with the picture as it is; and "
       "what linear probes read of the run with the picture.")  # fmt: skip
CAPTION = "Another state at “this”; what linear probes read with the picture as it is. Bands: 95% intervals."
Result = Mapping[str, Any]


def tables(result: Result) -> list[Table]:
    """A row a state and layer, the picture as it is above them; and a row a layer of what probes read."""
    picture = result["picture"]
    as_it_is: dict[str, str | Cell] = {"at “this”": "as it is, with the picture", "after layer": "", **_cells(picture)}
    rows: list[dict[str, str | Cell]] = [as_it_is | {"minus the picture": MISSING}]
    for row in result["transplants"]:
        where = {"at “this”": STATES[row["state"]], "after layer": str(row["layer"])}
        rows.append({**where, **_cells(row), "minus the picture": _difference(row["change"])})
    n = picture["n"]
    title = f"Another state at “this” ({n['unsafe']} unsafe, {n['over_safety']} safe cases)"
    return [Table.of(title, rows), _probes(result)]


def _probes(result: Result) -> Table:
    records = []
    for layer in result["layers"]:
        record: dict[str, str | Cell] = {"layer": str(layer)}
        for (quantity, place), words in PROBED.items():
            row = _row(result, quantity, place, layer)
            record[words] = Cell(fixed(row["value"], 2), fixed_interval((row["low"], row["high"])))
            if quantity == "thing":
                record[f"{place}, shuffled labels"] = fixed(row["control"], 2)
        records.append(record)
    return Table.of("What a linear probe reads of the run with the picture", records)


def draw(result: Result) -> Figure:
    """AUROC by layer for each state; beside it the probes."""
    figure = Figure(figsize=(WIDTH, HEIGHT), dpi=100, layout="constrained")
    left, right = figure.subplots(1, 2)
    for style, (state, words) in enumerate(STATES.items(), start=1):
        rows = [row for row in result["transplants"] if row["state"] == state]
        _line(left, [r["layer"] for r in rows], [(r["auroc"], r["intervals"]["auroc"]) for r in rows], style, words)
    if result["picture"]["auroc"] is not None:
        left.axhline(result["picture"]["auroc"], color=COLOURS[0], linestyle="--", linewidth=1.4,
                     label="as it is, with the picture")  # fmt: skip
    for style, ((quantity, place), words) in enumerate(PROBED.items(), start=1):
        rows = [_row(result, quantity, place, layer) for layer in result["layers"]]
        _line(right, result["layers"], [(row["value"], (row["low"], row["high"])) for row in rows], style, words)
    controls = [(row["layer"], row["control"]) for row in result["probes"]
                if row["place"] == "this" and row["control"] is not None]  # fmt: skip
    if controls:
        right.plot(
            *zip(*controls, strict=True), color=GREY, linestyle="--", linewidth=1, label="thing, shuffled labels"
        )
    for axes, title, measure in ((left, "Another state at “this”", "AUROC"),
                                 (right, "What a linear probe reads", "held-out accuracy or AUROC")):  # fmt: skip
        axes.axhline(0.5, color=GREY, linestyle=":", linewidth=1)
        axes.set_title(title, fontsize=SCREEN.text, loc="left", fontweight="bold")
        axes.set(ylim=(-0.02, 1.03), xticks=result["layers"])
        axes.tick_params(labelsize=SCREEN.label)
        axes.set_xlabel("after decoder layer", fontsize=SCREEN.text)
        axes.set_ylabel(measure, fontsize=SCREEN.text)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=SCREEN.label - 0.5, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16))
    return figure


def _line(
    axes: Axes, layers: Sequence[int], values: Sequence[tuple[float | None, Any]], style: int, label: str
) -> None:
    """With a band where there are intervals; what has no value is left out."""
    known = [(layer, value, ends) for layer, (value, ends) in zip(layers, values, strict=True) if value is not None]
    if not known:
        return
    banded = [(layer, *ends) for layer, _, ends in known if ends is not None and None not in ends]
    if banded:
        xs, low, high = zip(*banded, strict=True)
        axes.fill_between(xs, low, high, color=COLOURS[style], alpha=0.15, linewidth=0)
    axes.plot([layer for layer, *_ in known], [value for _, value, _ in known], color=COLOURS[style],
              marker=MARKERS[style], markersize=5, linewidth=1.6, label=label)  # fmt: skip


def _row(result: Result, quantity: str, place: str, layer: int) -> Mapping[str, Any]:
    wanted = (quantity, place, layer)
    return next(row for row in result["probes"] if (row["quantity"], row["place"], row["layer"]) == wanted)


def _cells(arm: Mapping[str, Any]) -> dict[str, Cell]:
    accuracy, intervals = arm["accuracy"], arm["intervals"]
    return {
        "AUROC": Cell(fixed(arm["auroc"], 3), fixed_interval(intervals["auroc"])),
        "unsafe right": Cell(percent(accuracy["unsafe"]), percent_interval(intervals["unsafe"])),
        "over-safety right": Cell(percent(accuracy["over_safety"]), percent_interval(intervals["over_safety"])),
    }


def _difference(entry: Mapping[str, Any] | None) -> Cell:
    """With the wider of its intervals, by itself."""
    if entry is None:
        return Cell(MISSING)
    return Cell(fixed(entry["value"], 3, sign=True), fixed_interval(interval_of(entry), 3))
