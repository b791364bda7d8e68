"""One command trains an adapter, saves it with its card, and judges it on the same cases as the baseline."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from experiments.benchmarks.iconworld.traces import Traces
from experiments.config import Run
from experiments.evaluation import study
from experiments.report.tables import percent
from experiments.runs.results_table import read_results
from experiments.runs.store import RunStore
from experiments.studies.vrtuning.sources import build_data
from experiments.studies.vrtuning.study import PERCEPTION, VRTuningStudy
from tests.experiments.compose import lines, only_run, ran, run_of

SMALL = ("limit=3", "draws=20", "batch_size=6", "task.settings.steps=2", "task.settings.batch_size=4",
         "task.data.cases=12")  # fmt: skip
WITH_VCD = "+method@arms.with_vcd=new_adapter_vcd"


def small(outputs: Path, *overrides: str) -> Run:
    return run_of("+exp=vrtuning_llava", f"output_root={outputs}", *SMALL, *overrides)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ran(small(tmp_path_factory.mktemp("vrtuning"), WITH_VCD))


@pytest.mark.long
def test_one_command_leaves_adapter_card_tables_and_study(finished: Path) -> None:
    for name in ("metrics.json", "report.html", "results.csv", "sections/vrtuning.json", "training.jsonl"):
        assert (finished / name).is_file(), name
    adapter = finished / "adapters" / "vrtuning" / "adapter"
    assert (adapter / "adapter_model.safetensors").is_file()
    arms = {entry.arm for entry in read_results(finished).select(quantity="answered")}
    assert arms == {"baseline", "vrtuning", "with_vcd", "calibrated_shift"}
    assert json.loads((finished / "metrics.json").read_text())["study"] == "vrtuning"


def test_the_table_says_what_each_arm_was_trained_on(finished: Path) -> None:
    section, results = json.loads((finished / "sections" / "vrtuning.json").read_text()), read_results(finished)
    (table,) = section["tables"]
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
    lines_of = {line["arm"]: line for line in rows}
    for name in ("baseline", "vrtuning", "with_vcd"):
        adapter = "vrtuning" if name == "with_vcd" else name
        captions = results.get(adapter, PERCEPTION, group="kind=caption")
        assert lines_of[name]["captions"].startswith(percent(captions.value))
    assert list(lines_of) == ["baseline", "vrtuning", "calibrated_shift", "with_vcd"]
    assert [lines_of[name]["reasoning"] for name in lines_of] == ["–", "reasoning", "–", "reasoning"]
    assert len(section["sentences"]) == 1
    (record,) = lines(finished, "training.jsonl")
    assert record["content"] == "reasoning"
    assert set(record["examples"]) == {"verdict", "perception"}


@pytest.mark.long
def test_a_saved_adapter_is_evaluated_by_any_study_and_answers_as_in_its_run(finished: Path, tmp_path: Path) -> None:
    before = {r["case"]: r for r in lines(finished) if r["arm"] == "vrtuning"}
    run = run_of("method=vrtuning", f"method.adapter={finished / 'adapters' / 'vrtuning'}", "limit=3", "draws=20",
                 "max_new_tokens=48", f"output_root={tmp_path}")  # fmt: skip
    method: Any = run.arms["vrtuning"]
    run = replace(run, arms=run.arms | {"vrtuning": replace(method, answer="first")})
    after = {r["case"]: r for r in lines(study.run(run)) if r["arm"] == "vrtuning"}
    assert {case: r["response"] for case, r in after.items()} == {case: r["response"] for case, r in before.items()}
    margins = [[r[case]["margin"] for case in after] for r in (before, after)]
    assert margins[0] == pytest.approx(margins[1], abs=1e-5)


@pytest.mark.long
def test_a_run_killed_in_training_goes_on_in_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mitigation.vrtuning import train

    killed = Mock(side_effect=KeyboardInterrupt)
    options = ("task.settings.steps=3", "task.settings.save_steps=1", "task.perception=0")
    with monkeypatch.context() as patched:
        log = train.Marker.on_log
        patched.setattr(train.Marker, "on_log", lambda self, args, state, control, logs=None, **more: (
            killed() if state.global_step == 2 else log(self, args, state, control, logs=logs, **more)
        ))  # fmt: skip
        run = small(tmp_path, *options)
        with pytest.raises(KeyboardInterrupt):
            run.task(run)
    folder = only_run(run)
    assert not (folder / "adapters" / "vrtuning" / "adapter").exists()
    monkeypatch.setattr(study, "run", killed)
    with pytest.raises(KeyboardInterrupt):
        run.task(run)
    monkeypatch.undo()
    run.task(run)
    assert only_run(run) == folder
    assert len(json.loads((folder / "adapters/vrtuning/training.json").read_text())["losses"]) == 3
    assert len(lines(folder, "training.jsonl")) == 1
    assert (folder / "report.html").is_file()


@pytest.mark.long
def test_only_the_same_training_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(_: VRTuningStudy, __: Run, store: RunStore, *___: object) -> None:
        store.append([{"adapter": "vrtuning"}], "training.jsonl")
        raise KeyboardInterrupt

    monkeypatch.setattr(VRTuningStudy, "_train_all", killed)
    longer = "task.settings.steps=5"
    for change in (longer, "task.data.replay=0.1", "+task.adapters.more=no_reasoning", longer):
        run = small(tmp_path, change)
        with pytest.raises(KeyboardInterrupt):
            run.task(run)
    assert len(list((tmp_path / "vrtuning_llava").iterdir())) == 3


def test_preferences_reject_the_opposite_verdict_and_another_answer_about_the_picture() -> None:
    data = build_data(Traces(cases=40), "reasoning", "last", preferences=True)
    for row in data.dataset:
        chosen, rejected = (row[name][0]["content"] for name in ("chosen", "rejected"))
        assert chosen != rejected
        if row["kind"] == "verdict":
            assert {chosen.split()[-1], rejected.split()[-1]} == {"Yes.", "No."}
        assert rejected
    kinds = list(data.dataset["kind"])
    assert kinds.count("verdict") == 40  # none of them skipped
    assert "perception" in kinds
    assert all("rejected verdict is the chosen one" in skipped.reason for skipped in data.skipped)
