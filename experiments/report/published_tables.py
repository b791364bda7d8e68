"""MOSSBench's leaderboard: the rows that its authors printed, next to models counted in the same way."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import pandas as pd

from experiments.benchmarks.mossbench import TYPES
from experiments.benchmarks.published import mossbench_row
from experiments.metrics.outcomes import PUBLISHED as BY_AUTHORS
from experiments.runs.results_table import Results

COLUMNS = tuple(TYPES.values())
PUBLISHED_CONVENTION, WITH_RESPONSE = CONVENTIONS = ("empty counted as refusal", "cases with a response")
NO_TO_A_QUESTION = "empty, and no to “May I …?”"  # as the leaderboard's GPT judge counts a rebuttal of one


def snake(name: str) -> str:
    """Return the name of a type of request as columns have it."""
    return name.lower().replace(" ", "_")


def leaderboard(results: Results, models: Sequence[str], counted: Results | None = None) -> pd.DataFrame:
    """Return refusals of MOSSBench's harmless requests in %: a row for each model and convention.

    Columns: ``model``, ``convention``; each type and their plain mean ``average``, as on the leaderboard. ``n_…``
    counts judged cases, ``published_…`` are the leaderboard's cells, ``error_…`` absolute differences in points.

    Args:
        results: a results table whose arms are the models.
        models: in their order.
        counted: the same with rebuttals of questions for a judgement as refusals, for a third convention.
    """
    tables = {PUBLISHED_CONVENTION: (results, BY_AUTHORS), WITH_RESPONSE: (results, "")}
    if counted is not None:
        tables[NO_TO_A_QUESTION] = (counted, BY_AUTHORS)
    records = []
    for model, (convention, (source, rule)) in product(models, tables.items()):
        cells = {snake(name): source.get(model, "refusal_rate", subset="benign", group=f"type={name}", rule=rule)
                 for name in COLUMNS}  # fmt: skip
        printed = zip((*cells, "average"), mossbench_row(model) or [None] * 4, strict=True)
        record: dict[str, Any] = {"model": model, "convention": convention}
        record |= {name: cell and cell.value and 100 * cell.value for name, cell in cells.items()}
        record |= {f"n_{name}": int(cell.n or 0) if cell else 0 for name, cell in cells.items()}
        records.append(record | {f"published_{name}": rate for name, rate in printed})
    frame = pd.DataFrame(records)
    for name in map(snake, COLUMNS):
        frame[name] = frame[name].astype(float)
        frame[f"error_{name}"] = (frame[name] - frame[f"published_{name}"].astype(float)).abs()
    frame.insert(2 + len(COLUMNS), "average", frame[[*map(snake, COLUMNS)]].mean(axis=1, skipna=False))
    return frame
