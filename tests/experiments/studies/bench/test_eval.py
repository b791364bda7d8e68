"""The bench of a whole study, on few cases: what is measured, not how fast it was on this machine."""

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.studies.bench.eval import ARMS, STUDY, EvalBench, variants
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
        assert row["at most"] == (pytest.approx(1 / 3) if row["variant"] == STUDY else None)
    planned = {row["variant"]: row["planned MiB"] for row in metrics["planned"]}
    assert list(planned) == ALONE
    assert planned["vcd alone"] == 2 * planned["baseline alone"] > 0


@pytest.mark.long
def test_a_study_and_each_arm_alone_answer_as_the_loop(tmp_path: Path) -> None:
    run = run_of(f"output_root={tmp_path}", "max_new_tokens=2")
    (job,) = EvalBench(cases=[3]).jobs(run, "cpu")
    answers = {name: work() for name, work in job.make().items()}
    assert len(answers[PLAIN]) == 3 * len(ARMS)
    assert answers[STUDY] == answers[PLAIN]
    assert {key: text for name in ALONE for key, text in answers[name].items()} == answers[PLAIN]


@pytest.mark.gpu
@pytest.mark.parametrize("size", ["organism", "cpu"])
def test_on_a_gpu_the_peaks_are_recorded(size: str, tmp_path: Path) -> None:
    metrics = measured(tmp_path, "task.device=cuda", f"task.sizes=[{size}]")
    assert min(row["MiB"] for row in metrics["rows"]) > 0
    assert metrics["rows"][1]["at most"] == pytest.approx(1 / 8)


def test_a_large_model_gets_large_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    from experiments.studies.bench import eval as bench

    monkeypatch.setattr(bench, "model_of", lambda *_: None)
    for size, side in (("7b", 672), ("cpu", 48)):
        _, samples = bench.questions(size, 2, "cpu", 0)
        assert {sample.image.size for sample in samples} == {side}  # type: ignore[union-attr]
    assert variants is bench.variants
