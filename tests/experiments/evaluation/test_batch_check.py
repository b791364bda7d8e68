"""Answers that depend on their batch are found by asking some cases alone."""

import json
from pathlib import Path

import pytest

from experiments.config import Run
from tests.experiments.compose import run_of
from tests.experiments.synthetic_run import said_of

BY_BATCH = """
def rule(scores, step):
    return scores - 3.0 * scores.mean(dim=0, keepdim=True)
"""
BY_ROW = """
def rule(scores, step):
    return scores - 3.0 * scores.mean(dim=1, keepdim=True)
"""


def own(saved: Path, folder: Path, code: str, *more: str) -> Run:
    (folder / "mine.py").write_text(code)
    return run_of(
        "method=file", f"method.path={folder}/mine.py", f"model.path={saved}", f"output_root={folder}/outputs",
        "limit=8", "batch_size=8", "max_new_tokens=3", "draws=20", *more,
    )  # fmt: skip


def checked(run: Run) -> tuple[dict[str, dict[str, int]], Path]:
    run.task(run)
    (folder,) = Path(run.output_root).glob("*/*")
    return json.loads((folder / "metrics.json").read_text()).get("batches", {}), folder


@pytest.mark.long
def test_a_rule_that_uses_statistics_of_its_batch_is_found(saved: Path, tmp_path: Path) -> None:
    found, folder = checked(own(saved, tmp_path, BY_BATCH))
    assert list(found) == ["mine"]
    assert found["mine"]["n"] == 8
    assert found["mine"]["answers"] > 0
    assert f"In batches of one, {found['mine']['answers']} of 8 answers of mine differ" in said_of(folder)


@pytest.mark.long
def test_a_rule_of_each_row_is_the_same_alone(saved: Path, tmp_path: Path) -> None:
    found, folder = checked(own(saved, tmp_path, BY_ROW))
    assert found == {"mine": {"n": 8, "answers": 0, "verdicts": 0}}
    assert "In batches of one" not in said_of(folder)
