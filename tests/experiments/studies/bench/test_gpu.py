"""``make gpu``: what it runs, and the table it prints; a failed step is a row and does not stop the others."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from experiments.studies.bench import gpu
from tests.experiments.compose import run_of


@pytest.mark.long
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_its_commands_are_tasks_on_that_device(device: str) -> None:
    steps = gpu.steps(device)
    assert steps.pop(gpu.TESTS)[:2] == ["-m", "pytest"]
    assert list(steps) == ["attention", "vcd"]
    for _, module, *options in steps.values():
        task: Any = run_of(*options).task
        assert (module, task.device, ",".join(task.sizes)) == ("experiments.run", device, gpu.SIZES[device])


@pytest.mark.parametrize(("failing", "times", "code"), [("", 0.1, 0), ("", 0.2, 1), ("task=bench_vcd", 0.1, 1)])
def test_one_table_has_every_limit_and_every_failed_step(
    failing: str, times: float, code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def run(command: list[str], **_: Any) -> Any:
        for root in (word.removeprefix("output_root=") for word in command if word.startswith("output_root=")):
            folder = Path(root) / "bench" / "now"
            folder.mkdir(parents=True)
            row = {"what": "7b, 32 cases", "variant": "study", "times plain": times, "at most": 0.125, "seconds": 1.0}
            (folder / "metrics.json").write_text(json.dumps({"rows": [row, row | {"at most": None}]}))
        return subprocess.CompletedProcess(command, 2 if failing in command else 0)

    monkeypatch.setattr(gpu, "ROOT", tmp_path)
    monkeypatch.setattr(subprocess, "run", run)
    assert gpu.main("cpu") == code
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    met = "yes" if times <= 0.125 else "no"
    assert lines.count(f"7b, 32 cases study {times} 0.125 {met}") == 2 - bool(failing)
    assert [line for line in lines if "failed" in line] == (["vcd failed (2)"] if failing else [])
    assert "tests marked gpu yes" in lines
