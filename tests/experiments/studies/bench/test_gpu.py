"""``make gpu``: what it runs, and the table it prints; a step that fails is a row and does not stop the others."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.studies.bench import gpu
from experiments.studies.bench.harness import Bound
from interp.errors import UserError
from tests.experiments.compose import run_of

SLOW, FAST = Bound("a token", 1.2, 1.1), Bound("cases a second", 9.0, 8.0, least=True)


@pytest.mark.long
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_its_commands_are_tasks_on_that_device(device: str) -> None:
    steps = gpu.steps(device)
    assert steps.pop(gpu.TESTS)[:2] == ["-m", "pytest"]
    for name, (_, module, *options) in steps.items():
        task: Any = run_of(*options).task
        assert (module, task.device) == ("experiments.run", device)
        sizes = task.sizes if name.startswith("vcd") else [task.size]
        assert set(sizes) <= set(gpu.SIZES[device])
    assert {name.partition(",")[0] for name in steps} == {"attention", "vcd", "eval", "arms that share prompts"}


def pretended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, failing: str, *bounds: Bound) -> None:
    """Every step but ``failing`` ends well; a bench leaves these bounds."""

    def run(command: list[str], **_: Any) -> Any:
        roots = [word.removeprefix("output_root=") for word in command if word.startswith("output_root=")]
        for root in roots if failing not in command else ():
            folder = Path(root) / "bench" / "now"
            folder.mkdir(parents=True)
            told = {"bounds": [bound._asdict() | {"met": bound.met} for bound in bounds]}
            (folder / "metrics.json").write_text(json.dumps(told))
        return subprocess.CompletedProcess(command, 2 if failing in command else 0)

    monkeypatch.setattr(gpu, "ROOT", tmp_path)
    monkeypatch.setattr(subprocess, "run", run)


def test_one_table_has_every_bound_and_every_step_that_failed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pretended(monkeypatch, tmp_path, "task=bench_vcd", FAST)
    assert gpu.main("cpu") == 1
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert sum("cases a second 9.00 at least 8.00 yes" in line for line in lines) == 5
    assert [line for line in lines if "failed" in line] == [
        "vcd, tiny – failed (2) – –",
        "vcd, small_qwen – failed (2) – –",
    ]
    assert any("tests marked gpu – passed" in line for line in lines)


@pytest.mark.parametrize(("bounds", "code"), [((FAST,), 0), ((FAST, SLOW), 1)])
def test_a_bound_that_is_not_met_is_the_exit_code(
    bounds: tuple[Bound, ...], code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pretended(monkeypatch, tmp_path, "nothing", *bounds)
    assert gpu.main("cpu") == code


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_what_it_needs() -> None:
    with pytest.raises(UserError, match="sees no GPU here; run it where there is one"):
        gpu.main()
    with pytest.raises(UserError, match="unknown device 'tpu'"):
        gpu.main("tpu")
