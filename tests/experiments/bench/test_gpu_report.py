"""What ``make gpu`` writes, on small models and made-up steps: that a step fails, overruns or is left out is a line."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.bench import gpu_measures, gpu_readings, gpu_report
from experiments.bench.gpu_readings import Reading
from experiments.bench.gpu_report import GpuReport
from experiments.bench.gpu_steps import Step, steps_of
from interp.errors import UserError
from tests.conftest import REPOSITORY
from tests.experiments.compose import run_of

PAGE = REPOSITORY / "docs" / "gpu.md"


def said(*readings: Reading) -> Callable[[Path], list[Reading]]:
    return lambda log: list(readings)


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


SLEEP = "import time; time.sleep(60)"
SLOW = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEP!r}]); {SLEEP}"


def test_the_page_says_what_was_measured_what_failed_what_overran_and_what_was_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def steps(self: GpuReport, scratch: Path) -> list[Step]:
        kept, missed = Reading("a | b", "1.05 ×", "≤ 1.10 ×", met=True), Reading("c", "2 ×", "≤ 1 ×", met=False)
        unread = scratch / "nowhere.json"
        return [
            Step("good", 10, python("print('fine')"), said(kept, missed, Reading("d", "3 s"))),
            Step("bad", 10, python("import sys; sys.exit('no memory')"), gpu_readings.read_measured(unread)),
            Step("silent", 10, python("pass"), gpu_readings.read_measured(unread)),
            Step("slow", 5, python(SLOW), said(kept)),
            Step("crumbs", 0.1, python("pass"), said(kept)),
            Step("last", 10, python("pass"), said(kept)),
        ]

    monkeypatch.setattr(GpuReport, "steps", steps)
    page = tmp_path / "gpu.md"
    options = ("task.size=tiny", "task.device=cpu", "task.seconds=15", f"task.page={page}")
    run = run_of("task=gpu_report", *options, f"output_root={tmp_path}")
    run.task(run)
    text = page.read_text(encoding="utf-8")
    assert "Small models, for a test of this page" in text
    assert "Numbers with a bound: 3; bound met: 2; not met: 1. Steps: 6; did not run: 4." in text
    assert "| good | a \\| b | 1.05 × | ≤ 1.10 × | yes |" in text
    assert "| good | c | 2 × | ≤ 1 × | **no** |" in text
    assert "| good | d | 3 s | – | – |" in text
    assert "| last | a \\| b | 1.05 × |" in text
    assert "- **bad**: failed: no memory (bad.log)" in text
    assert "- **silent**: failed: its result cannot be read: FileNotFoundError" in text
    assert "- **slow**: ended after " in text
    assert "its share of the time (slow.log)" in text
    assert "- **crumbs**: left out: " in text
    assert f"| torch | {torch.__version__} |" in text
    (folder,) = (tmp_path / "gpu_report").iterdir()
    found = json.loads((folder / "metrics.json").read_text())
    assert found["seconds"] < 15
    assert [step["step"] for step in found["steps"]] == ["good", "bad", "silent", "slow", "crumbs", "last"]
    assert "page: " in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_what_it_needs_and_leaves_the_page(tmp_path: Path) -> None:
    before = PAGE.read_text(encoding="utf-8")
    run = run_of("task=gpu_report", f"output_root={tmp_path}")
    with pytest.raises(UserError, match=r"needs a CUDA device \(an 80 GB card .* sees none here; run `make gpu`"):
        run.task(run)
    assert PAGE.read_text(encoding="utf-8") == before
    assert list(tmp_path.iterdir()) == []


def test_its_steps_are_those_it_promises_within_nine_minutes() -> None:
    steps = steps_of("7b", "cuda", Path("/scratch"))
    assert [step.name for step in steps] == [
        "tests", "kernels", "bench_attention LLaVA-1.5", "bench_attention Qwen2.5-VL", "bench_vcd LLaVA-1.5",
        "bench_vcd Qwen2.5-VL", "bench_eval LLaVA-1.5", "bench_eval Qwen2.5-VL", "host waits", "study with attention",
        "mechanism and read-out", "plan and peak",
    ]  # fmt: skip
    assert GpuReport().seconds <= 540
    assert {"tests/mitigation/test_processors_gpu.py", "tests/mitigation/test_kernels.py"} <= set(steps[0].command)
    for step in steps[1:8]:  # every command composes, with the settings that it names
        overrides = [word for word in step.command if "=" in word]
        assert run_of(*overrides).task is not None


def test_a_page_nobody_ran_has_no_numbers() -> None:
    text = PAGE.read_text(encoding="utf-8")
    if "Written by `make gpu`" not in text:
        assert "Nothing on this page has been run yet" in text
        assert "|" not in text


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("task.size=huge", "task.size='huge': known are 7b and tiny"),
        ("task.seconds=0", "task.seconds=0"),
        ("task.device=cpu", "task.device='cpu' with task.size=7b"),
        ("task.only=[dance]", "known are tests, kernels"),
    ],
)
def test_bad_options_are_named(override: str, message: str) -> None:
    with pytest.raises(UserError) as raised:
        run_of("task=gpu_report", override)
    assert message in str(raised.value)


def written(path: Path, content: Any) -> Path:
    (path / "bench" / "now").mkdir(parents=True, exist_ok=True)
    (path / "bench" / "now" / "metrics.json").write_text(json.dumps(content))
    return path


def test_numbers_are_held_to_their_bounds(tmp_path: Path) -> None:
    rows = [
        {"tokens": n, "mass_over_native": x, "maps_over_native": 2, "eager_over_mass": 3}
        for n, x in ((640, 1.1), (3072, 1.11))
    ]
    found = gpu_readings.read_attention(written(tmp_path / "a", {"rows": rows}))(tmp_path)
    assert [reading.met for reading in found] == [True, None, None, False, None, None]
    ratios = {"lazy_over_plain": 1, "sequential_over_plain": 2, "two_forward_over_plain": 2}
    rows = [ratios | {"items": n, "paired_over_plain": x} for n, x in ((1, 1.11), (8, 1.35), (2, 9))]
    first = [{"first_token_over_plain": {"plain": 1.0, "two_forward": 2.0}}] * 3
    found = gpu_readings.read_vcd(written(tmp_path / "v", {"rows": rows, "details": first}))(tmp_path)
    assert [reading.met for reading in found if "paired" in reading.what] == [False, True, None]
    assert found[4].value == "two-forward 2.00 ×"
    answering = {"bound": {"times": 7.9}, "rows": {"study": {"cases_per_second": 5}}, "peak_mib": 2048}
    found = gpu_readings.read_eval(written(tmp_path / "e", answering))(tmp_path)
    assert (found[0].bound, found[0].met, found[2].value) == ("≥ 8 ×", False, "2.0 GiB")
    row = {
        "rows": 1,
        "vocabulary": 9,
        "gumbel": True,
        "torch_us": 1,
        "compile_us": 2,
        "triton_us": 3,
        "largest_error": 1e-3,
    }
    found = gpu_readings.read_kernels(written(tmp_path / "k", {"rows": [row]}))(tmp_path)
    assert found[0].what == "1 rows × 9, Gumbel: torch / compile / Triton"
    assert found[-1].met is False


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
    (found,) = gpu_readings.read_tests(report)(tmp_path)
    assert (found.value, found.met) == (value, met)
    report.write_text('<testsuites><testsuite tests="9" skipped="9" failures="0" errors="0"/></testsuites>')
    with pytest.raises(UserError, match="all of 9 tests skipped"):
        gpu_readings.read_tests(report)(tmp_path)


def test_a_tool_that_fails_is_a_line_beside_the_others() -> None:
    def broken() -> None:
        raise RuntimeError("out of ideas")

    assert gpu_measures._tried("it", broken, "cpu") == Reading(
        "it", "failed: RuntimeError: out of ideas", "works", met=False
    )
    assert gpu_measures._tried("it", lambda: None, "cpu").met is True


def test_without_a_plan_or_a_device_its_steps_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_measures, "PLAN", "conf/task/no_such.yaml")
    with pytest.raises(UserError, match="no estimate to hold the peak against"):
        gpu_measures.plan_and_peak("tiny", "cpu")
    with pytest.raises(UserError, match="set_sync_debug_mode"):
        gpu_measures.host_waits("tiny", "cpu")


@pytest.mark.slow  # the tools, a whole study, and small models of both families
@pytest.mark.parametrize("name", ["mechanism and read-out", "study with attention"])
def test_what_needs_no_gpu_is_measured(name: str, tmp_path: Path) -> None:
    gpu_measures.main(name, "tiny", "cpu", str(tmp_path / "out.json"))
    found = gpu_readings.read_measured(tmp_path / "out.json")(tmp_path)
    assert found
    assert [reading for reading in found if reading.met is False] == []


def test_nothing_of_it_is_imported_before_it_runs() -> None:
    assert gpu_report.PAGE == "docs/gpu.md"
    code = "import experiments.bench.gpu_report, sys; sys.exit('torch' in sys.modules)"
    import subprocess

    assert subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=False).returncode == 0
