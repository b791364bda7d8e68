"""The bench of a whole study, on few cases: what is measured, not how fast it was on this machine."""

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.studies.bench.eval import ARMS, STUDY, EvalBench
from experiments.studies.bench.harness import PLAIN
from tests.experiments.compose import only_run, run_of

ALONE = [f"{name} alone" for name in ARMS]


def measured(folder: Path, *overrides: str) -> dict[str, Any]:
    small = ("task.cases=[3]", "task.repeats=1", "max_new_tokens=2")
    run = run_of("task=bench_eval", f"output_root={folder}", *small, *overrides)
    run.task(run)
    return json.loads((only_run(run) / "metrics.json").read_text())


@pytest.mark.slow  # the whole bench
def test_every_way_to_ask_has_a_time_a_peak_and_the_plan_s_estimate(tmp_path: Path) -> None:
    metrics = measured(tmp_path)
    assert [row["variant"] for row in metrics["rows"]] == [PLAIN, STUDY, *ALONE]
    (seconds,) = metrics["rounds"]["organism, 3 cases"]
    for row in metrics["rows"]:
        assert row["times plain"] == pytest.approx(seconds[row["variant"]] / seconds[PLAIN])
        assert row["MiB"] > 0
        assert row["at most"] == (pytest.approx(1 / 3) if row["variant"] == STUDY else None)
    planned = [row["planned MiB"] for row in metrics["planned"]]
    assert planned[1] == 2 * planned[0] > 0


@pytest.mark.long
def test_a_study_and_each_arm_alone_answer_as_the_loop(tmp_path: Path) -> None:
    run = run_of(f"output_root={tmp_path}", "max_new_tokens=2")
    (job,) = EvalBench(cases=[3]).jobs(run, "cpu")
    answers = {name: work() for name, work in job.make().items()}
    assert len(answers[PLAIN]) == 3 * len(ARMS)
    assert answers[STUDY] == answers[PLAIN]
    assert {key: text for name in ALONE for key, text in answers[name].items()} == answers[PLAIN]
