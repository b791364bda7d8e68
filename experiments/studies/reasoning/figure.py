"""reasoning.json as one figure of three panels."""

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes

from experiments.report.colours import ARMS, GREY
from experiments.report.figures import draw_line
from experiments.studies.reasoning.decision_curve import OWN, PLACES, TRUTH
from experiments.studies.reasoning.looks import PLACES as ALONG
from experiments.studies.reasoning.mediation import DIRECT, THROUGH
from interp.figures.glyphs import Figure

TITLE, TEXT, LABEL = 11.5, 10.5, 9.5
Result = Mapping[str, Any]


def draw(result: Result) -> Figure:
    """The decision curve, mediation by kind of pair and mediator, and the picture's share along the thought."""
    figure = Figure(figsize=(9.0, 8.6), dpi=100, layout="constrained")
    parts: Any = figure.subfigures(2, 1, height_ratios=[1.0, 0.9])
    left, right = parts[0].subplots(1, 2)
    _curve(left, result)
    _looks(right, result)
    _mediation(parts[1].subplots(1, 1), result)
    return figure


def _curve(axes: Axes, result: Result) -> None:
    axes.set_title("1  When was it decided?", fontsize=TITLE, loc="left")
    for style, (label, words) in enumerate(((OWN, "its own final verdict"), (TRUTH, "the truth"))):
        entries = [row["order"] for row in result["curve"] if row["label"] == label]
        draw_line(axes, PLACES, entries, style, words)
    axes.axhline(0.5, color=GREY, linestyle=":", linewidth=1)
    axes.text(1.0, 0.505, "a guess", fontsize=LABEL - 1, color=GREY, ha="right", va="bottom")
    axes.set(ylim=(0.3, 1.03), xticks=PLACES)
    axes.set_xticklabels([f"{round(100 * place)}%" for place in PLACES])
    axes.set_xlabel("of the thought's sentences are kept", fontsize=TEXT)
    axes.set_ylabel("order within sentences (AUROC)", fontsize=TEXT)
    axes.legend(fontsize=LABEL, frameon=False, loc="lower right")


def _looks(axes: Axes, result: Result) -> None:
    axes.set_title("2  Where does it look while it thinks?", fontsize=TITLE, loc="left")
    rows = result["looks"]["rows"]
    if not rows:
        axes.text(0.5, 0.5, "not measured", ha="center", va="center", transform=axes.transAxes, color=GREY)
        axes.set_axis_off()
        return
    for style, name in enumerate(("failures", "successes")):
        draw_line(axes, range(len(rows)), [row[name] for row in rows], style, name)
    axes.set_xticks(range(len(rows)))
    axes.set_xticklabels([place.removesuffix(" quarter").replace("verdict", "the\nverdict") for place in ALONG])
    axes.set_xlabel("quarter of the thought", fontsize=TEXT)
    axes.set_ylabel("the picture's share of attention", fontsize=TEXT)
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=LABEL, frameon=False)


def _mediation(axes: Axes, result: Result) -> None:
    axes.set_title("3  What does the thought carry?", fontsize=TITLE, loc="left")
    names, row = [], 0
    for differs, block in result["mediation"].items():
        for mediator in dict.fromkeys(one["mediator"] for one in block["rows"]):
            for style, part in enumerate((THROUGH, DIRECT)):
                entry = next(
                    one["effect"] for one in block["rows"] if one["mediator"] == mediator and one["part"] == part
                )
                if entry["value"] is None:
                    continue
                at = row + 0.18 * (2 * style - 1)
                if entry["low"] is not None:
                    axes.plot([entry["low"], entry["high"]], [at, at], color=ARMS[style], linewidth=2)
                axes.plot(entry["value"], at, "os"[style], color=ARMS[style], markersize=6,
                          label=part if not row else None)  # fmt: skip
            names.append(f"another {differs}: {mediator}")
            row += 1
    axes.axvline(0, color=GREY, linewidth=1)
    axes.set_yticks(range(len(names)))
    axes.set_yticklabels(names, fontsize=LABEL)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlabel("part of the difference between the two margins, in logits (bars: 95%)", fontsize=TEXT)
    if names:
        axes.legend(fontsize=LABEL, frameon=False, loc="lower right")
