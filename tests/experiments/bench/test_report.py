"""The report's benchmark at a small size; its numbers are printed, never asserted."""

import json
from pathlib import Path

import pytest

from interp.errors import UserError
from tests.experiments.compose import run_of


def test_it_measures_a_made_up_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.bench.report.BROWSERS", ())
    monkeypatch.delenv("CHROMIUM", raising=False)
    sizes = ("task.cases=30", "task.arms=3", "task.attended=4", "task.layers=2")
    run = run_of("task=bench_report", f"output_root={tmp_path}", *sizes)
    run.task(run)
    (folder,) = (tmp_path / "bench_report").iterdir()
    (row,) = json.loads((folder / "metrics.json").read_text())["rows"]
    assert row["cases"] == 30
    assert row["mb"] == (folder / "made_up" / "report.html").stat().st_size / 1e6


@pytest.mark.parametrize("override", ["task.cases=0", "task.attended=-1", "task.attended=9999"])
def test_sizes_out_of_range_are_refused(override: str) -> None:
    with pytest.raises(UserError, match=override.partition("=")[0]):
        run_of("task=bench_report", override)
