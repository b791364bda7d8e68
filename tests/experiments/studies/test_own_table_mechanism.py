"""A table of IconWorld's own cases, without tags and pairs, is told what IconWorld is told."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.experiments.benchmarks.iconworld_table import scored, write_table
from tests.experiments.compose import run_of

PAIRS = 2  # of every sentence, plain and as many wrapped


def told(name: str, folder: Path, *options: str) -> dict[str, Any]:
    run = run_of(f"+exp={name}", f"output_root={folder}", *options)
    run.task(run)
    (path,) = folder.glob(f"*/*/{name}.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mechanism", "localise"])
def test_what_is_answered_and_claimed_is_the_same(tmp_path: Path, name: str) -> None:
    table = write_table(tmp_path / "table", scored(PAIRS))
    ours = told(name, tmp_path / "ours", f"benchmark.pairs={PAIRS}")
    theirs = told(name, tmp_path / "theirs", "benchmark=table", f"benchmark.path={table}")
    assert ours["conclusions"] == theirs["conclusions"]
