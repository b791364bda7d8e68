"""Matplotlib figures of a run's metrics. Reads and saves no file, and leaves pyplot's global state alone.

A figure as the bytes of an SVG file, the same for the same figure.
"""

import base64
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from scipy.special import ndtr

from experiments.benchmarks.published import PublishedRow
from experiments.report.colours import ARMS, GREY, in_dark
from experiments.report.numbers import complete, fixed, percent
from interp.errors import UserError
from interp.figures.glyphs import Figure, cut, encoded


def svg_bytes(figure: Figure) -> bytes:
    """Fixed ids and no date: the same numbers give the same file. Glyphs as paths: the same look without our fonts."""
    with mpl.rc_context({"svg.hashsalt": "forestlens", "svg.fonttype": "path"}):
        return encoded(figure, "svg", metadata={"Date": None, "Creator": None})


def pdf_bytes(figure: Figure) -> bytes:
    """The same as a PDF whose words stay words, in embedded TrueType fonts."""
    with mpl.rc_context({"pdf.fonttype": 42}):
        return encoded(figure, "pdf", metadata={"CreationDate": None, "Creator": None, "Producer": None})


FORMATS = {"svg": svg_bytes, "pdf": pdf_bytes}


def check_format(wanted: str, *also: str) -> None:
    """Raises UserError where a task's ``format`` is neither in ``FORMATS`` nor one of ``also``."""
    if wanted not in (*also, *FORMATS):
        raise UserError(f"task.format={wanted}: must be one of {', '.join((*also, *FORMATS))}")


def embedded(name: str, screen: bytes, phone: bytes = b"", *, alt: str, caption: str = "") -> dict[str, str]:
    """SVG files as ``templates/drawn.html.j2`` prints them: addresses that need no file, for light and dark pages.

    Empty stands for a form that there is not.
    """
    found = {"name": name, "alt": alt, "caption": caption}
    for form, svg in (("", screen), ("phone_", phone)):
        dark = b"" if b"<image" in svg else in_dark(svg)  # words on a picture need their own ink
        found |= {f"{form}uri": _data_uri(svg), f"{form}dark_uri": _data_uri(dark)}
    return found


def _data_uri(svg: bytes) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg).decode("ascii") if svg else ""


MARKERS = ("o", "s", "D", "^", "v", "P", "X", "<")
CONTOURS = (0, 1, 2, 3)
SHIFTS = "every constant shift of the baseline’s margin"
COVERING = 0.01  # arms nearer than this in both rates hide each other's marks


class Style(NamedTuple):
    """How one arm looks in every figure: its colour and, for those who do not see it, its marker."""

    colour: str
    marker: str


class Format(NamedTuple):
    """The size at which a figure is read: its width, and the sizes in points of its text and of its labels."""

    width: float  # inches of 100 px
    text: float
    label: float
    legend_columns: int
    name_length: int  # characters of an arm's name before it is cut


SCREEN = Format(width=6.0, text=11, label=9.5, legend_columns=2, name_length=30)
COLUMN = Format(width=3.25, text=8, label=7, legend_columns=1, name_length=30)  # of a paper in two columns
PHONE = Format(width=3.6, text=9, label=8, legend_columns=1, name_length=26)


def arm_styles(names: Sequence[str]) -> dict[str, Style]:
    """A style an arm, by position; colours repeat after seven arms but never with the same marker."""
    return {name: Style(ARMS[i % len(ARMS)], MARKERS[i % len(MARKERS)]) for i, name in enumerate(names)}


def mark(
    axes: Axes,
    style: Style,
    rates: tuple[float, float],
    intervals: tuple[tuple[float, float] | None, tuple[float, float] | None],
    *,
    size: float = 8,
    label: str | None = None,
) -> None:
    """A point at two rates (fractions of 1) in per cent, with a bar for each interval."""
    x, y = (100 * rate for rate in rates)
    across, up = intervals
    if across:
        axes.plot([100 * end for end in across], [y, y], color=style.colour, linewidth=1.5, zorder=3)
    if up:
        axes.plot([x, x], [100 * end for end in up], color=style.colour, linewidth=1.5, zorder=3)
    axes.plot(x, y, style.marker, color=style.colour, markersize=size, markeredgecolor="white", linestyle="", zorder=4,
              label=label)  # fmt: skip


def at_criterion(d_prime: float, criterion: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(over-safety accuracy, unsafe accuracy) of an observer of this d′ at each criterion.

    d′ = z(hit) − z(false alarm) and c = −(z(hit) + z(false alarm))/2, so z(hit) = d′/2 − c; and the accuracy on safe
    cases is 1 − false alarm, so its z is d′/2 + c.
    """
    return ndtr(d_prime / 2 + criterion), ndtr(d_prime / 2 - criterion)


def trade_off(
    metrics: Mapping[str, Any],
    published: Sequence[PublishedRow] = (),
    form: Format = SCREEN,
    *,
    curve: Sequence[Mapping[str, float]] = (),
) -> Figure:
    """Unsafe accuracy against over-safety accuracy, an arm a point, with 95% intervals and iso-d′ contours.

    Args:
        metrics: the contents of a run's metrics.json.
        published: rows to show in grey, numbered from 1 in the order given.
        curve: what every constant shift of the baseline's margin reaches, as ``over_safety`` and ``unsafe`` by point.
    """
    arms = metrics["arms"]
    entries = len(arms) + 1 + bool(published) + bool(curve)
    legend_rows = math.ceil(entries / form.legend_columns)
    height = 0.98 * form.width + 0.02 * form.text * (legend_rows + 2)
    figure = Figure(figsize=(form.width, height), dpi=100, layout=ConstrainedLayoutEngine(h_pad=0.13))
    axes = figure.add_subplot()
    axes.set(xlim=(-3, 103), ylim=(-3, 103), aspect="equal")  # air on all sides: models do sit at 0 and at 100
    axes.set(xticks=range(0, 101, 20), yticks=range(0, 101, 20))
    axes.set_xlabel("over-safety accuracy: safe cases called safe (%)", fontsize=form.text)
    axes.set_ylabel("unsafe accuracy: unsafe cases called unsafe (%)", fontsize=form.text)
    axes.tick_params(labelsize=form.label)
    _draw_contours(axes, form)
    for number, row in enumerate(published, start=1):
        axes.text(100 * row.over_safety, 100 * row.unsafe, str(number), fontsize=form.label, color=GREY, ha="center",
                  va="center", zorder=2)  # fmt: skip
    handles = list(_draw_arms(axes, arms, form))
    if curve:
        places = [[100 * point[name] for point in curve] for name in ("over_safety", "unsafe")]
        handles += axes.plot(*places, color=ARMS[0], linewidth=1.5, zorder=2, label=SHIFTS)
    handles.append(Line2D([], [], color=GREY, linestyle=":", label="equal discrimination (d′)"))
    if published:
        handles.append(Line2D([], [], color=GREY, marker="$1$", linestyle="", label="published rows, by number"))
    figure.legend(handles=handles, loc="outside lower center", ncols=form.legend_columns, fontsize=form.label,
                  frameon=False)  # fmt: skip
    return figure


def _draw_contours(axes: Axes, form: Format) -> None:
    # Labels where "safe" is said readily, for models that over-refuse lie on the other side.
    at = 0.45
    for d_prime in CONTOURS:
        over_safety, unsafe = at_criterion(d_prime, np.linspace(-4, 4, 400))
        axes.plot(100 * over_safety, 100 * unsafe, color=GREY, linestyle=":", linewidth=1, zorder=1)
        x, y = at_criterion(d_prime, np.array(at))
        turn = -math.degrees(math.atan(math.exp(d_prime * at)))  # the contour's slope is −φ(d′/2 − c)/φ(d′/2 + c)
        label = "d′ = 0 (chance)" if d_prime == 0 else f"d′ = {d_prime}"
        axes.text(100 * float(x), 100 * float(y), label, fontsize=form.label, color=GREY, rotation=turn, ha="center",
                  va="center", zorder=1, clip_on=True,
                  bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})  # fmt: skip


def _draw_arms(axes: Axes, arms: Mapping[str, Any], form: Format) -> Iterator[Line2D]:
    styles, sizes = arm_styles(list(arms)), _sizes(arms)
    for name, arm in arms.items():
        style, intervals, label = styles[name], arm["intervals"], cut(name, form.name_length)
        unsafe, over_safety = arm["accuracy"].get("unsafe"), arm["accuracy"].get("over_safety")
        if unsafe is None or over_safety is None:
            yield Line2D([], [], linestyle="", label=f"{label}: not available")
            continue
        ends = (complete(intervals.get("over_safety")), complete(intervals.get("unsafe")))
        mark(axes, style, (over_safety, unsafe), ends, size=sizes[name])
        yield Line2D([], [], color=style.colour, marker=style.marker, linestyle="", markersize=8, label=label)


def _sizes(arms: Mapping[str, Any]) -> dict[str, float]:
    """Marker sizes: an arm that later ones would cover is larger, so that a rim of it is seen."""
    places = {name: (arm["accuracy"].get("over_safety"), arm["accuracy"].get("unsafe")) for name, arm in arms.items()}
    sizes: dict[str, float] = {}
    later: list[tuple[float, float]] = []
    for name, (x, y) in reversed(places.items()):
        known = x is not None and y is not None
        covering = sum(abs(x - a) < COVERING and abs(y - b) < COVERING for a, b in later) if known else 0
        sizes[name] = 8 + 5 * min(covering, 3)
        later += [(x, y)] if known else []
    return sizes


def draw_line(
    axes: Axes, xs: Sequence[float], entries: Sequence[Mapping[str, Any]], style: int, label: str, dash: str = "-"
) -> None:
    """A line through the values of ``entries`` with a band for their intervals; what has no value is left out."""
    known = [(x, one) for x, one in zip(xs, entries, strict=True) if one["value"] is not None]
    if not known:
        return
    colour, at, values = ARMS[style], [x for x, _ in known], [one["value"] for _, one in known]
    low, high = ([one["value"] if one[end] is None else one[end] for _, one in known] for end in ("low", "high"))
    axes.fill_between(at, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.plot(at, values, dash, color=colour, marker=MARKERS[style], markersize=5, linewidth=1.6, label=label)


def draw_dot(axes: Axes, row: int, entry: Mapping[str, Any], style: int, size: float) -> None:
    """The value of ``entry`` as a dot in a row, a bar for its interval, and the number above it; no value, nothing."""
    value, colour = entry["value"], ARMS[style % len(ARMS)]
    if value is None:
        return
    if entry["low"] is not None:
        axes.plot([entry["low"], entry["high"]], [row, row], color=colour, linewidth=2)
    axes.plot(value, row, "o", color=colour, markersize=6)
    axes.text(value, row - 0.17, fixed(value, 2), fontsize=size, ha="center", va="bottom", color=colour)


def auroc(metrics: Mapping[str, Any], form: Format = SCREEN) -> Figure:
    """AUROC of the margin an arm a row, with 95% intervals; an arm without margins says "not available"."""
    arms = metrics["arms"]
    styles = arm_styles(list(arms))
    figure = Figure(figsize=(form.width, 0.9 + 0.45 * len(arms)), dpi=100, layout="constrained")
    axes = figure.add_subplot()
    low = min([0.45, *(end - 0.02 for arm in arms.values() for end in complete(arm["intervals"].get("auroc")) or ())])
    axes.set(xlim=(low, 1.02), ylim=(len(arms) - 0.5, -0.7))
    axes.axvline(0.5, color=GREY, linestyle=":", linewidth=1)
    for row, (name, arm) in enumerate(arms.items()):
        style, value = styles[name], arm.get("auroc")
        if value is None:
            axes.text(0.51, row, "not available", fontsize=form.label, color=GREY, va="center")
            continue
        if ends := complete(arm["intervals"].get("auroc")):
            axes.plot(ends, [row, row], color=style.colour, linewidth=2)
        axes.plot(value, row, style.marker, color=style.colour, markersize=8, markeredgecolor="white")
        axes.annotate(
            f"{value:.3f}", (value, row), (0, 8), textcoords="offset points", fontsize=form.label, ha="center"
        )
    axes.set_yticks(range(len(arms)), [cut(name, form.name_length) for name in arms], fontsize=form.label)
    axes.tick_params(axis="x", labelsize=form.label)
    axes.set_xlabel("AUROC of the margin\n(0.5 = chance)", fontsize=form.text)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def describe_trade_off(metrics: Mapping[str, Any]) -> str:
    """The trade-off figure in words, for those who do not see it."""
    accuracies = ((name, arm["accuracy"]) for name, arm in metrics["arms"].items())
    points = (
        f"{name}: unsafe {percent(values.get('unsafe'))}%, over-safety {percent(values.get('over_safety'))}%"
        for name, values in accuracies
    )
    return f"Unsafe accuracy against over-safety accuracy. {'; '.join(points)}."


def describe_auroc(metrics: Mapping[str, Any]) -> str:
    """The AUROC figure in words."""
    values = (f"{name}: {fixed(arm.get('auroc'), 3)}" for name, arm in metrics["arms"].items())
    return f"AUROC of the margin. {'; '.join(values)}."
