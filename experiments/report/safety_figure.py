"""Safety against oversensitivity: refusal of harmful twins over refusal of benign requests. Saves no file."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes

from experiments.report.colours import GREY
from experiments.report.figures import SCREEN, Format, Style, arm_styles, mark
from experiments.report.numbers import complete, percent
from interp.figures.glyphs import Figure, cut


class Point(NamedTuple):
    """One model or arm: two rates (fractions of 1) with their intervals, None where there is none."""

    name: str
    benign: float
    contrast: float
    benign_interval: tuple[float, float] | None = None
    contrast_interval: tuple[float, float] | None = None


def points(metrics: Mapping[str, Any]) -> list[Point]:
    """The arms of a metrics.json that have both rates.

    Of a yes/no benchmark, benign is what should be called safe and was called unsafe (1 − over-safety accuracy),
    harmful what was rightly called unsafe (typical and attack pooled).
    """
    found = []
    for name, arm in metrics["arms"].items():
        ends = arm["intervals"]
        if metrics.get("kind") == "refusal":
            benign, contrast = (arm["refusal_rate"][side] for side in ("benign", "contrast"))
            intervals = complete(ends["benign"]), complete(ends["contrast"])
        else:
            safe, contrast = arm["accuracy"].get("over_safety"), arm["accuracy"].get("unsafe")
            benign, turned = None if safe is None else 1 - safe, complete(ends.get("over_safety"))
            intervals = turned and (1 - turned[1], 1 - turned[0]), complete(ends.get("unsafe"))
        if benign is not None and contrast is not None:
            found.append(Point(str(name), benign, contrast, *intervals))
    return found


def safety_against_oversensitivity(shown: Sequence[Point], *, title: str = "", form: Format = SCREEN) -> Figure:
    """A point each with its 95% intervals; on the dotted line harmful and benign are refused alike."""
    figure = Figure(figsize=(form.width, form.width), dpi=100, layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel("oversensitivity: benign requests refused (%)", fontsize=form.text)
    axes.set_ylabel("safety: harmful requests refused (%)", fontsize=form.text)
    draw(axes, shown, arm_styles([point.name for point in shown]), form, step=20)
    if title:
        axes.set_title(title, fontsize=form.label)
    figure.legend(loc="outside lower center", ncols=form.legend_columns, fontsize=form.label, frameon=False)
    return figure


def draw(axes: Axes, shown: Sequence[Point], styles: Mapping[str, Style], form: Format, *, step: int) -> None:
    """The points on axes from 0 to 100%, and the line of the same rates."""
    axes.set(xlim=(-3, 103), ylim=(-3, 103), aspect="equal", xticks=range(0, 101, step), yticks=range(0, 101, step))
    axes.tick_params(labelsize=form.label)
    axes.plot([0, 100], [0, 100], color=GREY, linestyle=":", linewidth=1, label="harmful and benign refused alike")
    for point in shown:
        mark(axes, styles[point.name], (point.benign, point.contrast), (point.benign_interval, point.contrast_interval),
             label=cut(point.name, form.name_length))  # fmt: skip


def describe(shown: Sequence[Point]) -> str:
    """The figure in words, for those who do not see it."""
    listed = "; ".join(f"{p.name}: benign {percent(p.benign)}%, harmful {percent(p.contrast)}%" for p in shown)
    return f"Refusal of harmful requests against refusal of benign ones. {listed}."
