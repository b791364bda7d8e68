"""A table of IconWorld's own cases, without tags and pairs, is told what IconWorld is told."""

import json
from pathlib import Path

import pytest

from experiments.runs.results_table import KEY, read_results
from tests.experiments.benchmarks.iconworld_table import scored, write_table
from tests.experiments.compose import run_of

PAIRS = 2  # of every sentence, plain and as many wrapped


def claimed(name: str, folder: Path, *options: str) -> dict[tuple[str, ...], str]:
    """Return the claims of what a study measured, by key."""
    run = run_of(f"+exp={name}", f"output_root={folder}", *options)
    run.task(run)
    (path,) = folder.glob(f"*/*/{name}.json")
    quantities = set(json.loads(path.read_text())["quantities"]) - {"called_unsafe"}  # the table does not name words
    return {row[KEY]: row.claim for row in read_results(path.parent).select(quantity=tuple(quantities))}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mechanism", "localise"])
def test_what_is_answered_and_claimed_is_the_same(tmp_path: Path, name: str) -> None:
    table = write_table(tmp_path / "table", scored(PAIRS))
    ours = claimed(name, tmp_path / "ours", f"benchmark.pairs={PAIRS}")
    theirs = claimed(name, tmp_path / "theirs", "benchmark=table", f"benchmark.path={table}")
    assert ours == theirs
