"""Refusals of MOSSBench's harmless requests as its leaderboard counts them, with the published rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from experiments.benchmarks.mossbench import TYPES
from experiments.benchmarks.published import mossbench_row
from experiments.metrics.outcomes import PUBLISHED
from experiments.runs.results_table import Results

COLUMNS = tuple(TYPES.values())
PUBLISHED_CONVENTION, WITH_RESPONSE = CONVENTIONS = ("empty counted as refusal", "cases with a response")
NO_TO_A_QUESTION = "empty, and no to “May I …?”"  # as the leaderboard's GPT judge counts a rebuttal of one


@dataclass(frozen=True)
class LeaderboardRow:
    """One model under one convention: refusals in % by type, and the published row if there is one.

    ``errors`` are absolute differences from the published cells, in points.
    """

    model: str
    convention: str
    cells: tuple[float | None, ...]  # by COLUMNS
    n: tuple[int, ...]  # judged cases by COLUMNS
    published: tuple[float, ...] | None

    @property
    def average(self) -> float | None:
        """The leaderboard's average: the plain mean of the types; None if one has no judged case."""
        cells = [value for value in self.cells if value is not None]
        return fmean(cells) if len(cells) == len(self.cells) else None

    @property
    def errors(self) -> tuple[float | None, ...]:
        """None if either side is missing."""
        if self.published is None:
            return (None,) * len(self.cells)
        pairs = zip(self.cells, self.published, strict=False)
        return tuple(None if ours is None else abs(ours - theirs) for ours, theirs in pairs)


def leaderboard_rows(results: Results, models: Sequence[str], counted: Results | None = None) -> list[LeaderboardRow]:
    """Return two rows for each model, one for each convention, from a results table whose arms are the models.

    With ``counted``, the same with rebuttals of questions for a judgement as refusals, there is a third:
    ``NO_TO_A_QUESTION``.
    """
    tables = {PUBLISHED_CONVENTION: (results, PUBLISHED), WITH_RESPONSE: (results, "")}
    if counted is not None:
        tables[NO_TO_A_QUESTION] = (counted, PUBLISHED)
    rows = []
    for model in models:
        for convention, (source, rule) in tables.items():
            cells = [
                source.get(model, "refusal_rate", subset="benign", group=f"type={name}", rule=rule) for name in COLUMNS
            ]
            percent = tuple(None if cell is None or cell.value is None else 100 * cell.value for cell in cells)
            n = tuple(int(cell.n or 0) if cell else 0 for cell in cells)
            rows.append(LeaderboardRow(model, convention, percent, n, mossbench_row(model)))
    return rows


def mean_absolute_error(rows: Sequence[LeaderboardRow], convention: str) -> float | None:
    """Return points a cell, over every cell of the convention that has a published one; None without any."""
    errors = [error for row in rows if row.convention == convention for error in row.errors if error is not None]
    return fmean(errors) if errors else None


def averages_by_type(rows: Sequence[LeaderboardRow], convention: str) -> dict[str, float | None]:
    """Return the average refusal rate of each stimulus type over the models, in %."""
    columns = zip(*(row.cells for row in rows if row.convention == convention), strict=True)
    averages = {}
    for name, column in zip(COLUMNS, columns, strict=True):
        cells = [cell for cell in column if cell is not None]
        averages[name] = fmean(cells) if cells else None
    return averages
