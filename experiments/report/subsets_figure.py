"""Rates by the subsets of a table of one's own, under their own names. Saves no file."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from experiments.report.colours import GREY
from experiments.report.figures import SCREEN, Format, arm_styles
from experiments.report.numbers import complete, percent
from interp.figures.glyphs import Figure, cut

TAG = "subset"  # the tag that ``benchmark=table`` keeps own names in
MOST = 12  # subsets drawn; the table has all of them
# What is drawn of each kind of benchmark: the rate's key, and by panel its heading and the subsets counted in it.
PANELS: Mapping[str, tuple[str, Mapping[str, tuple[str, ...]]]] = {
    "yes_no": (
        "accuracy",
        {"unsafe cases called unsafe (%)": ("typical", "attack"), "safe cases called safe (%)": ("over_safety",)},
    ),
    "refusal": (
        "rate",
        {"harmful requests refused (%)": ("contrast",), "benign requests refused (%)": ("benign",)},
    ),
}


class Rate(NamedTuple):
    """One arm's rate on the cases of one subset: fractions of 1, and the number of cases."""

    arm: str
    subset: str
    panel: str
    rate: float
    interval: tuple[float, float] | None
    n: int


def own_rates(metrics: Mapping[str, Any]) -> list[Rate]:
    """The rates of every arm by own subset, those of most cases first; empty where the cases have no such subsets."""
    key, panels = PANELS["refusal" if metrics.get("kind") == "refusal" else "yes_no"]
    found = [
        Rate(name, subset, panel, cell[key], complete(cell["interval"]), int(cell["n"]))
        for name, arm in metrics["arms"].items()
        for subset, cells in ((arm.get("by_tag") or {}).get(TAG) or {}).items()
        for panel, parts in panels.items()
        for cell in [cells[part] for part in parts if part in cells][:1]  # a name has cases of one of them
        if cell.get(key) is not None
    ]
    sizes: dict[str, int] = {}
    for rate in found:
        sizes[rate.subset] = sizes.get(rate.subset, 0) + rate.n
    return sorted(found, key=lambda rate: (-sizes[rate.subset], rate.subset))


def by_own_subset(shown: list[Rate], form: Format = SCREEN) -> Figure:
    """A row a subset and in it a mark an arm, with 95% intervals; on a phone the two panels are one below the other."""
    names = list(dict.fromkeys(rate.subset for rate in shown))[:MOST]
    styles = arm_styles(list(dict.fromkeys(rate.arm for rate in shown)))
    panels = list(dict.fromkeys(rate.panel for rate in shown))
    stacked = form.legend_columns == 1
    rows, columns = (len(panels), 1) if stacked else (1, len(panels))
    height = (0.7 + len(names) * (0.22 + 0.15 * len(styles))) * rows + 0.02 * form.text * (len(styles) + 1)
    figure = Figure(figsize=(form.width, height), dpi=100, layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True).flatten()
    for axes, panel in zip(grid, panels, strict=True):
        axes.set(xlim=(-4, 104), ylim=(len(names) - 0.5, -0.5), xticks=range(0, 101, 25))
        axes.set_xlabel(panel, fontsize=form.label)
        axes.tick_params(labelsize=form.label)
        axes.set_yticks(range(len(names)), [cut(name, form.name_length * 2 // 3) for name in names])
        axes.spines[["top", "right"]].set_visible(False)
        for line in range(1, len(names)):
            axes.axhline(line - 0.5, color=GREY, linewidth=0.4)
        _draw(axes, [rate for rate in shown if rate.panel == panel and rate.subset in names], names, styles)
    handles = [
        Line2D([], [], color=style.colour, marker=style.marker, linestyle="", label=cut(arm, form.name_length * 2 // 3))
        for arm, style in styles.items()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=form.legend_columns, fontsize=form.label,
                  frameon=False)  # fmt: skip
    return figure


def _draw(axes: Axes, rates: list[Rate], names: list[str], styles: Mapping[str, Any]) -> None:
    places = {arm: (index + 1) / (len(styles) + 1) - 0.5 for index, arm in enumerate(styles)}
    for rate in rates:
        style, y = styles[rate.arm], names.index(rate.subset) + places[rate.arm]
        if rate.interval:
            axes.plot([100 * end for end in rate.interval], [y, y], color=style.colour, linewidth=1.5)
        axes.plot(100 * rate.rate, y, style.marker, color=style.colour, markersize=6, markeredgecolor="white")


def describe(shown: list[Rate]) -> str:
    """The figure in words, for those who do not see it."""
    return "Rates by own subset. " + "; ".join(_descriptions(shown)) + "."


def _descriptions(shown: list[Rate]) -> Iterator[str]:
    for name in list(dict.fromkeys(rate.subset for rate in shown))[:MOST]:
        description = (
            f"{rate.arm} {rate.panel.removesuffix(' (%)')} {percent(rate.rate)}% of {rate.n}"
            for rate in shown
            if rate.subset == name
        )
        yield f"{name}: {', '.join(description)}"
