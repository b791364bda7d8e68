"""Attention on the image by layer, a panel a subset: one scale, one legend. Saves no file."""

from collections.abc import Mapping
from typing import Any

from matplotlib.ticker import MaxNLocator

from experiments.report.colours import ARMS, GREY
from experiments.report.figures import SCREEN, Format
from experiments.report.numbers import percent
from interp.figures.glyphs import Figure

CURVES = {"failures": (ARMS[2], "s", "-"), "successes": (ARMS[1], "o", "--")}  # colour, marker, line
WIDE = 9.6  # inches of 100 px of three panels side by side


def subsets_by_layer(found: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The subsets of an attention.json that have a pair of a failure and a success, by name; empty without any.

    Raises:
        KeyError, TypeError, AttributeError: it is not of the shape that the analysis writes.
    """
    return {
        str(name).replace("_", "-"): block
        for name, block in (found.get("subsets") or {}).items()
        if block["pairs"] and block["image_share"]["by_layer"]
    }


def share_by_layer(subsets: Mapping[str, Mapping[str, Any]], form: Format = SCREEN) -> Figure:
    """The share of the verdict's attention on the image, failures and matched successes, with 95% intervals."""
    phone = form.legend_columns == 1
    rows, columns = (len(subsets), 1) if phone else (1, len(subsets))
    width = form.width if phone or len(subsets) == 1 else WIDE * len(subsets) / 3
    figure = Figure(figsize=(width, 0.7 + 2.1 * rows if phone else 3.3), dpi=100, layout="constrained")
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for axes, (name, block) in zip(panels.flat, subsets.items(), strict=True):
        layers = [int(layer) for layer in block["image_share"]["by_layer"]]
        for kind, (colour, marker, line) in CURVES.items():
            found = [one[kind] for one in block["image_share"]["by_layer"].values()]
            mean = [100 * one["value"] for one in found]
            low, high = ([100 * (one["value"] if one[end] is None else one[end]) for one in found]
                         for end in ("low", "high"))  # fmt: skip
            axes.fill_between(layers, low, high, color=colour, alpha=0.15, linewidth=0)
            axes.plot(layers, mean, line, color=colour, marker=marker, markersize=4,
                      label=kind if axes is panels.flat[0] else None)  # fmt: skip
        pairs = block["pairs"]
        axes.set_title(f"{name} ({pairs} pair{'s' * (pairs != 1)})", fontsize=form.text)
        axes.tick_params(labelsize=form.label)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(axis="y", color=GREY, alpha=0.2)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_ylim(bottom=0)
    for axes in panels[-1]:
        axes.set_xlabel("layer", fontsize=form.text)
    figure.supylabel("attention on the image (%)", fontsize=form.text)
    figure.legend(loc="outside lower center", ncols=2, fontsize=form.label, frameon=False)
    return figure


def describe(subsets: Mapping[str, Mapping[str, Any]]) -> str:
    """The figure in words, for those who do not see it."""
    texts = []
    for name, block in subsets.items():
        of_all = block["image_share"].get("all_layers") or {}
        means = [f"{kind} {percent(of_all[kind]['value'])}%" for kind in CURVES if of_all.get(kind)]
        texts.append(f"{name} cases: {', '.join(means) or 'by layer'}")
    return f"Attention on the image by layer, failures and matched successes. Mean of all layers, {'; '.join(texts)}."
