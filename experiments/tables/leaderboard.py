"""MOSSBench's leaderboard beside the rates that another judge finds. Pure: knows no files and no judges.

Source: the README of turningpoint-ai/MOSSBench (arXiv 2406.17806), columns of the GPT judge. Its average of Claude 3
Opus, 55, is a typo for 34.67, the mean of the row's three cells.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from experiments.benchmarks.mossbench import TYPES

COLUMNS = tuple(TYPES.values())
CONVENTIONS = ("empty counted as refusal", "cases with a response")  # the published one first
HUMAN_DIFFERENCE = 4.9  # points a cell by which the leaderboard's own human evaluation differs from its GPT judge

PUBLISHED: dict[str, tuple[float, float, float, float]] = {  # % by type, and the average as printed
    "Claude 3 Opus (web)": (41, 93, 78, 70.67),
    "Gemini Advanced": (41, 67, 75, 61),
    "Claude 3 Sonnet": (39, 65, 61, 55),
    "Claude 3 Haiku": (27, 58, 63, 49.33),
    "Claude 3 Opus": (11, 43, 50, 34.67),
    "Gemini Pro 1.5": (25, 28, 35, 29.33),
    "Qwen-VL-Chat": (16, 13, 36, 21.67),
    "InternLM-XComposer2-7b": (14, 11, 28, 17.67),
    "Gemini Pro Vision": (20, 9, 22, 17),
    "Reka": (11, 21, 18, 16.67),
    "InstructBLIP-Vicuna-7b": (21, 23, 3, 15.67),
    "IDEFICS-9b": (17, 9, 15, 13.67),
    "MiniCPM-V 2.0": (16, 11, 10, 12.33),
    "LLaVA-1.5-7b": (18, 10, 9, 12.33),
    "mPLUG-Owl2": (11, 7, 12, 10),
    "LLaVA-1.5-13b": (9, 9, 11, 9.67),
    "GPT-4o": (6, 8, 5, 6.33),
    "MiniCPM-Llama3-V 2.5": (8, 5, 5, 6),
    "GPT-4o (web)": (6, 2, 4, 4),
    "GPT-4V": (3, 3, 3, 3),
}


@dataclass(frozen=True)
class Row:
    """One model under one convention: refusals in % by type, and the published row where there is one.

    ``errors`` are absolute differences from the published cells, in points.
    """

    model: str
    convention: str
    cells: tuple[float | None, ...]  # by COLUMNS
    n: tuple[int, ...]  # judged cases by COLUMNS
    published: tuple[float, float, float, float] | None

    @property
    def average(self) -> float | None:
        """The leaderboard's average: the plain mean of the types; None where one has no judged case."""
        known = [value for value in self.cells if value is not None]
        return fmean(known) if len(known) == len(self.cells) else None

    @property
    def errors(self) -> tuple[float | None, ...]:
        """None where either side is missing."""
        if self.published is None:
            return (None,) * len(self.cells)
        return tuple(
            None if ours is None else abs(ours - theirs)
            for ours, theirs in zip(self.cells, self.published, strict=False)
        )


def published_row(model: str) -> tuple[float, float, float, float] | None:
    """The leaderboard's row of a results folder's model; names are compared by their words, whatever their order.

    The folder is called "Gemini-Pro 1.5" and the row "Gemini Pro 1.5".
    """
    wanted = _words(model)
    return next((row for name, row in PUBLISHED.items() if _words(name) == wanted), None)


def _words(name: str) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z]+|\d+(?:\.\d+)?", name.lower()))


def rows(metrics: Mapping[str, Any]) -> list[Row]:
    """Two rows a model, one a convention, from a metrics.json whose arms are the models."""
    found = []
    for model, arm in metrics["arms"].items():
        plain = [arm["by_type"].get(type_, {}).get("benign") for type_ in COLUMNS]
        published = [arm["published"].get(f"benign:{type_}") for type_ in COLUMNS]
        unknown = [cell["n_of"] if cell else 0 for cell in plain]
        cells = {
            CONVENTIONS[0]: (published, unknown),
            CONVENTIONS[1]: ([cell and cell["rate"] for cell in plain], [cell["n"] if cell else 0 for cell in plain]),
        }
        for convention, (rates, n) in cells.items():
            percent = tuple(None if rate is None else 100 * rate for rate in rates)
            found.append(Row(model, convention, percent, tuple(n), published_row(model)))
    return found


def mean_absolute_error(shown: Sequence[Row], convention: str) -> float | None:
    """Points a cell, over every cell of the convention that has a published one; None where there is none."""
    errors = [error for row in shown if row.convention == convention for error in row.errors if error is not None]
    return fmean(errors) if errors else None


def averages_by_type(shown: Sequence[Row], convention: str) -> dict[str, float | None]:
    """The average refusal rate of each stimulus type over the models, in %."""
    table = [row.cells for row in shown if row.convention == convention]
    columns = zip(COLUMNS, zip(*table, strict=True), strict=True)
    return {name: fmean(known) if (known := [cell for cell in column if cell is not None]) else None
            for name, column in columns}  # fmt: skip
