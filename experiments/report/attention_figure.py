"""Attention on the image by layer, a panel a subset: one scale, one legend. Saves no file."""

from collections.abc import Mapping
from typing import Any

from experiments.runs.results_table import row
from experiments.report.figures import SCREEN, Format, Line, lines_by_layer
from experiments.report.numbers import percent
from interp.figures.glyphs import Figure

CURVES = ("failures", "successes")


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
    """Draw the share of the verdict's attention on the image, failures and matched successes, with 95% intervals."""
    panels = {}
    for name, block in subsets.items():
        by_layer, pairs = block["image_share"]["by_layer"], block["pairs"]
        layers = [int(layer) for layer in by_layer]
        panels[f"{name} ({pairs} pair{'s' * (pairs != 1)})"] = [
            Line(
                kind,
                layers,
                [row("attention_share", entry=entry[kind]) for entry in by_layer.values()],
                kind != CURVES[0],
            )
            for kind in CURVES
        ]
    return lines_by_layer(panels, y="attention on the image (%)", form=form, scale=100, bottom=0)


def describe(subsets: Mapping[str, Mapping[str, Any]]) -> str:
    """The figure in words, for those who do not see it."""
    texts = []
    for name, block in subsets.items():
        of_all = block["image_share"].get("all_layers") or {}
        means = [f"{kind} {percent(of_all[kind]['value'])}%" for kind in CURVES if of_all.get(kind)]
        texts.append(f"{name} cases: {', '.join(means) or 'by layer'}")
    return f"Attention on the image by layer, failures and matched successes. Mean of all layers, {'; '.join(texts)}."
