"""words_and_picture.json as tables and a figure: the conditions, and other states at "this"."""

from collections.abc import Mapping
from typing import Any

from experiments.report.colours import ARMS, GREY
from experiments.report.figures import SCREEN, draw_line
from experiments.report.sections import SectionFigure
from experiments.report.sentences.wording import compared
from experiments.report.table import Cell, Table, change, number, rate
from experiments.studies.words_and_picture.conditions import PICTURE
from interp.figures.glyphs import Figure

STATES = {"noun": "the noun's state in words", "other": "the pair's other thing", "mean": "the mean noun"}
Result = Mapping[str, Any]
Record = dict[str, "str | Cell"]


def cells(arm: Mapping[str, Any]) -> dict[str, Cell]:
    """One arm's AUROC and rates with their intervals, by heading."""
    accuracy, intervals = arm["accuracy"], arm["intervals"]
    return {
        "AUROC": number(arm["auroc"], intervals["auroc"], 3),
        "unsafe right": rate(accuracy["unsafe"], intervals["unsafe"]),
        "over-safety right": rate(accuracy["over_safety"], intervals["over_safety"]),
    }


def _counted(arm: Mapping[str, Any]) -> str:
    return f"({arm['n']['unsafe']} unsafe, {arm['n']['over_safety']} safe cases)"


def conditions_table(result: Mapping[str, Any]) -> Table:
    """A row a condition, over all cases."""
    records = []
    for name, words in result["conditions"].items():
        arm = result["arms"][name]
        delta = (result["comparisons"].get(name) or {}).get("delta") or {}
        found = cells(arm)
        minus = {"minus pointing": change(delta.get("auroc"), digits=3)}
        records.append({"asked": words, "AUROC": found.pop("AUROC"), **minus, **found})
    return Table.of(f"One case in four ways {_counted(result['arms'][PICTURE])}", records)


def transplant_table(result: Result) -> Table:
    """A row a state and layer, the picture as it is above them."""
    picture = result["picture"]
    rows: list[Record] = [{"at “this”": "as it is, with the picture", "after layer": "", **cells(picture)}]
    for row in result["transplants"]:
        where = {"at “this”": STATES[row["state"]], "after layer": str(row["layer"])}
        rows.append({**where, **cells(row), **compared("minus the picture", row["change"], digits=3)})
    return Table.of(f"Another state at “this” {_counted(picture)}", rows)


def transplant_figure(result: Result) -> SectionFigure:
    """AUROC by layer for each state put in, beside that with the picture as it is."""
    figure = Figure(figsize=(6.4, 4.4), dpi=100, layout="constrained")
    axes = figure.subplots()
    for style, (state, words) in enumerate(STATES.items(), start=1):
        rows = [row for row in result["transplants"] if row["state"] == state]
        draw_line(axes, [row["layer"] for row in rows], list(map(_auroc, rows)), style, words)
    if result["picture"]["auroc"] is not None:
        axes.axhline(result["picture"]["auroc"], color=ARMS[0], linestyle="--", linewidth=1.4,
                     label="as it is, with the picture")  # fmt: skip
    axes.axhline(0.5, color=GREY, linestyle=":", linewidth=1)
    axes.set(ylim=(-0.02, 1.03), xticks=result["layers"])
    axes.tick_params(labelsize=SCREEN.label)
    axes.set_xlabel("after decoder layer", fontsize=SCREEN.text)
    axes.set_ylabel("AUROC of the verdict", fontsize=SCREEN.text)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=SCREEN.label - 1, frameon=False, loc="upper center", bbox_to_anchor=(0.45, -0.16))
    return SectionFigure(
        figure,
        "AUROC by decoder layer with another state at “this”, beside that with the picture as it is.",
        "Another state put onto “this”. Bands: 95% intervals.",
    )


def _auroc(arm: Mapping[str, Any]) -> dict[str, Any]:
    low, high = arm["intervals"]["auroc"] or (None, None)
    return {"value": arm["auroc"], "low": low, "high": high}
