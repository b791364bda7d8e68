"""The published row of a model, in a sentence to stand beside a run's own numbers. Compares nothing."""

from collections.abc import Mapping
from typing import Any

from experiments.benchmarks.published import LEADERBOARD, OTHERS

_LEADERBOARD = (
    "The published row of {name} in {table}, by its own judge and with empty answers counted as refusals: of all 300 "
    "benign requests, {cells} refused; on average {average:g}%."
)
_TABLE = (
    "The published row of {name} in {table}, by its own scorer on all 1,523 cases: {over_safety:.1f}% of safe ones are "
    "called safe and {unsafe:.1f}% of unsafe ones unsafe (the plain mean of typical and attack), "
    "overall {overall:.1f}%."
)


def sentence(row: Mapping[str, Any]) -> str:
    """``row`` is of ``experiments.benchmarks.published.row_of``."""
    if row["table"] == LEADERBOARD:
        cells = ", ".join(f"{name} {rate:g}%" for name, rate in row["refused"].items())
        return _LEADERBOARD.format(**row, cells=cells)
    if row["table"] == OTHERS:
        rates = ", ".join(f"{name} {rate:g}%" for name, rate in row["rates"].items())
        return f"What {row['benchmark']}'s authors report of {row['name']}, by their own judge: {rates}."
    return _TABLE.format(**row)
