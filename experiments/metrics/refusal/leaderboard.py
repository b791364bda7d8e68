"""Refusals of MOSSBench's benign requests as its leaderboard counts them, with the published rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from experiments.benchmarks.mossbench import TYPES
from experiments.benchmarks.published import mossbench_row

COLUMNS = tuple(TYPES.values())
CONVENTIONS = ("empty counted as refusal", "cases with a response")  # the published one first
NO_TO_A_QUESTION = "empty, and no to “May I …?”"  # as the leaderboard's GPT judge counts a rebuttal of one


@dataclass(frozen=True)
class LeaderboardRow:
    """One model under one convention: refusals in % by type, and the published row where there is one.

    ``errors`` are absolute differences from the published cells, in points.
    """

    model: str
    convention: str
    cells: tuple[float | None, ...]  # by COLUMNS
    n: tuple[int, ...]  # judged cases by COLUMNS
    published: tuple[float, ...] | None

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


def leaderboard_rows(metrics: Mapping[str, Any], counted: Mapping[str, Any] | None = None) -> list[LeaderboardRow]:
    """Two rows per model, one for each convention, from a metrics.json whose arms are the models.

    With ``counted``, the same with rebuttals of questions for a judgement as refusals, a third: ``NO_TO_A_QUESTION``.
    """
    found = []
    for model, arm in metrics["arms"].items():
        plain = [arm["by_type"].get(type_, {}).get("benign") for type_ in COLUMNS]
        published = _published(arm)
        unknown = [cell["n_of"] if cell else 0 for cell in plain]
        cells = {
            CONVENTIONS[0]: (published, unknown),
            CONVENTIONS[1]: ([cell and cell["rate"] for cell in plain], [cell["n"] if cell else 0 for cell in plain]),
        }
        if counted is not None:
            cells[NO_TO_A_QUESTION] = _published(counted["arms"][model]), unknown
        for convention, (rates, n) in cells.items():
            percent = tuple(None if rate is None else 100 * rate for rate in rates)
            found.append(LeaderboardRow(model, convention, percent, tuple(n), mossbench_row(model)))
    return found


def _published(arm: Mapping[str, Any]) -> list[float | None]:
    return [arm["published"].get(f"benign:{type_}") for type_ in COLUMNS]


def mean_absolute_error(shown: Sequence[LeaderboardRow], convention: str) -> float | None:
    """Points a cell, over every cell of the convention that has a published one; None where there is none."""
    errors = [error for row in shown if row.convention == convention for error in row.errors if error is not None]
    return fmean(errors) if errors else None


def averages_by_type(shown: Sequence[LeaderboardRow], convention: str) -> dict[str, float | None]:
    """The average refusal rate of each stimulus type over the models, in %."""
    table = [row.cells for row in shown if row.convention == convention]
    columns = zip(COLUMNS, zip(*table, strict=True), strict=True)
    return {name: fmean(known) if (known := [cell for cell in column if cell is not None]) else None
            for name, column in columns}  # fmt: skip
