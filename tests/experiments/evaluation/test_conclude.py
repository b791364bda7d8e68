"""Conclude first: metrics and report as soon as the arms are answered; each analysis after it may fail alone."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from experiments.config import Run
from experiments.evaluation import study
from experiments.evaluation.analyses import Analysis
from experiments.report.build import build
from experiments.report.sections import Section, write_section
from experiments.runs import analyses
from interp.errors import UserError
from tests.experiments.compose import run_of
from tests.forked import typed
from tests.weekly import weekly

REPOSITORY = Path(__file__).resolve().parents[3]
SIZES = ("limit=8", "draws=20", "batch_size=4", "max_new_tokens=2", "attention_cases=2", "method.beta=0.1")
LOOKED = ("attention.json", "attention/cases.json", "attention/masses.parquet", "attention/selftest.json")
UNSEEN = "attention was not analysed: "


def options(saved: Path, outputs: Path, *more: str) -> tuple[str, ...]:
    return ("method=vcd", "attention=true", f"model.path={saved}", f"output_root={outputs}", *SIZES, *more)


def study_of(saved: Path, outputs: Path, *more: str) -> Run:
    return run_of(*options(saved, outputs, *more))


def only(outputs: Path) -> Path:
    (found,) = (outputs / "study").iterdir()
    return found


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def is_finished(folder: Path) -> bool:
    return bool(read(folder / ".hydra/identity.json")["finished"])


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
    timed = "attention/selftest.json"  # the only file that holds a time
    assert {name for name in here if here[name] != there[name]} <= {timed}
    assert read(folder / "metrics.json") == read(undisturbed / "metrics.json")


def job(how: str, *overrides: str, processes: int = 1) -> subprocess.CompletedProcess[str]:
    """A whole command in a process of its own, or in several."""
    module, environment = "tests.experiments.analysis_job", {"COLUMNS": "400", "CUDA_VISIBLE_DEVICES": ""}
    if processes == 1:
        return typed(module, how, *overrides, **environment)
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes))
    command, environment = [sys.executable, *launcher, "-m", module, how, *overrides], os.environ | environment
    return subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=600)


@pytest.fixture(scope="module")
def undisturbed(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    outputs = tmp_path_factory.mktemp("undisturbed")
    run = study_of(saved, outputs)
    run.task(run)
    folder = only(outputs)
    assert is_finished(folder)
    assert "What is missing here" not in page(folder)
    return folder


@pytest.mark.slow  # in one process: test_each_step_fails_alone_and_the_same_command_makes_up_for_it
def test_an_analysis_that_raises_in_a_launch_is_a_sentence_and_is_finished_later(
    saved: Path, tmp_path: Path, undisturbed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two processes: rank 0 looks, fails and says so once; the other ends well."""
    ended = job("raise", *options(saved, tmp_path), processes=2)
    assert ended.returncode == 0, ended.stderr
    folder = only(tmp_path)
    sentence = (
        f"{UNSEEN}RuntimeError: Expected all tensors to be on the same device (traceback: tracebacks/attention.txt; "
        "the same command tries it again)"
    )
    assert sentence in ended.stdout
    assert ended.stdout.count(UNSEEN) == 1
    assert sentence in page(folder)
    assert "Traceback" not in ended.stdout + ended.stderr
    trace = (folder / "tracebacks" / "attention.txt").read_text()
    assert "second line of many" in trace
    assert "in broken" in trace
    assert read(folder / "metrics.json") == read(undisturbed / "metrics.json")
    assert read(folder / "attention" / "cases.json")["cases"]  # the next analysis came all the same
    assert read(folder / "environment.json")["finished"]
    assert not is_finished(folder)

    run = study_of(saved, tmp_path, "task=attention", f"run={folder}")
    run.task(run)
    assert UNSEEN not in page(folder)
    assert "attention: " in capsys.readouterr().out
    assert is_finished(folder)
    assert_same_look(folder, undisturbed)


@pytest.mark.long
def test_a_run_killed_before_its_analysis_is_analysed_by_the_task_and_by_the_same_command(
    saved: Path, tmp_path: Path, undisturbed: Path
) -> None:
    ended = job("kill", *options(saved, tmp_path))
    assert ended.returncode == -9
    folder = only(tmp_path)
    assert "vcd" in ended.stdout  # the table of the arms was printed
    assert [sentence.partition(" yet")[0] for sentence in analyses.missing(folder)] == [
        "attention was not analysed", "the attention of single cases was not recorded",
    ]  # fmt: skip
    assert not (folder / "report.html").exists()  # task=report builds it, if anybody asks
    answered = (folder / "predictions.jsonl").read_bytes()
    assert not is_finished(folder)

    other = study_of(saved, tmp_path, "task=attention", f"run={folder}")
    other.task(other)  # which looks at failures alone: the single cases stay missing
    assert (folder / "attention.json").exists()
    assert analyses.unfinished(folder) == ["attention_cases"]
    assert not is_finished(folder)

    run = study_of(saved, tmp_path)
    run.task(run)
    assert only(tmp_path) == folder
    assert (folder / "predictions.jsonl").read_bytes() == answered
    assert "What is missing here" not in page(folder)
    assert is_finished(folder)
    assert_same_look(folder, undisturbed)


def raising(error: BaseException | type[BaseException]) -> Callable[..., None]:
    def refuse(*_: object, **__: object) -> None:
        raise error

    return refuse


@pytest.mark.long
@pytest.mark.parametrize(
    ("broken", "missing", "kept"),
    [
        (
            "experiments.evaluation.attention_log.record_cases",
            "the attention of single cases was not recorded",
            ["attention.json", "figures/trade_off.svg"],
        ),
        weekly(
            "experiments.studies.attention.analysis.draw_case",
            "the figures of attention were not drawn",
            ["attention.json", "attention/cases.json", "figures/trade_off.svg"],
        ),
        weekly(
            "experiments.report.figures.auroc",
            "the figure auroc.svg was not drawn",
            ["attention.json", "attention/cases.json", "figures/trade_off.svg"],
        ),
    ],
)
def test_each_step_fails_alone_and_the_same_command_makes_up_for_it(
    saved: Path,
    tmp_path: Path,
    undisturbed: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    broken: str,
    missing: str,
    kept: list[str],
) -> None:
    run = study_of(saved, tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(broken, raising(ZeroDivisionError("nothing to divide by")))
        run.task(run)
    folder = only(tmp_path)
    sentence = f"{missing}: ZeroDivisionError: nothing to divide by (traceback: tracebacks/"
    assert sentence in page(folder)
    assert sentence in " ".join(capsys.readouterr().out.split())
    assert all((folder / name).exists() for name in kept)
    assert len(list((folder / "tracebacks").iterdir())) == 1
    assert not is_finished(folder)
    run.task(run)
    assert only(tmp_path) == folder
    assert is_finished(folder)
    assert "What is missing here" not in page(folder)
    assert_same_look(folder, undisturbed)


@pytest.mark.long
def test_what_is_done_is_not_done_again(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = study_of(saved, tmp_path, "verbose=true")
    with monkeypatch.context() as patched:
        patched.setattr("experiments.evaluation.attention_log.record_cases", raising(RuntimeError("no")))
        run.task(run)
    sentences = read(only(tmp_path) / "attention.json")["sentences"]
    capsys.readouterr()
    with monkeypatch.context() as patched:
        patched.setattr("experiments.studies.attention.analysis.analyse_failures", raising(AssertionError("again")))
        run.task(run)
    assert is_finished(only(tmp_path))
    assert "".join(sentences[0].split()) in "".join(capsys.readouterr().out.split())


@pytest.mark.slow  # of one: test_each_step_fails_alone_and_the_same_command_makes_up_for_it
def test_any_exception_of_an_added_step_stays_there(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    errors = {
        "memory": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        "host": MemoryError(),
        "disk": OSError(28, "No space left on device"),
        "user": UserError("no room"),
        "assertion": AssertionError(),
    }

    def last(work: study.Study) -> Iterable[str]:
        (work.store.path / "last.txt").write_text("here")
        return ["the last was done"]

    failing = [Analysis(name, f"{name} was not done", raising(error)) for name, error in errors.items()]  # type: ignore[arg-type]
    run = study_of(saved, tmp_path, "attention=false", "limit=4")
    folder = study.run(run, after=[*failing, Analysis("last", "the last was not done", last)])
    said = " ".join(capsys.readouterr().out.split())
    for name in errors:
        assert f"{name} was not done: " in said
        assert f"{name} was not done: " in page(folder)
    assert "the last was done" in said
    assert (folder / "last.txt").exists()
    assert analyses.unfinished(folder) == [*errors]
    assert not is_finished(folder)


@pytest.mark.long
@pytest.mark.parametrize("stopped", [False, True])
def test_the_report_is_built_once_after_all_analyses(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped: bool
) -> None:
    """Also where Ctrl-C ends the last one."""
    pages: list[str] = []

    def built(folder: Path) -> Path:
        pages.append(build(folder).read_text(encoding="utf-8"))
        return folder / "report.html"

    def first(work: study.Study) -> Iterable[str]:
        write_section(work.store.path, "first", Section("First", ["the first was done"]), {})
        return ["said"]

    monkeypatch.setattr("experiments.evaluation.analyses.build", built)
    monkeypatch.setattr("experiments.evaluation.study.build", built)
    run = study_of(saved, tmp_path, "attention=false", "limit=4")
    last = raising(KeyboardInterrupt) if stopped else lambda work: []
    after = [Analysis("first", "no first", first, settings=""), Analysis("last", "no last", last, settings="")]  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt) if stopped else nullcontext():
        study.run(run, after=after)
    (only_page,) = pages
    assert "the first was done" in only_page
    assert ("no last yet" in only_page) == stopped


@pytest.mark.long
def test_where_an_analysis_fails_the_report_is_built_at_once(saved: Path, tmp_path: Path) -> None:
    """A kill in the next one leaves it."""

    def killed(work: study.Study) -> Iterable[str]:
        assert "the first was not done: ZeroDivisionError" in page(work.store.path)
        return []

    after = [Analysis("first", "the first was not done", raising(ZeroDivisionError())),  # type: ignore[arg-type]
             Analysis("second", "the second was not done", killed)]  # fmt: skip
    folder = study.run(study_of(saved, tmp_path, "attention=false", "limit=4"), after=after)
    assert analyses.unfinished(folder) == ["first"]


@pytest.mark.long
def test_where_not_even_the_failure_can_be_written_the_terminal_says_it(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As on a full disk: the run ends with that sentence, and is unfinished."""

    def fills(work: study.Study) -> Iterable[str]:
        monkeypatch.setattr("experiments.runs.analyses.write_json", raising(UserError("cannot write")))
        monkeypatch.setattr("experiments.report.build._write", raising(UserError("cannot write the report")))
        (work.store.path / "tracebacks").write_text("in the way")
        raise OSError(28, "No space left on device")

    run = study_of(saved, tmp_path, "attention=false", "limit=4")
    with pytest.raises(UserError, match="cannot write the report"):
        study.run(run, after=[Analysis("first", "the first was not done", fills)])
    folder = only(tmp_path)
    said = " ".join(capsys.readouterr().out.split())
    assert "the first was not done: OSError: [Errno 28] No space left on device (its traceback could not be" in said
    assert read(folder / "metrics.json")["arms"]
    assert not is_finished(folder)


@pytest.mark.long
@pytest.mark.parametrize(
    ("overrides", "broken", "missing"),
    [
        weekly(
            ("+exp=mechanism", "task.failures=2"),
            "experiments.studies.mechanism.examination.Examination",
            "the mechanism was not examined",
        ),
        (
            ("task=attention", "task.figures=0"),
            "experiments.studies.attention.analysis.analyse_failures",
            "attention was not analysed",
        ),
        weekly(
            ("task=direction_ablation",),
            "experiments.studies.direction_ablation.evaluate",
            "the ablations were not compared",
        ),
    ],
)
def test_every_study_concludes_before_its_own_analysis(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    overrides: tuple[str, ...],
    broken: str,
    missing: str,
) -> None:
    run = run_of(*overrides, "limit=24", "draws=20", "max_new_tokens=4", f"output_root={tmp_path}")
    monkeypatch.setattr(broken, raising(RuntimeError("two devices")))
    run.task(run)
    (folder,) = tmp_path.glob("*/*/")
    sentence = f"{missing}: RuntimeError: two devices (traceback: tracebacks/"
    assert sentence in " ".join(capsys.readouterr().out.split())
    assert read(folder / "metrics.json")["arms"]
    assert sentence in page(folder)
    assert "two devices" in next((folder / "tracebacks").iterdir()).read_text()
    assert not is_finished(folder)
