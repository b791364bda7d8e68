"""Figures of what ``interp``'s tools find: lens, patching, knockout, direct attribution (their results' ``plot``).

Style, colours and scales are as in ``interp.figures.attention``: signed values from purple to orange, white being
none. Effects are means over the prompts; values that are missing are left grey.
"""

import math
import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from interp.figures.attention import (
    LABEL,
    OKABE_ITO,
    TEXT,
    Scale,
    colour_bar,
    draw_grid,
    figure_of,
    head_grid,
    readable_on,
    scale_of,
)
from interp.figures.glyphs import Figure, cut
from interp.hooks.residual import Place, place_name

EFFECT = "effect of patching (% of the way to the other prompt)"
DIRECT = "direct effect on the margin (logits); above 0 speaks for Yes"
MOVED = "change of the margin (logits)"


def attribution_figure(
    heads: Float[np.ndarray, "layer head"],
    layers: Sequence[int],
    parts: Mapping[str, tuple[Sequence[int], Float[np.ndarray, " _"]]],
    rest: Mapping[str, float],
    *,
    title: str = "",
) -> Figure:
    """Left: each head's mean effect. Right, on the same layers: ``parts``, each with its layers. Below: ``rest``."""
    scale = scale_of([heads], DIRECT, signed=True)
    figure = figure_of(0.28 * max(len(layers), 6) + 1.6, title)
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=[1.3, 1])
    draw_grid(left, heads, scale, rows=layers)
    left.set(xlabel="head", ylabel="layer")
    left.set_title("heads", fontsize=LABEL)
    height = 0.8 / max(len(parts), 1)
    for i, (name, (part_layers, values)) in enumerate(parts.items()):
        places = [_line_of(layer, layers) - 0.4 + (i + 0.5) * height for layer in part_layers]
        right.barh(places, values, height, label=name, color=OKABE_ITO[i])
    right.axvline(0, color="black", linewidth=0.7)
    right.spines[["top", "right"]].set_visible(False)
    right.tick_params(labelsize=LABEL)
    right.xaxis.set_major_locator(MaxNLocator(5))
    right.set_xlabel("logits", fontsize=LABEL)
    right.set_title("MLPs" if len(parts) == 1 else "other parts", fontsize=LABEL)
    if len(parts) > 1:
        right.legend(fontsize=LABEL, frameon=False)
    colour_bar(figure, scale, [left, right])
    figure.supxlabel(", ".join(f"{name} {_signed(value)}" for name, value in rest.items()) + " logits", fontsize=LABEL)
    return figure


def patch_figure(
    means: Float[np.ndarray, "place layer *head"],
    places: Sequence[Place],
    layers: Sequence[int],
    *,
    what: str,
    title: str = "",
) -> Figure:
    """Effects of patching ``what``, NaN where unknown, by place and layer; by head a panel for each place."""
    if means.ndim == 3:
        grids = {str(place_name(place)): means[i] for i, place in enumerate(places) if not np.isnan(means[i]).any()}
        return head_grid(grids, layers=layers, unit=EFFECT, signed=True, title=title)
    scale = scale_of([np.nan_to_num(means)], EFFECT, signed=True)
    figure = figure_of(0.3 * max(len(places), 3) + 1.5, title)
    axes = figure.add_subplot()
    draw_grid(axes, means, scale)
    axes.set_yticks(range(len(places)), [_place(place) for place in places], fontsize=LABEL)
    axes.set_xlabel(f"layer ({'residual stream' if what == 'residual' else what + ' outputs'})")
    step = math.ceil(len(layers) / 20)
    axes.set_xticks(range(0, len(layers), step), [str(layer) for layer in layers[::step]])
    if means.size <= 80:
        for (i, j), value in np.ndenumerate(means):
            if not np.isnan(value):
                _write(axes, j, i, _whole(100 * float(value)), scale, float(value))
    colour_bar(figure, scale, [axes])
    return figure


def knockout_figure(
    moved: Float[np.ndarray, "cut row"],
    layers: Sequence[Sequence[int]],
    *,
    edges: str,
    by_head: bool,
    title: str = "",
) -> Figure:
    """By head: a grid of layers and heads. By window: a bar for each; of a single cut, a bar for each prompt.

    ``layers`` has the layers of each cut of ``edges``.
    """
    means = moved.mean(-1)
    if by_head:
        rows = list(dict.fromkeys(some[0] for some in layers))
        grid = {f"{edges} cut": means.reshape(len(rows), -1)}
        return head_grid(grid, layers=rows, unit=MOVED, signed=True, title=title)
    figure = figure_of(3.0, title)
    axes = figure.add_subplot()
    names = [str(some[0]) if len(some) == 1 else f"{some[0]}–{some[-1]}" for some in layers]
    along = f"layers where {edges} is cut"
    if len(names) == 1:
        along = f"prompt ({edges} cut in {'layer' if len(layers[0]) == 1 else 'layers'} {names[0]})"
        means = moved[0]
        names = [str(row) for row in range(len(means))]
    axes.bar(range(len(names)), means, color=[OKABE_ITO[0] if value >= 0 else OKABE_ITO[1] for value in means])
    step = math.ceil(len(names) / 12)
    axes.set_xticks(range(0, len(names), step), names[::step])
    axes.axhline(0, color="black", linewidth=0.7)
    axes.set_xlabel(along, fontsize=TEXT)
    axes.set_ylabel(MOVED, fontsize=TEXT)
    axes.tick_params(labelsize=LABEL)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def lens_figure(
    words: Sequence[Sequence[str]],
    shares: Float[np.ndarray, "layer column"],
    layers: Sequence[int],
    places: Sequence[Place],
    margins: Float[np.ndarray, " layer"],
    *,
    title: str = "",
) -> Figure:
    """One prompt's likeliest tokens, the last layer on top; colour is ``shares``, their probability.

    A column is a place. For a single place it is a rank, and ``margins`` are next to them.
    """
    single, columns = len(places) == 1, shares.shape[1]
    scale = scale_of([np.nan_to_num(shares)], "probability of the likeliest token (%)", signed=False, shares="Blues")
    figure = figure_of(0.28 * max(len(layers), 4) + 1.5, title)
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=[3, 1]) if single else (figure.add_subplot(), None)
    draw_grid(left, shares, scale, rows=layers)
    left.invert_yaxis()
    left.set_ylabel("layer", fontsize=LABEL)
    letters = max(3, int(42 / columns))
    for (layer, column), share in np.ndenumerate(np.nan_to_num(shares)):
        word = cut(repr(words[layer][column])[1:-1], letters)
        _write(left, column, layer, word, scale, float(share))
    names = [f"{column + 1}." for column in range(columns)] if single else [_place(place) for place in places]
    step = math.ceil(columns / 16)
    left.set_xticks(range(0, columns, step), names[::step], fontsize=LABEL)
    left.set_xlabel(f"likeliest tokens at {_place(places[0])}" if single else "place", fontsize=LABEL)
    if right is not None:
        right.plot(margins, range(len(layers)), marker="o", color=OKABE_ITO[0])
        right.axvline(0, color="black", linewidth=0.7)
        right.set_xlabel("margin (logits)", fontsize=LABEL)
        right.tick_params(labelsize=LABEL)
        right.spines[["top", "right"]].set_visible(False)
        right.xaxis.set_major_locator(MaxNLocator(4))
    colour_bar(figure, scale, [left] if right is None else [left, right])
    return figure


def _line_of(layer: int, layers: Sequence[int]) -> float:
    """Where a layer is drawn; one without heads lies between its neighbours."""
    below = sum(other < layer for other in layers)
    return float(below) if layer in layers else below - 0.5


def _write(axes: Axes, x: int, y: int, text: str, scale: Scale, value: float) -> None:
    colour = readable_on(scale.colours(scale.norm(value * scale.factor)))
    axes.text(x, y, text, ha="center", va="center", fontsize=LABEL - 1, color=colour)


def _place(region: Place) -> str:
    name = place_name(region)
    if isinstance(name, int):
        return "verdict" if name == 0 else f"−{-name}"
    return "\n".join(textwrap.wrap(name.replace("_", " "), 12))


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


def _whole(value: float) -> str:
    return f"{round(value)}".replace("-", "−")
