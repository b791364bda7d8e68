"""Answers that depend on their batch are found by asking some cases alone."""

from pathlib import Path

import pytest

from experiments.runs.store import read_object
from tests.experiments.compose import ran
from tests.experiments.evaluation.test_faulty_method import own
from tests.experiments.synthetic_run import said_of

RULE = "def rule(scores, step):\n    return scores - 3.0 * scores.mean(dim={}, keepdim=True)\n"
SIZES = ("limit=8", "batch_size=8", "max_new_tokens=3")


@pytest.mark.long
def test_a_rule_that_uses_statistics_of_its_batch_is_found(saved: Path, tmp_path: Path) -> None:
    folder = ran(own(saved, tmp_path, RULE.format(0), *SIZES))
    found = read_object(folder / "metrics.json")["batches"]
    assert list(found) == ["mine"]
    assert found["mine"]["n"] == 8
    assert found["mine"]["answers"] > 0
    assert f"In batches of one, {found['mine']['answers']} of 8 answers of mine differ" in said_of(folder)


@pytest.mark.long
def test_a_rule_of_each_row_is_the_same_alone(saved: Path, tmp_path: Path) -> None:
    folder = ran(own(saved, tmp_path, RULE.format(1), *SIZES))
    assert read_object(folder / "metrics.json")["batches"] == {"mine": {"n": 8, "answers": 0, "verdicts": 0}}
    assert "In batches of one" not in said_of(folder)
