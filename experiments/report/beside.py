"""Published rows, and a run's own in the same counting, to stand beside each other."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from experiments.benchmarks.published import MOSSBENCH, PUBLISHED, PublishedRow
from experiments.metrics.refusal.leaderboard import COLUMNS, CONVENTIONS, leaderboard_rows
from experiments.report.numbers import MISSING
from experiments.report.yes_no import ACCURACIES
from experiments.runs.saved import SavedRun


class Leaderboard(NamedTuple):
    """Refusals of MOSSBench's benign requests in %, by type: (name, "here" or "published", cells by ``headings``)."""

    headings: list[str]
    rows: list[tuple[str, str, list[str]]]


def published_rows(run: SavedRun) -> Sequence[PublishedRow]:
    """The published rows of the run's benchmark; empty where there are none to compare with."""
    return PUBLISHED.get(str((run.environment.get("benchmark") or {}).get("name")), ())


def own_rows(metrics: Mapping[str, Any]) -> list[PublishedRow]:
    """The run's arms as rows to stand beside the published ones: by the published scorer, as those are."""
    rows = []
    for name, arm in metrics["arms"].items():
        found = (arm.get("published") or {}).get("accuracy") or {}
        known = [float(found[key]) for key in ACCURACIES if found.get(key) is not None]
        if len(known) == len(ACCURACIES):
            typical, attack, over_safety, overall = known
            rows.append(PublishedRow("here", name, typical, attack, (typical + attack) / 2, over_safety, overall))
    return rows


def mossbench_leaderboard(run: SavedRun) -> Leaderboard | None:
    """None for a run of another benchmark."""
    if (run.environment.get("benchmark") or {}).get("name") != "mossbench":
        return None
    own = [row for row in leaderboard_rows(run.metrics) if row.convention == CONVENTIONS[0]]
    shown = [(row.model, "here", [*row.cells, row.average]) for row in own]
    shown += [(name, "published", list(cells)) for name, cells in MOSSBENCH.items()]
    return Leaderboard(
        [*COLUMNS, "average"],
        [(name, of, [MISSING if cell is None else f"{cell:.1f}" for cell in cells]) for name, of, cells in shown],
    )
