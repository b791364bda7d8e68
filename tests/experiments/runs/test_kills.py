"""Never lose a case: writers and whole studies killed at random moments end as undisturbed ones."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]


def job(name: str, *arguments: object) -> list[dict[str, Any]]:
    """The lines of JSON that a job prints; it runs apart, where forks are cheap and nothing else is at work."""
    command = [sys.executable, "-m", f"tests.experiments.{name}", *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr[-3000:] + ended.stdout
    return [json.loads(line) for line in ended.stdout.splitlines()]


@pytest.mark.long
def test_a_hundred_kills_of_a_writer_lose_and_double_nothing(tmp_path: Path) -> None:
    (said,) = job("writer_job", tmp_path, 100)
    assert said["killed"] == 100
    assert said["runs"] > 5  # so that kills fall anywhere, and not all into the first steps of one run
    assert said["wrong"] == []


def outcome(said: dict[str, Any]) -> tuple[bytes, str, dict[str, Any]]:
    """Predictions and metrics of a job's run, and what its report and environment rest on."""
    assert set(said["codes"]) == {0}
    (folder,) = map(Path, said["runs"])
    assert (folder / "report.html").stat().st_size > 1000
    assert json.loads((folder / ".hydra/identity.json").read_text())["finished"]
    assert not [path.name for path in folder.iterdir() if ".part" in path.name or path.name.endswith(".merged")]
    lines = sorted(path.name for path in folder.glob("*.jsonl"))
    assert lines == ["cost.jsonl", "development.jsonl", "predictions.jsonl"]
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["finished"]
    return (folder / "predictions.jsonl").read_bytes(), (folder / "metrics.json").read_text(), environment


@pytest.mark.slow
def test_killed_studies_end_as_an_undisturbed_one_whatever_the_number_of_processes(saved: Path, tmp_path: Path) -> None:
    """Five kills, three runs: continued by one process, by three, and by two after one."""
    whole, *others = map(outcome, [*job("study_job", saved, tmp_path, "1", "2", "2,2,1", "2,3", "1,3,2")])
    assert whole[0].count(b"\n") == 7 * 8
    for predictions, metrics, _ in others:
        assert predictions == whole[0]
        assert metrics == whole[1]
