"""What is served by name, and how what has learned is read from a finished run."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from experiments.serving.methods import check_model, served
from experiments.serving.server import bound
from interp.errors import UserError
from interp.vlm import VLM
from mitigation.threshold import ConstantShift
from tests.conftest import REPOSITORY
from tests.experiments.compose import run_of


def test_the_method_under_study_is_first_and_the_plain_model_last() -> None:
    found = served(run_of("task=serve", "method=prompt", "+method@arms.v=vcd", "model=llava_1_5_7b"))
    assert list(found) == ["llava_1_5_7b+prompt", "llava_1_5_7b+v", "llava_1_5_7b"]
    assert list(served(run_of("task=serve", "method=baseline"))) == ["llava_organism"]


def saved_run(folder: Path, arm: str, settings: Any, **more: Any) -> str:
    environment = {"finished": "now", "config": {"arms": {arm: settings}}, "arm_under_study": arm} | more
    (folder / "environment.json").write_text(json.dumps(environment))
    return f"run={folder}"


@pytest.mark.long
def test_what_learns_is_read_from_a_run_with_the_same_settings(tmp_path: Path) -> None:
    run = run_of("task=serve", "method=steering", "method.strength=2")
    with pytest.raises(UserError, match="has no finished run"):
        served(run_of("task=serve", "method=steering", f"run={tmp_path}"))
    settings = run.config["arms"]["steering"]
    given = saved_run(tmp_path, "steering", settings)
    with pytest.raises(UserError, match="has no saved file"):
        served(run_of("task=serve", "method=steering", "method.strength=2", given))
    with pytest.raises(UserError, match=r"has steering with strength=2, and strength=1.0 is asked for"):
        served(run_of("task=serve", "method=steering", given))
    with pytest.raises(UserError, match="has no arm readout"):
        served(run_of("task=serve", "method=readout", given))
    (tmp_path / "learned").mkdir()
    (tmp_path / "learned" / "steering-without-fold-0.safetensors").touch()
    with pytest.raises(UserError, match="was learned in folds"):
        served(run_of("task=serve", "method=steering", "method.strength=2", given))


@pytest.mark.long
def test_a_fitted_control_is_fitted_again_on_the_runs_development_split(tmp_path: Path) -> None:
    run = run_of("task=serve", "method=calibrated_shift")
    given = saved_run(tmp_path, "calibrated_shift", run.config["arms"]["calibrated_shift"])
    with pytest.raises(UserError, match="was fitted in folds"):
        served(run_of("task=serve", "method=calibrated_shift", given))
    lines = [
        {"case": str(i), "arm": "baseline", "subset": "typical", "gold": gold, "margin": margin, "verdict": "no"}
        for i, (gold, margin) in enumerate([("no", -4.0), ("no", -3.0), ("yes", -1.0), ("yes", 0.0)])
    ]
    (tmp_path / "development.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = served(run_of("task=serve", "method=calibrated_shift", given))
    assert found["llava_organism+calibrated_shift"] == ConstantShift(2.0)


@pytest.mark.long
def test_what_was_learned_on_other_weights_is_refused(tmp_path: Path, vlm: VLM) -> None:
    model = {"name": "other", "revision": "sha256:1"}
    given = saved_run(tmp_path, "steering", {}, model=model)
    with pytest.raises(UserError, match=r"in its weights \(sha256:1, here .*a learned method belongs to its model"):
        check_model(run_of("task=serve", "method=steering", given), vlm)
    model |= {"revision": vlm.revision, "preprocessing": f"sha256:2@{vlm.preprocessing.partition('@')[2]}"}
    given = saved_run(tmp_path, "steering", {}, model=model)
    with pytest.raises(UserError, match=r"in its configuration, processor, chat template or tokenizer \(sha256:2"):
        check_model(run_of("task=serve", "method=steering", given), vlm)
    check_model(run_of("task=serve", "method=vcd", given), vlm)


@pytest.mark.long
def test_what_cannot_be_served_is_refused_before_weights_load(no_weights: None, tmp_path: Path) -> None:
    file = tmp_path / "answers.csv"
    file.write_text("id,response\n1,No\n")
    run = run_of("task=serve", "method=vcd", "+method@arms.web=responses", f"arms.web.path={file}")
    with pytest.raises(UserError, match="has responses made elsewhere"):
        run.task(run)
    run = run_of("task=serve", "method=vcd", "task.host=256.0.0.1", "task.key_env=HOME")
    with pytest.raises(UserError, match=r"cannot serve at 256\.0\.0\.1:8000"):
        run.task(run)
    with bound("127.0.0.1", 0) as listener:
        listener.listen()
        run = run_of("task=serve", "method=vcd", f"task.port={listener.getsockname()[1]}")
        with pytest.raises(UserError, match="Address already in use"):
            run.task(run)


@pytest.mark.long
def test_the_task_loads_no_torch_and_no_web_framework() -> None:
    heavy = "{'torch', 'transformers', 'starlette', 'pydantic'}"
    code = f"import sys, experiments.serving.task; print({heavy} & set(sys.modules))"
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout == "set()\n"
