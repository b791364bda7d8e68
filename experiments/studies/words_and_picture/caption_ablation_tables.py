"""What stands beside the right caption, as a table and as one figure of dots."""

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.report.figures import COLOURS, GREY, SCREEN
from experiments.report.numbers import fixed
from experiments.report.sentences.caption_ablation import ARMS, CUTS, INSTEAD
from experiments.report.sentences.wording import compared
from experiments.report.table import Cell, Table
from experiments.studies.words_and_picture.arms import cells

WIDTH, HEIGHT = 7.2, 4.6  # inches of 100 px
ALT = "AUROC with the right caption alone, beside the picture, and with one thing at a time changed, with intervals."
CAPTION = "The right caption alone, beside the picture, and with one thing at a time changed. Bars: 95% intervals."
_COLOUR = {**dict.fromkeys(INSTEAD, 2), **dict.fromkeys(CUTS, 3), "other_caption": 4, "alone": 1, "worded": 1}
Result = Mapping[str, Any]


def tables(result: Result) -> list[Table]:
    """A row an arm."""
    records: list[dict[str, str | Cell]] = []
    for row in result["arms"]:
        found = cells(row)
        minus = compared("minus picture and caption", row["minus_beside"], digits=3)
        minus |= compared("minus caption alone", row["minus_alone"], digits=3)
        records.append({"asked": ARMS[row["arm"]], "AUROC": found.pop("AUROC"), **minus, **found})
    n = result["arms"][0]["n"]
    title = f"The right caption beside the picture ({n['unsafe']} unsafe, {n['over_safety']} safe cases)"
    return [Table.of(title, records)]


def draw(result: Result) -> Figure:
    """A dot an arm, from the caption alone down to the other thing's caption."""
    figure = Figure(figsize=(WIDTH, HEIGHT), dpi=100, layout="constrained")
    dots(figure.subplots(), result)
    return figure


def dots(axes: Axes, result: Result) -> None:
    """The arms' AUROC, with bars."""
    rows = [row for row in result["arms"] if row["auroc"] is not None]
    for place, row in enumerate(rows):
        colour = COLOURS[_COLOUR.get(row["arm"], 0)]
        if (ends := row["intervals"]["auroc"]) is not None:
            axes.plot(list(ends), [place, place], color=colour, linewidth=2)
        axes.plot(row["auroc"], place, "o", color=colour, markersize=6)
        axes.text(row["auroc"], place - 0.18, fixed(row["auroc"], 2), fontsize=SCREEN.label - 1, ha="center",
                  va="bottom", color=colour)  # fmt: skip
    axes.axvline(0.5, color=GREY, linestyle=":", linewidth=1)
    axes.set_yticks(range(len(rows)), [ARMS[row["arm"]] for row in rows])
    axes.set(ylim=(len(rows) - 0.4, -0.8), xlim=(0, 1.02))
    axes.tick_params(labelsize=SCREEN.label)
    axes.set_xlabel("AUROC (0.5: chance)", fontsize=SCREEN.text)
