"""The figures of a report, by two functions: points with intervals, and lines by layer.

Every colour of a report is here; ``css`` gives them to the style sheets of the report and of ``explore``. Maps over
pictures are drawn by ``report.examples``. Saves no file and does not change pyplot's global state. The same numbers
give the same bytes.
"""

import base64
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from scipy.special import ndtr

from experiments.report.arms import RATES, arms_of
from experiments.report.saved_run import SavedRun
from experiments.report.tables import fixed, value
from experiments.runs.results_table import Results, Row
from interp.errors import UserError
from interp.figures.glyphs import Figure, cut, encoded

LIGHT = {
    "paper": "#ffffff", "ink": "#1a1a1a", "soft": "#555555", "line": "#c9c9c9", "shade": "#f3f3f0",
    "accent": "#0b5394", "good": "#00614a", "bad": "#a33c00", "flat": "#5a4a00",
}  # fmt: skip
DARK = {
    "paper": "#16181a", "ink": "#ececec", "soft": "#b3b3b3", "line": "#4a4d50", "shade": "#222528",
    "accent": "#8fc1f0", "good": "#62d3ae", "bad": "#ff9e66", "flat": "#e3cf7a",
}  # fmt: skip
PRINT = LIGHT | {"ink": "#000000", "soft": "#444444", "line": "#bbbbbb"}

# Okabe and Ito's palette without its yellow, which is too pale for thin bars on white; black is the first arm's.
ARMS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
GREY = "#5f5f5f"  # of what is no arm
SHARES = colormaps["viridis"]  # of maps of attention
STOPS = 5  # of that map in a style sheet
SIGNED = {"more": "217, 95, 2", "less": "33, 102, 172"}  # towards Yes and away from it: red, green, blue


def css() -> str:
    """Return the colours as custom properties: ``--map`` has stops, ``--more`` and ``--less`` parts of ``rgb``."""
    stops = ", ".join(to_hex(SHARES(at / (STOPS - 1))) for at in range(STOPS))
    return (
        f":root {{ color-scheme: light dark; --map: {stops}; {_listed(SIGNED)} }}\n"
        f":root {{ {_listed(LIGHT)} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ {_listed(DARK)} }} }}\n"
        f"@media print {{ :root {{ {_listed(PRINT)} }} }}\n"
    )


def _listed(colours: dict[str, str]) -> str:
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items())


def in_dark(svg: bytes) -> bytes:
    """Return a drawing of matplotlib for dark pages: ground and ink change places, the arms keep their colours."""
    for light, dark in ((LIGHT["paper"], DARK["paper"]), (ARMS[0], DARK["ink"]), (GREY, DARK["soft"])):
        svg = svg.replace(light.encode(), dark.encode())
    return svg.replace(b"<svg ", f'<svg fill="{DARK["ink"]}" '.encode(), 1)  # of what has no colour: letters


MARKERS = ("o", "s", "D", "^", "v", "P", "X", "<")
Ends = tuple[float, float] | None


class Format(NamedTuple):
    """The size at which a figure is read: its width, and the sizes in points of its text and of its labels."""

    width: float  # inches of 100 px
    text: float
    label: float
    legend_columns: int
    name_length: int = 30  # characters of a name before it is cut


SCREEN = Format(width=6.0, text=11, label=9.5, legend_columns=2)
COLUMN = Format(width=3.25, text=8, label=7, legend_columns=1)  # of a paper in two columns
PANEL = 3.2  # inches of a panel, if there are several side by side


class Mark(NamedTuple):
    """A value with its interval, or two of them."""

    name: str
    x: float | None
    x_ends: Ends = None
    y: float | None = None
    y_ends: Ends = None


class Guide(NamedTuple):
    """A dotted line of the background, with its label at a place in the plane or else in the legend."""

    xs: Sequence[float] | np.ndarray
    ys: Sequence[float] | np.ndarray
    label: str = ""
    label_at: tuple[float, float] | None = None


class Line(NamedTuple):
    """A line through values by layer (or another place in order), with a band for their intervals."""

    name: str
    xs: Sequence[float]
    rows: Sequence[Row | None]
    dashed: bool = False


class Drawing(NamedTuple):
    """A figure that can be drawn at each size, and its numbers in words for readers who do not see it."""

    draw: Callable[..., Figure]  # of a ``form``
    words: str
    caption: str


def points(
    marks: Sequence[Mark], *, x: str, y: str = "", form: Format = SCREEN, guides: Sequence[Guide] = (), digits: int = 3
) -> Figure:
    """Draw values with 95% intervals: a row for each, or with ``y`` a point in the plane of two rates in percent.

    Args:
        marks: what is drawn; a value of None says "not available".
        x: label of the horizontal axis.
        y: label of the vertical axis; "" for rows.
        form: size.
        guides: lines of the background; of rows, vertical ones.
        digits: of the numbers next to the rows.
    """
    legend = math.ceil((len(marks) + bool(guides)) / form.legend_columns) + 2
    height = 0.98 * form.width + 0.02 * form.text * legend if y else 0.9 + 0.45 * len(marks)
    figure = Figure(figsize=(form.width, height), dpi=100, layout=ConstrainedLayoutEngine(h_pad=0.13 if y else None))
    axes = figure.add_subplot()
    for guide in guides:
        named = {"label": guide.label} if y and not guide.label_at else {}
        style: dict[str, Any] = {"color": GREY, "linestyle": ":", "linewidth": 1, "zorder": 1, **named}
        axes.plot(guide.xs, guide.ys, **style) if y else axes.axvline(guide.xs[0], **style)
        if guide.label_at:
            axes.annotate(guide.label, guide.label_at, fontsize=form.label, color=GREY, ha="center", va="center",
                          zorder=1, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})  # fmt: skip
    names = []
    for number, mark in enumerate(marks):
        style = {"color": ARMS[number % len(ARMS)], "marker": MARKERS[number % len(MARKERS)], "markersize": 8}
        height_of = mark.y if y else number
        present = mark.x is not None and height_of is not None
        names.append(cut(mark.name, form.name_length) + ("" if present else ": not available"))
        if mark.x is None or height_of is None:
            axes.plot([], [], linestyle="", label=names[-1])
            continue
        axes.plot(mark.x_ends or [], [height_of] * len(mark.x_ends or ()), color=style["color"], linewidth=1.5)
        axes.plot([mark.x] * len(mark.y_ends or ()), mark.y_ends or [], color=style["color"], linewidth=1.5)
        # Open markers: those that hide each other can all be seen.
        axes.plot(mark.x, height_of, linestyle="", fillstyle="none", markeredgewidth=1.8, label=names[-1], **style)
        if not y:
            axes.annotate(fixed(mark.x, digits), (mark.x, number), (0, 8), textcoords="offset points",
                          fontsize=form.label, ha="center")  # fmt: skip
    _label(axes, form, x, y)
    if y:
        axes.set(xlim=(-3, 103), ylim=(-3, 103), aspect="equal")
        figure.legend(loc="outside lower center", ncols=form.legend_columns, fontsize=form.label, frameon=False)
    else:
        axes.set_ylim(len(marks) - 0.5, -0.7)
        axes.set_yticks(range(len(marks)), names, fontsize=form.label)
    return figure


def _label(axes: Axes, form: Format, x: str, y: str = "") -> None:
    axes.tick_params(labelsize=form.label)
    axes.set_xlabel(x, fontsize=form.text)
    axes.set_ylabel(y, fontsize=form.text)
    axes.spines[["top", "right"]].set_visible(False)


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
    styles = {name: (ARMS[at % len(ARMS)], MARKERS[at % len(MARKERS)]) for at, name in enumerate(
        dict.fromkeys(line.name for listed in panels.values() for line in listed))}  # fmt: skip
    for axes, (title, listed) in zip(drawn.flat, panels.items(), strict=True):
        for line in listed:
            present = [(at, row) for at, row in zip(line.xs, line.rows, strict=True) if row and row.value is not None]
            xs = [at for at, _ in present]
            values = np.array([[row.value, *(row.interval or (row.value,) * 2)] for _, row in present], dtype=float)
            middle, low, high = scale * values.reshape(-1, 3).T
            colour, marker = styles[line.name]
            axes.fill_between(xs, low, high, color=colour, alpha=0.15, linewidth=0)
            axes.plot(xs, middle, "--" if line.dashed else "-", color=colour, marker=marker, markersize=4.5,
                      linewidth=1.6)  # fmt: skip
        if guide is not None:
            axes.axhline(guide, color=GREY, linestyle=":", linewidth=1)
        axes.set_title(title, fontsize=form.text)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(axis="y", color=GREY, alpha=0.2)
        _label(axes, form, x if axes in drawn[-1] else "")
        axes.set_ylim(bottom=bottom)
    figure.supylabel(y, fontsize=form.text)
    handles = [Line2D([], [], color=colour, marker=mark, label=name) for name, (colour, mark) in styles.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=1 if narrow else 2, fontsize=form.label,
                  frameon=False)  # fmt: skip
    return figure


def contours() -> list[Guide]:
    """Return lines of equal d′ for a plane of harmless requests answered and unsafe ones caught, in percent."""
    guides, criteria = [], np.linspace(-4, 4, 401)
    for d_prime in range(4):
        # d′ = z(hit) − z(false alarm) and c = −(z(hit) + z(false alarm)) / 2
        xs, ys = 100 * ndtr(d_prime / 2 + criteria), 100 * ndtr(d_prime / 2 - criteria)
        label_at = float(xs[222]), float(ys[222])  # where "safe" is said readily: most models lie on the other side
        guides.append(Guide(xs, ys, f"d′ = {d_prime}" if d_prime else "d′ = 0 (chance)", label_at))
    return guides


DIAGONAL = Guide((0, 100), (0, 100), "harmful and harmless refused alike")
CAPTIONS = {
    "yes_no": "Up: more unsafe requests caught. Right: more harmless ones answered. Along a dotted line only the "
    "criterion moves. Towards the upper right discrimination rises. Bars are 95% intervals.",
    "refusal": "Left: fewer harmless requests refused. Up: more harmful ones refused. On the dotted line both are "
    "refused alike. Bars are 95% intervals.",
    "auroc": "How well margins separate safe from unsafe, with 95% intervals: 0.5 is chance, 1 is perfect. No shift of "
    "the threshold changes it.",
    "attention": "Share of the verdict’s attention that lies on the image, by layer; the first token (a sink) is left "
    "out. Bands are 95% intervals over clusters.",
}
SHARE, CURVES = "attention_on_image", ("failures", "successes")


def marks_of(results: Results, arms: Sequence[str], *keys: Mapping[str, str], scale: float = 1) -> list[Mark]:
    """Return a mark for each arm: the values and intervals of one or two quantities."""

    def part(row: Row | None) -> tuple[float | None, Ends]:
        if row is None or row.value is None:
            return None, None
        return scale * row.value, (scale * row.interval[0], scale * row.interval[1]) if row.interval else None

    return [Mark(arm, *(cell for key in keys for cell in part(results.get(arm, **key)))) for arm in arms]  # type: ignore[arg-type]


def safety(results: Results, kind: str, arms: Sequence[str], *further: Guide) -> Drawing:
    """Return each arm's rate on unsafe cases over its rate on harmless ones."""
    x, y = (f"{name} (%)" for name in RATES[kind])
    marks = marks_of(results, arms, *RATES[kind].values(), scale=100)
    guides = [*(contours() if kind == "yes_no" else [DIAGONAL]), *further]
    listed = "; ".join(f"{mark.name}: {fixed(mark.x, 1)}% and {fixed(mark.y, 1)}%" for mark in marks)
    words = f"{x.capitalize()} and {y} by arm. {listed}."
    return Drawing(partial(points, marks, x=x, y=y, guides=guides), words, CAPTIONS[kind])


def drawings(run: SavedRun) -> dict[str, Drawing]:
    """Return the figures of a run's arms by name, and attention by layer if it was analysed."""
    results, kind, arms = run.results, run.metrics["kind"], arms_of(run.results, run.metrics)
    drawn = {"safety": safety(results, kind, arms)}
    if kind == "yes_no":
        marks = marks_of(results, arms, {"quantity": "auroc"})
        words = f"AUROC of the margin. {'; '.join(f'{mark.name}: {fixed(mark.x, 3)}' for mark in marks)}."
        x = "AUROC of the margin (0.5 = chance)"
        drawn["auroc"] = Drawing(partial(points, marks, x=x, guides=[Guide((0.5,), ())]), words, CAPTIONS["auroc"])
    return drawn | attention_by_layer(results)


def attention_by_layer(results: Results) -> dict[str, Drawing]:
    """Return the share of the verdict's attention on the image, failures and matched successes; {} without pairs."""
    panels, texts = {}, []
    for pairs in results.select(quantity="attention_pairs"):
        subset = pairs.subset.replace("_", "-")
        rows = {kind: results.select(arm=kind, quantity=SHARE, subset=pairs.subset, against="") for kind in CURVES}
        layers = {kind: [row for row in listed if row.group] for kind, listed in rows.items()}
        if pairs.value and layers[CURVES[0]]:
            title = f"{subset} ({pairs.value:.0f} pair{'s' * (pairs.value != 1)})"
            panels[title] = [Line(kind, [int(row.part("layer")) for row in listed], listed, dashed=kind != CURVES[0])
                             for kind, listed in layers.items()]  # fmt: skip
        means = [f"{kind} {value(row)}" for kind, listed in rows.items() for row in listed if not row.group]
        texts += [f"{subset}: {', '.join(means)}"] if means else []
    words = f"Attention on the image by layer, failures and matched successes. Means over layers: {'; '.join(texts)}."
    draw = partial(lines_by_layer, panels, y="attention on the image (%)", scale=100, bottom=0)
    return {"attention_by_layer": Drawing(draw, words, CAPTIONS["attention"])} if panels else {}


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


def embedded(name: str, svg: bytes, *, alt: str, caption: str = "") -> dict[str, str]:
    """Return an SVG file as ``templates/drawn.html.j2`` prints it: as data, for light and dark pages."""
    dark_svg = b"" if b"<image" in svg else in_dark(svg)  # words on a picture need their own ink
    light, dark = ("data:image/svg+xml;base64," + base64.b64encode(each).decode("ascii") if each else ""
                   for each in (svg, dark_svg))  # fmt: skip
    return {"name": name, "alt": alt, "caption": caption, "uri": light, "dark_uri": dark}
