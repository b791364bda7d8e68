"""Matplotlib figures of attention and attribution: over the picture, the words, and the layers and heads.

Figures are 600 px wide, or as wide as a column of a paper (``COLUMN``). Panels of one figure share a colour scale,
which is labelled with its unit. All colours are safe for colour-blind readers. Shares are in viridis, signed values in
purple to orange. Functions return a ``Figure``; they neither save it nor touch pyplot's global state.
"""

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, Normalize
from matplotlib.ticker import MaxNLocator
from PIL import Image, ImageFilter

from interp.errors import UserError
from interp.figures.glyphs import Figure, cut, legible, width
from interp.image_grid import WHOLE, Box
from interp.messages import as_seen


class Size(NamedTuple):
    """The size at which a figure is read: its width in inches of 100 px, its text and its labels in points."""

    width: float
    text: float
    label: float


SCREEN = Size(6.0, 11.0, 9.5)
COLUMN = Size(3.25, 8.0, 7.0)  # of a paper in two columns
WIDTH, TEXT, LABEL = SCREEN
TITLE_LINES = 4  # of a panel
MARGIN = 0.2  # inches beside a title
BLUE = "#0072B2"
GREY = "#bdbdbd"
LETTER = 0.6  # width of a digit, an escape or most letters of DejaVu Sans / font size; those of a sentence are narrower

NOTHING = "nothing to draw; a figure shows at least one value; check the selection"
ATTENTION = "share of attention (%)"
ATTRIBUTION = "attribution to logit(Yes) − logit(No); above 0 speaks for Yes"


def layer_groups(layers: Sequence[int], count: int = 3) -> dict[str, list[int]]:
    """Return splits ``layers`` into at most ``count`` runs of nearly equal length, keyed by their label in a figure."""
    runs = [run.tolist() for run in np.array_split(np.asarray(layers), min(count, len(layers)))]
    return {f"layer {run[0]}" if len(run) == 1 else f"layers {run[0]}–{run[-1]}": run for run in runs}


def image_overlay(
    picture: Image.Image,
    maps: Mapping[str, Float[np.ndarray, "_ _"]],
    *,
    box: Box = WHOLE,
    unit: str = ATTENTION,
    signed: bool = False,
    title: str = "",
    size: Size = SCREEN,
) -> Figure:
    """Draw the picture, and next to it each map with the picture's outlines on top, all on one scale.

    Args:
        maps: panel title → values. Shares are given as fractions of 1 and shown in percent if ``unit`` contains "%".
        box: the part of the picture that the maps cover (``PatchGrid.box``).
        signed: centre the scale on 0.

    Raises:
        UserError: nothing to draw, a value that is not finite, or a negative value without ``signed``.
    """
    picture = as_seen(picture)
    scale = scale_of(list(maps.values()), unit, signed)
    columns = min(len(maps) + 1, 4 if size.width > 4 else 2)
    rows = math.ceil((len(maps) + 1) / columns)
    side = size.width / columns * min(picture.height / picture.width, 1.6)
    names = [_in_lines(name, size.width / columns, size.label, TITLE_LINES) for name in maps]
    lines = max(name.count("\n") for name in names)
    figure = figure_of(rows * (side + 0.22 + lines * 1.2 * size.label / 72) + 0.6, title, size)
    panels = figure.subplots(rows, columns, squeeze=False).flat
    for axes in panels:
        axes.set_axis_off()
    panels[0].imshow(picture, extent=(0, 1, 1, 0), aspect=picture.height / picture.width)
    panels[0].set_title("picture", fontsize=size.label)
    for axes, name, values in zip(panels[1:], names, maps.values(), strict=False):
        _overlay(axes, picture, values * scale.factor, box, scale)
        axes.set_title(name, fontsize=size.label)
    colour_bar(figure, scale, list(figure.axes), size)
    return figure


def word_bars(
    texts: Mapping[str, pd.DataFrame], *, unit: str = ATTENTION, title: str = "", size: Size = SCREEN
) -> Figure:
    """Draw a bar for each word of each text, in reading order from the top, all on one scale.

    Args:
        texts: panel title → table of words and their values (``word_masses``, ``occlude_words``).

    Raises:
        UserError: no words.
    """
    if not any(map(len, texts.values())):
        raise UserError(NOTHING)
    figure = figure_of(0.2 * max(map(len, texts.values())) + 1.2, title, size)
    panels = figure.subplots(1, len(texts), sharex=True, squeeze=False)[0]
    letters = int(size.width / len(texts) * 72 / size.label * 0.6)  # a word takes at most a third of its panel
    for axes, (name, table) in zip(panels, texts.items(), strict=True):
        words, values = (table.iloc[:, column] for column in (0, 1))
        axes.barh(range(len(table)), values * _factor(unit), color=BLUE)
        axes.set_yticks(range(len(table)), [cut(word, letters) for word in words])
        axes.set_title(_in_lines(name, size.width / len(texts), size.label, TITLE_LINES), fontsize=size.label)
        axes.invert_yaxis()
        axes.tick_params(labelsize=size.label)
        axes.xaxis.set_major_locator(MaxNLocator(3))
        axes.spines[["top", "right"]].set_visible(False)
    figure.supxlabel(_in_lines(unit, size.width, size.label), fontsize=size.label)
    return figure


def heat_grid(
    grids: Mapping[str, pd.DataFrame],
    *,
    unit: str = "share of attention on the image (%)",
    signed: bool = False,
    title: str = "",
    size: Size = SCREEN,
) -> Figure:
    """Draw tables, such as layers by heads, side by side on one scale; a cell without a value is grey.

    The names of index and columns are labels, as in ``patch(…).table.pivot(index="place", columns="layer",
    values="effect")``.

    Raises:
        UserError: tables of different shapes, or as ``image_overlay``.
    """
    scale = scale_of([np.nan_to_num(grid.to_numpy()) for grid in grids.values()], unit, signed)
    first = next(iter(grids.values()))
    if any(grid.shape != first.shape for grid in grids.values()):
        shapes = ", ".join(f"{name} {grid.shape}" for name, grid in grids.items())
        raise UserError(f"grids of {shapes}; they must be alike; draw them one by one")
    columns = min(len(grids), 3)
    rows = math.ceil(len(grids) / columns)
    side = min(size.width / columns, 4.0) * min(max(first.shape[0] / first.shape[1], 0.5), 1.2)
    figure = figure_of(rows * (side + 0.5) + 0.9, title, size)
    panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    for axes in panels.flat[len(grids) :]:
        axes.set_axis_off()
    step = math.ceil(len(first) / 16)
    for axes, (name, grid) in zip(panels.flat, grids.items(), strict=False):
        masked = np.ma.masked_invalid(grid.to_numpy() * scale.factor)
        colours = scale.colours.with_extremes(bad=GREY)
        axes.imshow(masked, cmap=colours, norm=scale.norm, aspect="auto", interpolation="nearest")
        axes.tick_params(labelsize=size.label)
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        axes.set_yticks(range(0, len(first), step), [legible(str(label)) for label in first.index[::step]])
        axes.set_title(name, fontsize=size.label)
        axes.set_xlabel(first.columns.name, fontsize=size.label)
    for axes in panels[:, 0]:
        axes.set_ylabel(first.index.name, fontsize=size.label)
    colour_bar(figure, scale, list(panels.flat), size)
    return figure


class Scale(NamedTuple):
    """The colour scale that all panels of a figure share."""

    colours: Colormap
    norm: Normalize
    factor: float
    unit: str


def _factor(unit: str) -> float:
    return 100.0 if "%" in unit else 1.0


def scale_of(values: Sequence[np.ndarray], unit: str, signed: bool) -> Scale:
    """Return a scale from 0 (if signed: from the negated maximum) to the largest absolute value."""
    if not any(some.size for some in values):
        raise UserError(NOTHING)
    factor = _factor(unit)
    top = max(float(np.abs(some).max()) for some in values if some.size) * factor or 1.0
    if not math.isfinite(top):
        raise UserError("a value to draw is not finite; a colour stands for a number; leave such cases out")
    lowest = min(float(some.min()) for some in values if some.size)
    if lowest < 0 and not signed:
        raise UserError(f"a value of {lowest:.3g} on a scale that starts at 0; only shares fit it; pass signed=True")
    return Scale(colormaps["PuOr_r" if signed else "viridis"], Normalize(-top if signed else 0.0, top), factor, unit)


def figure_of(height: float, title: str, size: Size = SCREEN) -> Figure:
    lines = _in_lines(title, size.width, size.text)
    more = 0.3 + lines.count("\n") * 1.2 * size.text / 72 if title else 0
    figure = Figure(figsize=(size.width, height + more), dpi=100, layout="constrained")
    if title:
        figure.suptitle(lines, fontsize=size.text)
    return figure


def _in_lines(text: str, inches: float, points: float, most: int | None = None) -> str:
    """Return the text, legible, in lines that ``inches`` hold in a font of ``points``; of ``most`` lines the last has
    "…".
    """
    readable = legible(text)
    letters = (inches - MARGIN) * 72 / (points * LETTER) * len(readable) / max(width(readable), 1)
    return "\n".join(textwrap.wrap(readable, max(int(letters), 8), max_lines=most, placeholder=" …"))


def colour_bar(figure: Figure, scale: Scale, axes: list[Axes], size: Size = SCREEN) -> None:
    bar = figure.colorbar(
        ScalarMappable(scale.norm, scale.colours), ax=axes, location="bottom", fraction=0.06, aspect=45, pad=0.03
    )
    bar.set_label(_in_lines(scale.unit, size.width, size.label), fontsize=size.label)
    bar.ax.tick_params(labelsize=size.label)
    bar.ax.xaxis.set_major_locator(MaxNLocator(7))


def _overlay(axes: Axes, picture: Image.Image, values: np.ndarray, box: Box, scale: Scale) -> None:
    left, top, right, bottom = box
    ratio = picture.height / picture.width
    axes.imshow(values, cmap=scale.colours, norm=scale.norm, extent=(left, right, bottom, top), aspect=ratio,
                interpolation="nearest")  # fmt: skip
    axes.imshow(_outlines(picture), extent=(0, 1, 1, 0), aspect=ratio)
    axes.set(xlim=(min(left, 0), max(right, 1)), ylim=(max(bottom, 1), min(top, 0)))


def _outlines(picture: Image.Image) -> Float[np.ndarray, "height width 4"]:
    """RGBA: white where the picture is brighter than its surroundings, black where it is darker, else transparent.

    Blending a grey picture into the map would shift the map's colours away from the scale.
    """
    grey = picture.convert("L")
    around = grey.filter(ImageFilter.GaussianBlur(max(grey.size) / 40))
    contrast = (np.asarray(grey, dtype=float) - np.asarray(around, dtype=float)) / 255
    strength = np.minimum(np.abs(contrast) / max(float(np.quantile(np.abs(contrast), 0.98)), 1e-3), 1)
    white = (contrast > 0).astype(float)
    return np.dstack([white, white, white, 0.8 * strength**1.5])
