"""Never lose a case: whole studies killed at random moments end as undisturbed ones (the store: ``test_store.py``)."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from experiments.runs.record_fields import read_records
from experiments.runs.results_table import Row, read_results
from tests.conftest import REPOSITORY


def job(name: str, *arguments: object) -> list[dict[str, Any]]:
    """The lines of JSON that a job prints; it runs apart, where forks are cheap and nothing else is at work."""
    command = [sys.executable, "-m", f"tests.experiments.{name}", *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr[-3000:] + ended.stdout
    return [json.loads(line) for line in ended.stdout.splitlines()]


def outcome(said: dict[str, Any]) -> tuple[list[dict[str, Any]], list[Row], str]:
    """Predictions, results and design of a job's run."""
    assert set(said["codes"]) == {0}
    (folder,) = map(Path, said["runs"])
    assert (folder / "report.html").stat().st_size > 1000
    assert json.loads((folder / ".hydra/identity.json").read_text())["finished"]
    assert not [path.name for path in folder.iterdir() if ".part" in path.name]
    names = {path.name.partition(".")[0] for path in folder.glob("*.jsonl")}
    assert names == {"development", "predictions"}
    assert json.loads((folder / "environment.json").read_text())["finished"]
    results = [row._replace(run="") for row in read_results(folder)]
    return read_records(folder), results, (folder / "metrics.json").read_text()


@pytest.mark.slow
def test_killed_studies_end_as_an_undisturbed_one_whatever_the_number_of_processes(saved: Path, tmp_path: Path) -> None:
    """Five kills, three runs: continued by one process, by three, and by two after one."""
    whole, *others = map(outcome, [*job("study_job", saved, tmp_path, "1", "2", "2,2,1", "2,3", "1,3,2")])
    assert len(whole[0]) == 7 * 8
    for predictions, results, design in others:
        assert predictions == whole[0]
        assert results == whole[1]
        assert design == whole[2]
