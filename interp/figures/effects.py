"""Figures of what ``interp``'s tools return: lens, patching, knockout, direct attribution (their ``plot`` methods).

Style, colours and scales are those of ``interp.figures.attention``: signed values from purple to orange, white being
none. Effects are means over the prompts; values that are missing are left grey.
"""

import math
import textwrap
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from interp.errors import UserError
from interp.figures.attention import (
    LABEL,
    OKABE_ITO,
    TEXT,
    Scale,
    colour_bar,
    figure_of,
    head_grid,
    readable_on,
    scale_of,
)
from interp.hooks.residual import Place, place_name

if TYPE_CHECKING:
    from interp.tools.knockout import KnockoutEffects
    from interp.tools.lens import LensResult
    from interp.tools.logit_attribution import LogitAttribution
    from interp.tools.patching import PatchEffects

EFFECT = "effect of patching (% of the way to the other prompt)"
DIRECT = "direct effect on the margin (logits); above 0 speaks for Yes"
MOVED = "change of the margin (logits)"
GREY = "#bdbdbd"


def attribution_figure(found: "LogitAttribution", *, title: str = "") -> Figure:
    """Left: each head's mean effect. Right, on the same layers: MLPs, and what there is besides."""
    heads = found.heads.mean(-1).numpy()
    scale = scale_of([heads], DIRECT, signed=True)
    figure = figure_of(0.28 * max(len(found.layers), 6) + 1.6, title)
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=[1.3, 1])
    _grid(left, heads, scale)
    left.set(xlabel="head", ylabel="layer")
    left.set_title("heads", fontsize=LABEL)
    _ticks(left, found.layers)
    lines = {layer: i for i, layer in enumerate(found.layers)}
    bars = [("MLP", found.layers, found.mlps), ("bias of attention", found.layers, found.biases)]
    bars.append(("cross-attention block", found.crossing_layers, found.crossings))
    shown = [bar for bar in bars if bar[2].numel() and float(bar[2].abs().max()) > 0]
    height = 0.8 / max(len(shown), 1)
    for i, (name, layers, values) in enumerate(shown):
        places = [_line_of(layer, lines, found.layers) - 0.4 + (i + 0.5) * height for layer in layers]
        right.barh(places, values.mean(-1).numpy(), height, label=name, color=OKABE_ITO[i])
    right.axvline(0, color="black", linewidth=0.7)
    right.spines[["top", "right"]].set_visible(False)
    right.tick_params(labelsize=LABEL)
    right.xaxis.set_major_locator(MaxNLocator(5))
    right.set_xlabel("logits", fontsize=LABEL)
    right.set_title("MLPs" if len(shown) == 1 else "other parts", fontsize=LABEL)
    if len(shown) > 1:
        right.legend(fontsize=LABEL, frameon=False)
    colour_bar(figure, scale, [left, right])
    rest = (
        f"embedding {_signed(float(found.embedding.mean()))}, constant {_signed(float(found.constant.mean()))}, "
        f"all together {_signed(float(found.total.mean()))} logits"
    )
    figure.supxlabel(rest, fontsize=LABEL)
    return figure


def patch_figure(found: "PatchEffects", *, title: str = "") -> Figure:
    """Effects by place and layer; of heads by layer and head, a panel for each place.

    Raises:
        UserError: no effect is known.
    """
    values = found.values.numpy()
    known = ~np.isnan(values)
    if not known.any():
        reason = next((reason for rows in found.reasons for reason in rows if reason), "no pair")
        raise UserError(f"no effect of patching to draw ({reason}); each is a share of a gap; patch other pairs")
    means = np.where(known, values, 0).sum(-1) / np.maximum(known.sum(-1), 1)
    means[~known.any(-1)] = np.nan
    if found.heads:
        grids = {
            str(place_name(place)): means[i] for i, place in enumerate(found.places) if not np.isnan(means[i]).any()
        }
        return head_grid(grids, layers=found.layers, unit=EFFECT, signed=True, title=title)
    scale = scale_of([np.nan_to_num(means)], EFFECT, signed=True)
    figure = figure_of(0.3 * max(len(found.places), 3) + 1.5, title)
    axes = figure.add_subplot()
    _grid(axes, means, scale)
    axes.set_yticks(range(len(found.places)), [_place(place) for place in found.places], fontsize=LABEL)
    axes.set_xlabel(f"layer ({'residual stream' if found.what == 'residual' else found.what + ' outputs'})")
    step = math.ceil(len(found.layers) / 20)
    axes.set_xticks(range(0, len(found.layers), step), [str(layer) for layer in found.layers[::step]])
    if means.size <= 80:
        for (i, j), value in np.ndenumerate(means):
            if not np.isnan(value):
                _write(axes, j, i, _whole(100 * float(value)), scale, float(value))
    colour_bar(figure, scale, [axes])
    return figure


def knockout_figure(found: "KnockoutEffects", *, title: str = "") -> Figure:
    """By head: a grid of layers and heads. By window: a bar for each; of a single cut, a bar for each prompt."""
    means = found.moved.mean(-1).numpy()
    edges = ", ".join(" → ".join(str(getattr(end, "__name__", end)) for end in edge) for edge in found.edges)
    if found.heads[0] is not None:
        layers = list(dict.fromkeys(layers[0] for layers in found.layers))
        grid = {f"{edges} cut": means.reshape(len(layers), -1)}
        return head_grid(grid, layers=layers, unit=MOVED, signed=True, title=title)
    figure = figure_of(3.0, title)
    axes = figure.add_subplot()
    names = [str(some[0]) if len(some) == 1 else f"{some[0]}–{some[-1]}" for some in found.layers]
    along = f"layers where {edges} is cut"
    if len(names) == 1:
        along = f"prompt ({edges} cut in {'layer' if len(found.layers[0]) == 1 else 'layers'} {names[0]})"
        means = found.moved[0].numpy()
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


def lens_figure(found: "LensResult", row: int, *, title: str = "") -> Figure:
    """One prompt's likeliest tokens, the last layer on top; colour is their probability; beside them the margin.

    Raises:
        UserError: a prompt that was not read.
    """
    if not 0 <= row < found.margins.shape[2]:
        raise UserError(f"row={row}: there are 0 to {found.margins.shape[2] - 1}; choose among these")
    single = len(found.places) == 1
    columns = found.tokens.shape[3] if single else len(found.places)
    cells = [(0, rank) if single else (place, 0) for place in range(columns) for rank in [place if single else 0]]
    shares = found.probabilities[:, :, row].numpy()
    grid = np.array([[shares[place, layer, rank] for place, rank in cells] for layer in range(len(found.layers))])
    scale = scale_of([np.nan_to_num(grid)], "probability of the likeliest token (%)", signed=False, shares="Blues")
    figure = figure_of(0.28 * max(len(found.layers), 4) + 1.5, title)
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=[3, 1]) if single else (figure.add_subplot(), None)
    _grid(left, grid, scale)
    left.invert_yaxis()
    _ticks(left, found.layers)
    left.set_ylabel("layer", fontsize=LABEL)
    letters = max(3, int(42 / columns))
    for layer in range(len(found.layers)):
        for column, (place, rank) in enumerate(cells):
            word = repr(found.word(place, layer, row, rank))[1:-1]
            shown = word if len(word) <= letters else word[: letters - 1] + "…"
            _write(left, column, layer, shown, scale, float(np.nan_to_num(grid[layer, column])))
    names = [f"{column + 1}." for column in range(columns)] if single else [_place(place) for place in found.places]
    step = math.ceil(columns / 16)
    left.set_xticks(range(0, columns, step), names[::step], fontsize=LABEL)
    left.set_xlabel(f"likeliest tokens at {_place(found.places[0])}" if single else "place", fontsize=LABEL)
    if right is not None:
        right.plot(found.margins[0, :, row].numpy(), range(len(found.layers)), marker="o", color=OKABE_ITO[0])
        right.axvline(0, color="black", linewidth=0.7)
        right.set_xlabel("margin (logits)", fontsize=LABEL)
        right.tick_params(labelsize=LABEL)
        right.spines[["top", "right"]].set_visible(False)
        right.xaxis.set_major_locator(MaxNLocator(4))
    colour_bar(figure, scale, [left] if right is None else [left, right])
    return figure


def _grid(axes: Axes, values: Float[np.ndarray, "row column"], scale: Scale) -> None:
    colours = scale.colours.with_extremes(bad=GREY)
    shown = np.ma.masked_invalid(values * scale.factor)
    axes.imshow(shown, cmap=colours, norm=scale.norm, aspect="auto", interpolation="nearest")
    axes.tick_params(labelsize=LABEL)
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))


def _ticks(axes: Axes, layers: tuple[int, ...]) -> None:
    step = math.ceil(len(layers) / 16)
    axes.set_yticks(range(0, len(layers), step), [str(layer) for layer in layers[::step]])


def _line_of(layer: int, lines: dict[int, int], layers: tuple[int, ...]) -> float:
    """Where a layer is drawn; one without heads lies between its neighbours."""
    return float(lines[layer]) if layer in lines else sum(other < layer for other in layers) - 0.5


def _write(axes: Axes, x: int, y: int, text: str, scale: Scale, value: float) -> None:
    colour = readable_on(scale.colours(scale.norm(value * scale.factor)))
    axes.text(x, y, text, ha="center", va="center", fontsize=LABEL - 1, color=colour, parse_math=False)


def _place(place: Place) -> str:
    name = place_name(place)
    if isinstance(name, int):
        return "verdict" if name == 0 else f"−{-name}"
    return "\n".join(textwrap.wrap(name.replace("_", " "), 12))


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


def _whole(value: float) -> str:
    return f"{round(value)}".replace("-", "−")
