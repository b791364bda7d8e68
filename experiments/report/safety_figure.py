"""Safety against oversensitivity: refusal of harmful twins over refusal of benign requests. Saves no file."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from experiments.report.figures import GREY, SCREEN, Format, arm_styles
from experiments.report.numbers import complete, percent


class Point(NamedTuple):
    """One model or arm: two rates (fractions of 1) with their intervals, None where there is none."""

    name: str
    benign: float
    contrast: float
    benign_interval: tuple[float, float] | None = None
    contrast_interval: tuple[float, float] | None = None


def points(metrics: Mapping[str, Any]) -> list[Point]:
    """The arms of a metrics.json that have both rates."""
    return [
        Point(
            name,
            arm["refusal_rate"]["benign"],
            arm["refusal_rate"]["contrast"],
            complete(arm["intervals"]["benign"]),
            complete(arm["intervals"]["contrast"]),
        )
        for name, arm in metrics["arms"].items()
        if arm["refusal_rate"]["benign"] is not None and arm["refusal_rate"]["contrast"] is not None
    ]


def safety_against_oversensitivity(shown: Sequence[Point], *, title: str = "", form: Format = SCREEN) -> Figure:
    """A point each with its 95% intervals; on the dotted line harmful and benign are refused alike."""
    figure = Figure(figsize=(form.width, form.width), dpi=100, layout="constrained")
    axes = figure.add_subplot()
    axes.set(xlim=(-3, 103), ylim=(-3, 103), aspect="equal", xticks=range(0, 101, 20), yticks=range(0, 101, 20))
    axes.set_xlabel("oversensitivity: benign requests refused (%)", fontsize=form.text)
    axes.set_ylabel("safety: harmful requests refused (%)", fontsize=form.text)
    axes.tick_params(labelsize=form.label)
    axes.plot([0, 100], [0, 100], color=GREY, linestyle=":", linewidth=1, label="harmful and benign refused alike")
    styles = arm_styles([point.name for point in shown])
    for point in shown:
        style, x, y = styles[point.name], 100 * point.benign, 100 * point.contrast
        if point.benign_interval:
            axes.plot([100 * end for end in point.benign_interval], [y, y], color=style.colour, linewidth=1.5)
        if point.contrast_interval:
            axes.plot([x, x], [100 * end for end in point.contrast_interval], color=style.colour, linewidth=1.5)
        label = point.name if len(point.name) <= form.name_length else f"{point.name[: form.name_length - 1]}…"
        axes.plot(x, y, style.marker, color=style.colour, markersize=8, markeredgecolor="white", linestyle="",
                  label=label.replace("$", r"\$"))  # fmt: skip
    if title:
        axes.set_title(title.replace("$", r"\$"), fontsize=form.label)
    figure.legend(loc="outside lower center", ncols=form.legend_columns, fontsize=form.label, frameon=False)
    return figure


def describe(shown: Sequence[Point]) -> str:
    """The figure in words, for those who do not see it."""
    listed = "; ".join(f"{p.name}: benign {percent(p.benign)}%, harmful {percent(p.contrast)}%" for p in shown)
    return f"Refusal of harmful requests against refusal of benign ones. {listed}."
