"""Conclude first: metrics and report as soon as the arms are answered; each analysis after it may fail alone."""

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from safetensors.torch import load_file

from experiments.config import Run
from experiments.report.sections import YET, missing_analyses
from experiments.runs.results_table import read_results
from experiments.runs.store import read_object
from tests.experiments.compose import ran, run_of
from tests.forked import typed

SIZES = ("limit=8", "draws=20", "batch_size=4", "max_new_tokens=2", "attention_cases=2", "method.beta=0.1")
LOOKED = ("attention.json", "attention/cases.json", "attention/cases.csv")


def options(saved: Path, outputs: Path, *more: str) -> tuple[str, ...]:
    return ("method=vcd", "attention=true", f"model.path={saved}", f"output_root={outputs}", *SIZES, *more)


def study_of(saved: Path, outputs: Path, *more: str) -> Run:
    return run_of(*options(saved, outputs, *more))


def only(outputs: Path) -> Path:
    (found,) = (outputs / "study").iterdir()
    return found


def is_finished(folder: Path) -> bool:
    return bool(read_object(folder / ".hydra/identity.json")["finished"])


def page(folder: Path) -> str:
    return (folder / "report.html").read_text(encoding="utf-8")


def looked(folder: Path) -> dict[str, Any]:
    """The files of the analysis of attention, tables, maps and figures included."""
    found = [*(folder / "attention").iterdir(), *(folder / "figures").iterdir(), folder / "attention.json"]
    return {str(path.relative_to(folder)): content(path) for path in sorted(found)}


def content(path: Path) -> Any:
    """The bytes; of safetensors the tensors, since the order of a header's remarks is chance."""
    if path.suffix != ".safetensors":
        return path.read_bytes()
    return {case: map_.tolist() for case, map_ in load_file(path).items()}


def assert_same_look(folder: Path, undisturbed: Path) -> None:
    here, there = looked(folder), looked(undisturbed)
    assert set(here) == set(there) >= set(LOOKED)
    assert here == there
    assert read_object(folder / "metrics.json") == read_object(undisturbed / "metrics.json")
    here_rows, there_rows = ([row[1:] for row in read_results(one)] for one in (folder, undisturbed))
    assert sorted(here_rows, key=str) == sorted(there_rows, key=str)  # all but the run's name


@pytest.fixture(scope="module")
def undisturbed(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = ran(study_of(saved, tmp_path_factory.mktemp("undisturbed")))
    assert is_finished(folder)
    assert "What is missing here" not in page(folder)
    return folder


@pytest.mark.long
def test_a_run_killed_before_its_analysis_is_analysed_by_the_task_and_by_the_same_command(
    saved: Path, tmp_path: Path, undisturbed: Path
) -> None:
    ended = typed("tests.experiments.analysis_job", *options(saved, tmp_path), COLUMNS="400", CUDA_VISIBLE_DEVICES="")
    assert ended.returncode == -9
    folder = only(tmp_path)
    assert "vcd" in ended.stdout  # the table of the arms was printed
    assert [sentence.partition(" yet")[0] for sentence in missing_analyses(folder)] == [
        "attention was not analysed", "the attention of single cases was not recorded",
    ]  # fmt: skip
    assert not (folder / "report.html").exists()  # task=report builds it, if anybody asks
    answered = (folder / "predictions.jsonl").read_bytes()
    assert not is_finished(folder)

    ran(study_of(saved, tmp_path, "task=attention", f"run={folder}"))  # looks at failures only: cases stay missing
    assert (folder / "attention.json").exists()
    assert missing_analyses(folder) == [f"the attention of single cases was not recorded {YET}"]
    assert not is_finished(folder)

    ran(study_of(saved, tmp_path))
    assert only(tmp_path) == folder
    assert (folder / "predictions.jsonl").read_bytes() == answered
    assert "What is missing here" not in page(folder)
    assert is_finished(folder)
    assert_same_look(folder, undisturbed)


@pytest.mark.long
def test_a_step_fails_alone_and_the_same_command_makes_up_for_it(
    saved: Path, tmp_path: Path, undisturbed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = study_of(saved, tmp_path)
    with monkeypatch.context() as patched:
        failing = Mock(side_effect=ZeroDivisionError("nothing to divide by"))
        patched.setattr("experiments.evaluation.attention_log.record_cases", failing)
        folder = ran(run)
    sentence = "the attention of single cases was not recorded: ZeroDivisionError: nothing to divide by (traceback: "
    assert sentence in page(folder)
    assert sentence in " ".join(capsys.readouterr().out.split())
    assert all((folder / name).exists() for name in ("attention.json", "figures/safety.svg"))
    assert len(list((folder / "tracebacks").iterdir())) == 1
    assert not is_finished(folder)
    run.task(run)
    assert only(tmp_path) == folder
    assert is_finished(folder)
    assert "What is missing here" not in page(folder)
    assert_same_look(folder, undisturbed)
