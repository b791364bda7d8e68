"""The files of a saved run, read and checked."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.benchmarks.rows import json_file
from experiments.report.thumbnails import thumbnail_name
from experiments.runs.record_fields import RECORD_KEYS, WAY_OUT, read_records
from experiments.runs.results_table import Results, read_results, rebuild
from interp.errors import UserError


@dataclass(frozen=True)
class SavedRun:
    """One run: results.csv, metrics.json (its design), environment.json and predictions.jsonl."""

    directory: Path
    results: Results
    metrics: Mapping[str, Any]
    environment: Mapping[str, Any]
    predictions: list[dict[str, Any]]

    def thumbnail(self, case_id: str) -> str | None:
        """The case's thumbnail as a data URI; None where there is none."""
        path = self.directory / "thumbnails" / thumbnail_name(case_id)
        if not path.is_file():
            return None
        return "data:image/jpeg;base64," + base64.b64encode(path.read_bytes()).decode("ascii")


def read_run(run_dir: Path) -> SavedRun:
    """Read and check a run's directory.

    Raises:
        UserError: the directory or one of its files is missing, not readable, or not of the expected shape.
    """
    if not run_dir.is_dir():
        raise UserError(f"{run_dir} is not a directory; a report is built from a run's directory; give one, "
                        "outputs/<name>/<time>")  # fmt: skip
    results = read_results(run_dir)
    metrics = json_file(run_dir / "metrics.json", dict, WAY_OUT)
    if absent := [key for key in ("kind", "study", "baseline", "rules", "notes") if key not in metrics]:
        raise UserError(
            f"{run_dir / 'metrics.json'} has no {absent[0]!r}; an earlier version made it. {rebuild(run_dir)}"
        )
    if not results.arms:
        raise UserError(f"{run_dir / 'results.csv'} has no arms; a report needs at least one; {WAY_OUT}")
    return SavedRun(
        directory=run_dir,
        results=results,
        metrics=metrics,
        environment=json_file(run_dir / "environment.json", dict, WAY_OUT),
        predictions=read_records(run_dir, RECORD_KEYS),
    )
