"""The loss curve of a run as a figure. Saves nothing."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from interp.plot import LABEL, OKABE_ITO, TEXT, WIDTH


def loss_curve(steps: Sequence[int], losses: Sequence[float], *, title: str = "") -> Figure:
    """Training loss over optimiser steps: each logged value, and their running mean over a twentieth of the run."""
    figure = Figure(figsize=(WIDTH, 3.6), dpi=100, layout="constrained")
    if title:
        figure.suptitle(title, fontsize=TEXT, parse_math=False)
    axes = figure.add_subplot()
    window = max(1, len(losses) // 20)
    smooth = [sum(losses[max(0, i - window + 1) : i + 1]) / min(i + 1, window) for i in range(len(losses))]
    axes.plot(steps, losses, color=OKABE_ITO[5], linewidth=0.8, marker="." if len(steps) < 3 else None, label="logged")
    axes.plot(steps, smooth, color=OKABE_ITO[0], linewidth=1.6, label=f"running mean of {window}")
    axes.set_xlabel("optimiser step", fontsize=TEXT)
    axes.set_ylabel("training loss (nats a token)", fontsize=TEXT)
    axes.set_ylim(bottom=min(0.0, *losses))
    axes.tick_params(labelsize=LABEL)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.legend(fontsize=LABEL, frameon=False)
    return figure
