"""Attention on the image by layer, a panel for each subset. Saves no file."""

from collections.abc import Mapping, Sequence

from experiments.report.figures import SCREEN, Format, Line, lines_by_layer
from experiments.report.text import value
from experiments.runs.results_table import Results
from interp.figures.glyphs import Figure

SHARE, CURVES = "attention_on_image", ("failures", "successes")


def panels(results: Results) -> dict[str, list[Line]]:
    """Return the lines of failures and matched successes by subset; empty without a matched pair."""
    drawn = {}
    for pairs in results.select(quantity="attention_pairs"):
        subset = pairs.subset
        groups = [
            entry.group
            for entry in results.select(arm=CURVES[0], quantity=SHARE, subset=subset, against="")
            if entry.group
        ]
        if not pairs.value or not groups:
            continue
        layers = [int(group.partition("=")[2]) for group in groups]
        title = f"{subset.replace('_', '-')} ({pairs.value:.0f} pair{'s' * (pairs.value != 1)})"
        drawn[title] = [
            Line(
                kind,
                layers,
                [results.get(kind, SHARE, subset=subset, group=group) for group in groups],
                kind != CURVES[0],
            )
            for kind in CURVES
        ]
    return drawn


def share_by_layer(lines: Mapping[str, Sequence[Line]], form: Format = SCREEN) -> Figure:
    """Draw the share of the verdict's attention on the image, failures and matched successes, with 95% intervals."""
    return lines_by_layer(lines, y="attention on the image (%)", form=form, scale=100, bottom=0)


def describe(results: Results) -> str:
    """Return the figure in words."""
    texts = []
    for pairs in results.select(quantity="attention_pairs"):
        means = [
            f"{kind} {value(entry)}" for kind in CURVES if (entry := results.get(kind, SHARE, subset=pairs.subset))
        ]
        if means:
            texts.append(f"{pairs.subset.replace('_', '-')}: {', '.join(means)}")
    return f"Attention on the image by layer, failures and matched successes. Means over layers: {'; '.join(texts)}."
