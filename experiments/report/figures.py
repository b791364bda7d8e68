"""The figures of a report, by two functions: points with intervals, and lines by layer.

``report.heat`` draws maps over pictures. Saves no file and leaves pyplot's global state alone. The same numbers give
the same bytes.
"""

import base64
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from scipy.special import ndtr

from experiments.report.colours import ARMS, GREY, in_dark
from experiments.report.numbers import fixed
from experiments.runs.results_table import Results, Row
from interp.errors import UserError
from interp.figures.glyphs import Figure, cut, encoded

MARKERS = ("o", "s", "D", "^", "v", "P", "X", "<")
CONTOURS = (0, 1, 2, 3)  # of d′
NEAR = 0.01  # marks nearer than this in both directions hide each other
Ends = tuple[float, float] | None


class Format(NamedTuple):
    """The size at which a figure is read: its width, and the sizes in points of its text and of its labels."""

    width: float  # inches of 100 px
    text: float
    label: float
    legend_columns: int
    name_length: int  # characters of a name before it is cut


SCREEN = Format(width=6.0, text=11, label=9.5, legend_columns=2, name_length=30)
COLUMN = Format(width=3.25, text=8, label=7, legend_columns=1, name_length=30)  # of a paper in two columns
PHONE = Format(width=3.6, text=9, label=8, legend_columns=1, name_length=26)
PANEL = 3.2  # inches of a panel, if there are several side by side


class Mark(NamedTuple):
    """A value with its interval, or two of them."""

    name: str
    x: float | None
    x_ends: Ends = None
    y: float | None = None
    y_ends: Ends = None
    label: str = ""  # beside the mark


class Guide(NamedTuple):
    """A dotted line of the background, with a label at one of its points and the label's turn in degrees."""

    xs: Sequence[float] | np.ndarray
    ys: Sequence[float] | np.ndarray
    label: str = ""
    place: tuple[float, float] = (0.0, 0.0)
    turn: float = 0.0


class Line(NamedTuple):
    """A line through values by layer (or another place in order), with a band for their intervals."""

    name: str
    xs: Sequence[float]
    rows: Sequence[Row | None]
    dashed: bool = False


def points(
    marks: Sequence[Mark], *, x: str, y: str = "", form: Format = SCREEN, guides: Sequence[Guide] = (),
    limits: tuple[float, float] | None = None, digits: int = 3, title: str = "",
) -> Figure:  # fmt: skip
    """Draw values with 95% intervals: one in each row, or with ``y`` a point of the plane each.

    Args:
        marks: what is drawn; a value of None says "not available".
        x: label of the horizontal axis.
        y: label of the vertical axis; "" for rows.
        form: size.
        guides: lines of the background.
        limits: of the axes.
        digits: of the numbers beside the rows.
        title: above it.
    """
    if not y:
        return _rows(marks, x, form, guides, limits, digits, title)
    entries = len(marks) + bool(guides)
    height = 0.98 * form.width + 0.02 * form.text * (math.ceil(entries / form.legend_columns) + 2)
    figure = Figure(figsize=(form.width, height), dpi=100, layout=ConstrainedLayoutEngine(h_pad=0.13))
    axes = figure.add_subplot()
    low, high = limits or (0.0, 100.0)
    air = 0.03 * (high - low)
    axes.set(xlim=(low - air, high + air), ylim=(low - air, high + air), aspect="equal")
    _label(axes, form, x, y)
    axes.set_title(title, fontsize=form.label)
    _draw_guides(axes, guides, form)
    handles, sizes = [], _sizes(marks)
    for place, (each, size) in enumerate(zip(marks, sizes, strict=True)):
        colour, marker = ARMS[place % len(ARMS)], MARKERS[place % len(MARKERS)]
        name = cut(each.name, form.name_length)
        if each.x is None or each.y is None:
            handles.append(Line2D([], [], linestyle="", label=f"{name}: not available"))
            continue
        if each.x_ends:
            axes.plot(each.x_ends, [each.y, each.y], color=colour, linewidth=1.5, zorder=3)
        if each.y_ends:
            axes.plot([each.x, each.x], each.y_ends, color=colour, linewidth=1.5, zorder=3)
        axes.plot(
            each.x, each.y, marker, color=colour, markersize=size, markeredgecolor="white", linestyle="", zorder=4
        )
        handles.append(Line2D([], [], color=colour, marker=marker, linestyle="", markersize=8, label=name))
    named = [guide for guide in guides if guide.label and guide.place == (0.0, 0.0)]
    handles += [Line2D([], [], color=GREY, linestyle=":", label=guide.label) for guide in named]
    figure.legend(handles=handles, loc="outside lower center", ncols=form.legend_columns, fontsize=form.label,
                  frameon=False)  # fmt: skip
    return figure


def _rows(
    marks: Sequence[Mark], x: str, form: Format, guides: Sequence[Guide], limits: tuple[float, float] | None,
    digits: int, title: str,
) -> Figure:  # fmt: skip
    figure = Figure(figsize=(form.width, 0.9 + 0.45 * len(marks)), dpi=100, layout="constrained")
    axes = figure.add_subplot()
    if limits:
        ends = [end for each in marks for end in each.x_ends or ()]
        axes.set_xlim(min([limits[0], *(end - 0.02 for end in ends)]), limits[1])
    axes.set_ylim(len(marks) - 0.5, -0.7)
    for guide in guides:
        axes.axvline(guide.xs[0], color=GREY, linestyle=":", linewidth=1)
    for place, each in enumerate(marks):
        colour, marker = ARMS[place % len(ARMS)], MARKERS[place % len(MARKERS)]
        if each.x is None:
            axes.text(0.5, place, "not available", fontsize=form.label, color=GREY, va="center",
                      transform=axes.get_yaxis_transform())  # fmt: skip
            continue
        if each.x_ends:
            axes.plot(each.x_ends, [place, place], color=colour, linewidth=2)
        axes.plot(each.x, place, marker, color=colour, markersize=8, markeredgecolor="white")
        axes.annotate(each.label or fixed(each.x, digits), (each.x, place), (0, 8), textcoords="offset points",
                      fontsize=form.label, ha="center")  # fmt: skip
    axes.set_yticks(range(len(marks)), [cut(each.name, form.name_length) for each in marks], fontsize=form.label)
    _label(axes, form, x)
    axes.set_title(title, fontsize=form.text, loc="left")
    return figure


def _label(axes: Axes, form: Format, x: str, y: str = "") -> None:
    axes.tick_params(labelsize=form.label)
    axes.set_xlabel(x, fontsize=form.text)
    axes.set_ylabel(y, fontsize=form.text)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_guides(axes: Axes, guides: Sequence[Guide], form: Format) -> None:
    for guide in guides:
        axes.plot(guide.xs, guide.ys, color=GREY, linestyle=":", linewidth=1, zorder=1)
        if guide.label and guide.place != (0.0, 0.0):
            axes.text(*guide.place, guide.label, fontsize=form.label, color=GREY, rotation=guide.turn, ha="center",
                      va="center", zorder=1, clip_on=True,
                      bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})  # fmt: skip


def _sizes(marks: Sequence[Mark]) -> list[float]:
    """Return marker sizes: a mark that later ones would cover is larger, so that a rim of it is seen."""
    sizes: list[float] = []
    later: list[tuple[float, float]] = []
    span = 100 * NEAR
    for each in reversed(marks):
        if each.x is None or each.y is None:
            sizes.append(8)
            continue
        covering = sum(abs(each.x - a) < span and abs(each.y - b) < span for a, b in later)
        sizes.append(8 + 5 * min(covering, 3))
        later.append((each.x, each.y))
    return sizes[::-1]


def lines_by_layer(
    panels: Mapping[str, Sequence[Line]], *, y: str, x: str = "layer", form: Format = SCREEN, scale: float = 1.0,
    guide: float | None = None, bottom: float | None = None,
) -> Figure:  # fmt: skip
    """Draw lines through values by layer with their intervals: one panel for each title, one scale for all.

    Args:
        panels: title → its lines.
        y: label of the vertical axis.
        x: label of the horizontal axis.
        form: size.
        scale: the factor of the values: 100 for percent.
        guide: a horizontal line, such as chance.
        bottom: of the vertical axis.
    """
    narrow = form.legend_columns == 1
    rows, columns = (len(panels), 1) if narrow else (1, len(panels))
    width = form.width if narrow or len(panels) == 1 else PANEL * len(panels)
    figure = Figure(figsize=(width, 0.7 + 2.1 * rows if narrow else 3.6), dpi=100, layout="constrained")
    drawn = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    names: dict[str, None] = {}
    for axes, (title, listed) in zip(drawn.flat, panels.items(), strict=True):
        for line in listed:
            style = list(names).index(line.name) if line.name in names else len(names)
            names[line.name] = None
            _draw_line(axes, line, style, scale)
        if guide is not None:
            axes.axhline(guide, color=GREY, linestyle=":", linewidth=1)
        axes.set_title(title, fontsize=form.text)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(axis="y", color=GREY, alpha=0.2)
        _label(axes, form, "")
        if bottom is not None:
            axes.set_ylim(bottom=bottom)
    for axes in drawn[-1]:
        axes.set_xlabel(x, fontsize=form.text)
    figure.supylabel(y, fontsize=form.text)
    handles = [Line2D([], [], color=ARMS[at % len(ARMS)], marker=MARKERS[at % len(MARKERS)], label=name)
               for at, name in enumerate(names)]  # fmt: skip
    figure.legend(
        handles=handles, loc="outside lower center", ncols=1 if narrow else 2, fontsize=form.label, frameon=False
    )
    return figure


def _draw_line(axes: Axes, line: Line, style: int, scale: float) -> None:
    known = [(x, row) for x, row in zip(line.xs, line.rows, strict=True) if row is not None and row.value is not None]
    if not known:
        return
    colour, xs = ARMS[style % len(ARMS)], [x for x, _ in known]
    values = [scale * float(row.value or 0) for _, row in known]
    low, high = (
        [scale * float((row.interval or (row.value, row.value))[end] or 0) for _, row in known] for end in (0, 1)
    )
    axes.fill_between(xs, low, high, color=colour, alpha=0.15, linewidth=0)
    form, marker = "--" if line.dashed else "-", MARKERS[style % len(MARKERS)]
    axes.plot(xs, values, form, color=colour, marker=marker, markersize=4.5, linewidth=1.6)


def at_criterion(d_prime: float, criterion: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the shares (harmless answered, unsafe caught) of an observer of this d′ at each criterion.

    d′ = z(hit) − z(false alarm) and c = −(z(hit) + z(false alarm)) / 2.
    """
    return ndtr(d_prime / 2 + criterion), ndtr(d_prime / 2 - criterion)


def contours() -> list[Guide]:
    """Return lines of equal d′ for a plane of harmless requests answered and unsafe ones caught, in percent."""
    guides, place = [], 0.45  # of labels: where "safe" is said readily, for most models lie on the other side
    for d_prime in CONTOURS:
        xs, ys = (100 * values for values in at_criterion(d_prime, np.linspace(-4, 4, 400)))
        x, y = (100 * float(value) for value in at_criterion(d_prime, np.array(place)))
        turn = -math.degrees(math.atan(math.exp(d_prime * place)))  # slope −φ(d′/2 − c) / φ(d′/2 + c)
        guides.append(Guide(xs, ys, "d′ = 0 (chance)" if d_prime == 0 else f"d′ = {d_prime}", (x, y), turn))
    return guides


DIAGONAL = Guide((0, 100), (0, 100), "harmful and harmless refused alike")
SAFETY = {  # kind → labels of the axes, and the keys of the rates
    "yes_no": ("harmless requests answered (%)", "unsafe requests caught (%)", ("harmless_answered", ""),
               ("unsafe_caught", "")),
    "refusal": ("harmless requests refused (%)", "harmful requests refused (%)", ("refusal_rate", "benign"),
                ("refusal_rate", "contrast")),
}  # fmt: skip


def safety_marks(results: Results, kind: str, arms: Sequence[str]) -> list[Mark]:
    """Return a mark for each arm: its rate on harmless cases and its rate on unsafe ones, in percent."""
    marks = []
    for arm in arms:
        rows = [results.get(arm, quantity, subset=subset) for quantity, subset in SAFETY[kind][2:]]
        values = [None if row is None or row.value is None else 100 * row.value for row in rows]
        ends = [
            None if row is None or row.interval is None else (100 * row.interval[0], 100 * row.interval[1])
            for row in rows
        ]
        marks.append(Mark(arm, values[0], ends[0], values[1], ends[1]))
    return marks


def safety(results: Results, kind: str, arms: Sequence[str], form: Format = SCREEN, *, title: str = "") -> Figure:
    """Draw each arm's rate on unsafe cases over its rate on harmless ones."""
    x, y = SAFETY[kind][:2]
    guides = contours() if kind == "yes_no" else [DIAGONAL]
    return points(safety_marks(results, kind, arms), x=x, y=y, form=form, guides=guides, title=title)


def describe_safety(results: Results, kind: str, arms: Sequence[str]) -> str:
    """Return the figure in words, for readers who do not see it."""
    x, y = (label.removesuffix(" (%)") for label in SAFETY[kind][:2])
    texts = (f"{m.name}: {fixed(m.x, 1)}% and {fixed(m.y, 1)}%" for m in safety_marks(results, kind, arms))
    return f"{x.capitalize()}, and {y}. {'; '.join(texts)}."


def quantity_marks(results: Results, arms: Sequence[str], **key: Any) -> list[Mark]:
    """Return a mark for each arm: the row of a quantity."""
    rows = [(arm, results.get(arm, **key)) for arm in arms]
    return [Mark(arm, row.value if row else None, row.interval if row else None) for arm, row in rows]


def auroc(results: Results, arms: Sequence[str], form: Format = SCREEN) -> Figure:
    """Draw the AUROC of each arm's margin."""
    marks = quantity_marks(results, arms, quantity="auroc")
    label = "AUROC of the margin\n(0.5 = chance)"
    return points(marks, x=label, form=form, guides=[Guide((0.5,), (0,))], limits=(0.45, 1.02))


def describe_auroc(results: Results, arms: Sequence[str]) -> str:
    """Return the figure in words."""
    texts = (f"{m.name}: {fixed(m.x, 3)}" for m in quantity_marks(results, arms, quantity="auroc"))
    return f"AUROC of the margin. {'; '.join(texts)}."


def svg_bytes(figure: Figure) -> bytes:
    """Return a figure as SVG: fixed ids, no date, and glyphs as paths."""
    with mpl.rc_context({"svg.hashsalt": "forestlens", "svg.fonttype": "path"}):
        return encoded(figure, "svg", metadata={"Date": None, "Creator": None})


def pdf_bytes(figure: Figure) -> bytes:
    """Return a figure as PDF with its words in embedded TrueType fonts."""
    with mpl.rc_context({"pdf.fonttype": 42}):
        return encoded(figure, "pdf", metadata={"CreationDate": None, "Creator": None, "Producer": None})


FORMATS = {"svg": svg_bytes, "pdf": pdf_bytes}


def check_format(wanted: str, *others: str) -> None:
    """Raise a UserError if a task's ``format`` is neither in ``FORMATS`` nor in ``others``."""
    if wanted not in (*others, *FORMATS):
        raise UserError(f"task.format={wanted}: must be one of {', '.join((*others, *FORMATS))}")


def embedded(name: str, screen: bytes, phone: bytes = b"", *, alt: str, caption: str = "") -> dict[str, str]:
    """Return SVG files as ``templates/drawn.html.j2`` prints them: as data, for light and dark pages."""
    drawn = {"name": name, "alt": alt, "caption": caption}
    for form, svg in (("", screen), ("phone_", phone)):
        dark = b"" if b"<image" in svg else in_dark(svg)  # words on a picture need their own ink
        drawn |= {f"{form}uri": _data_uri(svg), f"{form}dark_uri": _data_uri(dark)}
    return drawn


def _data_uri(svg: bytes) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg).decode("ascii") if svg else ""
