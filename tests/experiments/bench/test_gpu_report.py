"""``task=gpu_report`` on made-up steps and small models: a step that fails, overruns or is not begun is a line too."""

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psutil
import pytest
import torch

from experiments.bench import gpu_report, gpu_steps
from experiments.bench.attention import AttentionBench
from experiments.bench.eval import EvalBench
from experiments.bench.gpu_report import BEGUN, GpuReport, Outcome, Reading, Step, recorded
from experiments.bench.gpu_steps import Place
from experiments.bench.vcd import VcdBench
from interp.errors import UserError
from tests.conftest import REPOSITORY
from tests.experiments.compose import run_of

PAGE = REPOSITORY / "docs" / "gpu.md"
SLEEP = "import time; time.sleep(60)"
SLOW = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEP!r}]); {SLEEP}"
GOOD = [Reading("a | b", "1.05 ×", "≤ 1.10 ×", met=True), Reading("c", "2 ×", "≤ 1 ×", met=False), Reading("d", "3 s")]
CODE = {
    "good": f"import sys; open(sys.argv[1], 'w').write({json.dumps(GOOD)!r})",
    "bad": "import sys; sys.exit('no memory')",
    "slow": SLOW,
    "long": "pass",
}
STEPS = (Step("good", 20), Step("bad", 20), Step("slow", 2), Step("long", 200))


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., str]:
    """Runs the task with made-up steps, and returns the page."""
    monkeypatch.setattr(gpu_report, "STEPS", STEPS)
    monkeypatch.setattr(gpu_report, "PARTS", tuple(CODE))
    monkeypatch.setattr(
        gpu_report, "command", lambda step, size, device, out: [sys.executable, "-c", CODE[step.part], str(out)]
    )
    page = tmp_path / "gpu.md"
    page.write_text("# On a GPU\n\nBring this.\n\n## Measured\n\nold numbers\n")

    def write(*overrides: str, fails: str = "") -> str:
        options = (
            "task.size=tiny",
            "task.device=cpu",
            "task.seconds=100",
            f"task.page={page}",
            f"output_root={tmp_path}",
        )
        run = run_of("task=gpu_report", *options, *overrides)
        with pytest.raises(UserError, match=f"no numbers from {fails};") if fails else nullcontext():
            run.task(run)
        return page.read_text(encoding="utf-8")

    return write


@pytest.mark.long
def test_the_page_says_what_was_measured_what_failed_and_what_overran(
    made_up: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = made_up(fails="bad, slow")
    assert text.startswith("# On a GPU\n\nBring this.\n\n## Measured\n")
    assert "old numbers" not in text
    assert "Numbers with a bound: 2; bound met: 1; not met: 1." in text
    assert "| good | a \\| b | 1.05 × | ≤ 1.10 × | yes |" in text
    assert "| good | c | 2 × | ≤ 1 × | **no** |" in text
    assert "| good | d | 3 s | – | – |" in text
    assert "| bad | – | failed: no memory (bad.log) | – | – |" in text
    assert "| slow | – | ended after 2 s (slow.log) | – | – |" in text
    assert "Not run yet: long." in text
    assert f"torch: {torch.__version__}" in text
    assert "long: not begun, " in capsys.readouterr().out
    assert [outcome.step for outcome in recorded(tmp_path / "gpu_report.jsonl")] == ["good", "bad", "slow"]


@pytest.mark.long
def test_the_same_command_goes_on_with_what_has_no_numbers_the_failed_last(
    made_up: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_up("task.only=[good,bad]", fails="bad")
    monkeypatch.setitem(CODE, "bad", CODE["good"])
    monkeypatch.setitem(CODE, "good", CODE["slow"])  # would overrun, were it run again
    text = made_up("task.seconds=90", fails="slow")
    assert "| bad | d | 3 s | – | – |" in text
    assert "failed: no memory" not in text
    lines = map(json.loads, (tmp_path / "gpu_report.jsonl").read_text().split("\n\n"))
    assert [line["step"] for line in lines if line["why_not"] != BEGUN] == ["good", "bad", "slow", "bad"]


def killed_in(made_up: Callable[..., str], monkeypatch: pytest.MonkeyPatch, *overrides: str) -> None:
    """Runs the task as far as its first step, in which it is killed."""
    with monkeypatch.context() as patched:
        patched.setattr(gpu_report, "performed", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            made_up(*overrides)


def test_a_killed_call_leaves_a_record_that_the_next_one_goes_on_with(
    made_up: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_up("task.only=[good]")
    killed_in(made_up, monkeypatch, "task.only=[good,bad]")  # while good is measured again
    record = tmp_path / "gpu_report.jsonl"
    record.write_bytes(record.read_bytes() + b'{"step": "slow", "seco')
    found = recorded(record)
    assert [(outcome.step, outcome.why_not) for outcome in found] == [("good", "")]
    gpu_report.appended(record, Outcome("long", why_not=BEGUN))
    assert [outcome.step for outcome in recorded(record)] == ["good", "long"]
    monkeypatch.setitem(CODE, "bad", CODE["good"])
    assert "| bad | d | 3 s |" in made_up("task.only=[bad]")
    assert [outcome.step for outcome in recorded(record)] == ["good", "bad", "long"]


def test_what_a_call_was_killed_in_comes_after_what_was_not_tried(
    made_up: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_in(made_up, monkeypatch, "task.only=[bad]")
    found = recorded(tmp_path / "gpu_report.jsonl")
    assert [(outcome.step, outcome.why_not) for outcome in found] == [("bad", BEGUN)]
    assert [step.name for step in GpuReport().wanted(found)] == ["good", "slow", "long", "bad"]
    assert f"| bad | – | {BEGUN} |" in made_up("task.only=[]")


def test_no_part_writes_the_page_alone(made_up: Callable[..., str]) -> None:
    made_up("task.only=[good]")
    assert "| good | d | 3 s |" in made_up("task.only=[]", "task.device=cuda")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_what_it_needs_and_leaves_the_page(tmp_path: Path) -> None:
    before = PAGE.read_text(encoding="utf-8")
    run = run_of("task=gpu_report", f"output_root={tmp_path}")
    with pytest.raises(
        UserError, match=r"needs a CUDA device \(80 GB for all of it\), .* sees none here; run it where"
    ):
        run.task(run)
    assert PAGE.read_text(encoding="utf-8") == before
    assert list(tmp_path.iterdir()) == []


def test_every_step_can_be_measured_in_one_call_of_nine_minutes() -> None:
    assert set(gpu_report.PARTS) == set(gpu_steps.MEASURES)
    assert max(step.limit for step in gpu_report.STEPS) < GpuReport().seconds <= 540


@pytest.mark.parametrize(
    ("part", "shape"),
    [("attention", "7b"), ("vcd", "7b_qwen"), ("eval", "7b"), ("sharing", "7b"), ("attention", "tiny")],
)
def test_its_commands_compose(part: str, shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def asked(task: Any, *_: Any) -> Any:
        seen.append(task)
        raise UserError("that is all")

    for kind in (AttentionBench, VcdBench, EvalBench):
        monkeypatch.setattr(kind, "measure", asked)
    place = Place(shape, "cpu" if shape == "tiny" else "cuda", 90, tmp_path)
    with pytest.raises(UserError, match="that is all"):
        gpu_steps.MEASURES[part](place)
    assert len(seen) == 1


def test_a_page_nobody_ran_has_no_numbers() -> None:
    measured = PAGE.read_text(encoding="utf-8").partition("## Measured")[2]
    if "Numbers with a bound" not in measured:
        assert "Nothing has been run yet" in measured
        assert "|" not in measured


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("task.size=huge", "task.size='huge': known are 7b and tiny"),
        ("task.seconds=0", "task.seconds=0"),
        ("task.device=cpu", "task.device='cpu' with task.size=7b"),
        ("task.only=[dance]", "known are tests, attention"),
    ],
)
def test_bad_options_are_named(override: str, message: str) -> None:
    with pytest.raises(UserError) as raised:
        run_of("task=gpu_report", override)
    assert message in str(raised.value)


def test_numbers_are_held_to_their_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def readings(part: str, metrics: dict[str, Any]) -> list[Reading]:
        monkeypatch.setattr(gpu_steps, "bench", lambda *_: metrics)
        return gpu_steps.MEASURES[part](Place("tiny", "cpu", 90, tmp_path))

    ratios = {"maps_over_native": 2, "eager_over_mass": 3}
    rows = [
        ratios | {"tokens": n, "verdict_over_native": x, "mass_over_native": 1.25}
        for n, x in ((700, 1.1), (3000, 1.11))
    ]
    found = readings("attention", {"rows": rows})
    assert [reading.met for reading in found] == [True, True, None, None, False, True, None, None]
    others = {f"{name}_over_plain": 2.0 for name in ("lazy", "sequential", "two_forward")}
    rows = [others | {"items": n, "paired_over_plain": x} for n, x in ((1, 1.11), (8, 1.35))]
    over_plain = {"plain": 1.0, "two_forward": 2.0, "paired": 1.2}
    details = [{"first_token_over_plain": over_plain, "whole_answer_over_plain": over_plain}] * 2
    found = readings("vcd", {"rows": rows, "details": details})
    assert [reading.met for reading in found if reading.bound] == [False, False, True, True]
    assert found[3].value == "two-forward 2.00, paired 1.20 ×"
    study = {"times": 7.9, "cases_per_second": 5.0}
    peaks = {"study": 2048, "baseline": 1024, "vcd": 1280}
    found = readings("eval", {"rows": {"study": study}, "peak_mib": peaks, "answers_unlike_the_loop": 0})
    assert (found[0].bound, found[0].met, found[3].value) == ("≥ 8 ×", False, "2.0 GiB")
    assert (found[4].value, found[4].met) == ("1.60 ×", False)


@pytest.mark.parametrize(
    ("counts", "value", "met"),
    [('tests="9" skipped="2" failures="1" errors="0"', "6 of 7 pass", False),
     ('tests="9" skipped="2" failures="0" errors="0"', "7 of 7 pass", True)],
)  # fmt: skip
def test_tests_are_counted(tmp_path: Path, counts: str, value: str, met: bool) -> None:
    report = tmp_path / "tests.xml"
    report.write_text(
        f'<testsuites><testsuite {counts}><testcase name="one"><failure/></testcase></testsuite></testsuites>'
    )
    (found,) = gpu_steps.counted(report)
    assert (found.value, found.met) == (value, met)
    report.write_text('<testsuites><testsuite tests="9" skipped="9" failures="0" errors="0"/></testsuites>')
    with pytest.raises(UserError, match="all of 9 tests skipped"):
        gpu_steps.counted(report)
    assert gpu_steps.counted(report, "cpu")[0].met


def test_a_module_that_cannot_be_collected_is_named(tmp_path: Path) -> None:
    report = tmp_path / "tests.xml"
    cases = '<testcase name="tests.a"><error/></testcase><testcase name="one"><skipped/></testcase>'
    report.write_text(
        f'<testsuites><testsuite tests="3" skipped="1" failures="0" errors="1">{cases}</testsuite></testsuites>'
    )
    (found,) = gpu_steps.counted(report)
    assert (found.what, found.value) == ("tests marked gpu, 1 skipped; failed: tests.a", "1 of 2 pass")
    assert found.met is False
    report.unlink()
    with pytest.raises(UserError, match="wrote no report"):
        gpu_steps.counted(report)


def test_a_tool_that_fails_is_a_line_among_the_others(tmp_path: Path) -> None:
    def broken() -> None:
        raise RuntimeError("out of ideas")

    assert gpu_steps.tried("it", broken, "cpu") == Reading(
        "it", "failed: RuntimeError: out of ideas", "works", met=False
    )
    assert gpu_steps.tried("it", lambda: None, "cpu").met is True


@pytest.mark.slow  # small models in processes of their own
@pytest.mark.parametrize("step", gpu_report.STEPS, ids=lambda step: step.name)
def test_every_step_runs_on_a_cpu(step: Step, tmp_path: Path) -> None:
    outcome: Outcome = gpu_report.performed(step, "tiny", "cpu", tmp_path)
    assert outcome.why_not == ""
    assert outcome.readings
    if step.part in ("tests", "tools", "prove"):
        assert [reading for reading in outcome.readings if reading.met is False] == []


@pytest.mark.slow  # imports torch in a process of a process
def test_a_step_ends_with_the_call_that_was_killed() -> None:
    step = """
import os, time
from threading import Thread
from experiments.bench.gpu_steps import end_with
Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
print(os.getpid(), flush=True)
time.sleep(60)
"""
    call = f"""
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {step!r}], start_new_session=True)
time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", call], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    started = psutil.Process(int(process.stdout.readline()))
    process.kill()
    started.wait(timeout=10)


def test_nothing_of_it_is_imported_before_it_runs() -> None:
    code = "import experiments.bench.gpu_report, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=False).returncode == 0
