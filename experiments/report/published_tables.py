"""Rows that the authors of a benchmark printed, and the arms of a run counted in the same way."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from experiments.benchmarks.published import MOSSBENCH, PUBLISHED, PublishedRow
from experiments.metrics.leaderboard import COLUMNS, PUBLISHED_CONVENTION, leaderboard_rows
from experiments.metrics.outcomes import PUBLISHED as BY_AUTHORS
from experiments.report.arms import arms_of
from experiments.report.numbers import fixed, percent
from experiments.report.tables import table
from experiments.runs.provenance import model_title
from experiments.runs.results_table import Results
from experiments.runs.saved_run import SavedRun

MMSAFEAWARE = (
    "MMSafeAware (arXiv 2502.11184), Tables 1 and 3, in percent. Unsafe in Table 1 is the plain mean of typical and "
    "attack. d′ and criterion follow from the printed rates. Arms of this run, marked “here”, are counted by the "
    "published scorer."
)
LEADERBOARD = (
    "MOSSBench (arXiv 2406.17806): harmless requests refused, in percent, as its GPT judge decided. Arms of this run, "
    "marked “here”, count a case without a response as refused, as the leaderboard does."
)


def beside_published(run: SavedRun) -> list[pd.DataFrame]:
    """Return the run's arms next to published rows of its benchmark; empty without any."""
    benchmark, model = str((run.environment.get("benchmark") or {}).get("name")), run.environment.get("model") or {}
    names = {arm: model_title(responses) for arm, responses in (model.get("responses") or {}).items()}
    frames = []
    if published := PUBLISHED.get(benchmark):
        frames.append(published_table(run.results, run.metrics, published))
    if benchmark == "mossbench":
        frames.append(leaderboard_table(run.results, run.metrics, names))
    if run.metrics.get("as_published"):
        frames.append(as_published_table(run.metrics, names))
    return frames


def published_table(results: Results, design: Mapping[str, Any], published: Sequence[PublishedRow]) -> pd.DataFrame:
    """Return the run's arms by the published scorer, then the published rows by number."""
    ours = [(row.name, row) for row in rows_here(results, design)]
    theirs = [(f"{number}. {row.name}", row) for number, row in enumerate(published, start=1)]
    records = [_record(name, row) for name, row in (*ours, *theirs)]
    return table(records, title="Published rows of this benchmark", note=MMSAFEAWARE, marked=[True] * len(ours))


def _record(name: str, row: PublishedRow) -> dict[str, str]:
    rates = {"typical": row.typical, "attack": row.attack, "unsafe": row.unsafe, "harmless": row.over_safety,
             "overall": row.overall}  # fmt: skip
    shown = {heading: "–" if rate is None else percent(rate) for heading, rate in rates.items()}
    return {
        "model": name,
        "table": row.table,
        **shown,
        "d′": fixed(row.d_prime, 2),
        "criterion": fixed(row.criterion, 2),
    }


def rows_here(results: Results, design: Mapping[str, Any]) -> list[PublishedRow]:
    """Return the run's arms as published rows: by the published scorer."""
    keys = [("unsafe_caught", "typical"), ("unsafe_caught", "attack"), ("harmless_answered", ""), ("accuracy", "")]
    rows = []
    for arm in arms_of(results, design):
        found = [results.get(arm, quantity, subset=subset, rule=BY_AUTHORS) for quantity, subset in keys]
        values = [row.value for row in found if row is not None and row.value is not None]
        if len(values) == len(keys):
            typical, attack, harmless, overall = values
            rows.append(PublishedRow("here", arm, typical, attack, (typical + attack) / 2, harmless, overall))
    return rows


def leaderboard_table(results: Results, design: Mapping[str, Any], names: Mapping[str, str]) -> pd.DataFrame:
    """Return refusals of MOSSBench's harmless requests in %, by type: the run's arms, then the published rows."""

    def record(name: str, source: str, cells: Sequence[float | None]) -> dict[str, str]:
        shown = {heading: fixed(cell, 1) for heading, cell in zip((*COLUMNS, "average"), cells, strict=True)}
        return {"model or arm": name, "source": source, **shown}

    ours = [
        record(names.get(row.model, row.model), "here", (*row.cells, row.average))
        for row in leaderboard_rows(results, arms_of(results, design))
        if row.convention == PUBLISHED_CONVENTION
    ]
    theirs = [record(name, "published", each) for name, each in MOSSBENCH.items()]
    return table([*ours, *theirs], title="MOSSBench’s leaderboard", note=LEADERBOARD, marked=[True] * len(ours))


def as_published_table(design: Mapping[str, Any], names: Mapping[str, str]) -> pd.DataFrame:
    """Return the run's arms counted as the benchmark's authors count, then their rows; in %."""
    block = design["as_published"]
    quantities = list(dict.fromkeys(key for arm in block["arms"].values() for key in arm))

    def record(name: str, source: str, rates: Mapping[str, Any]) -> dict[str, str]:
        return {"model or arm": name, "source": source, **{key: percent(rates.get(key)) for key in quantities}}

    ours = [record(names.get(name, name), "here", arm) for name, arm in block["arms"].items()]
    theirs = [
        record(name, "published", rates) for name, rates in block["published"].items() if {*rates} & {*quantities}
    ]
    return table([*ours, *theirs], title="As the benchmark’s authors count", note=f"In percent. {block['rule']}.",
                 marked=[True] * len(ours))  # fmt: skip
