"""The processes of one launch: who they are, what each does, and that two answer as one."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from experiments import config
from experiments import run as door
from experiments.runs.launch import Launch, check_task
from experiments.runs.record_fields import ordered, read_records
from experiments.runs.results_table import read_results
from experiments.runs.store import complete_lines
from experiments.studies.vrtuning.study import VRTuningStudy
from interp.errors import UserError
from tests.conftest import REPOSITORY
from tests.experiments.compose import run_of

SMALL = ("limit=8", "draws=20", "batch_size=2", "max_new_tokens=2", "model.device=cpu")


def test_one_process_is_alone_and_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    launch = Launch.current()
    assert (launch.rank, launch.size, launch.first) == (0, 1, True)
    launch.join()
    launch.wait()
    assert launch.everyones("x") == ["x"]
    assert launch.share([1, 2, 3]) == [1, 2, 3]
    assert not launch.console().quiet


def test_shares_are_disjoint_and_together_everything() -> None:
    items = list(range(11))
    shares = [Launch(rank, 3).share(items) for rank in range(3)]
    assert sorted(item for share in shares for item in share) == items
    assert [len(share) for share in shares] == [4, 4, 3]
    assert Launch(1, 3).console().quiet


@pytest.mark.parametrize("rank", [None, "2", "x"])
def test_half_an_environment_is_one_sentence(monkeypatch: pytest.MonkeyPatch, rank: str | None) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("RANK", rank)
    with pytest.raises(UserError, match=r"WORLD_SIZE=2 .*accelerate launch or torchrun"):
        Launch.current()


def test_tasks_share_their_cases_out_or_are_refused() -> None:
    for task in (run_of().task, VRTuningStudy):
        check_task(task, Launch(0, 2))
    alone = run_of("task=preview").task
    check_task(alone, Launch())
    with pytest.raises(UserError, match=r"WORLD_SIZE=2: run works in one process; .*python -m experiments.run"):
        check_task(alone, Launch(0, 2))


FULL = "error: No space left on device; make room and run the same command again, which goes on from here\n"
SHORT = "error: not enough memory for llava_7b; take a smaller batch_size"


@pytest.mark.parametrize(("error", "said"), [
    (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), FULL), (MemoryError(), SHORT),
    (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), SHORT),
])  # fmt: skip
def test_a_full_disk_and_too_little_memory_end_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, said: str
) -> None:
    run = SimpleNamespace(task=Mock(side_effect=error), plan=None, model=SimpleNamespace(name="llava_7b"))
    monkeypatch.setattr(config, "build_run", lambda _: run)
    with pytest.raises(SystemExit) as ended:
        door.start([], [], SimpleNamespace(model=SimpleNamespace(name="chosen")))  # type: ignore[arg-type]
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(said)


def test_a_model_over_an_api_is_asked_by_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of("model=api_vllm", "model.model=x", "method=baseline")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(UserError, match=r"WORLD_SIZE=2: .*over an API"):
        run.task(run)


TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc_per_node")


def launched(size: int, *overrides: str) -> subprocess.CompletedProcess[str]:
    """``torchrun``, on CPUs, with several processes of one thread."""
    command = [sys.executable, "-m", *TORCHRUN, str(size), "-m", "experiments.run", *SMALL, *overrides]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_two_processes_give_the_predictions_of_one(tmp_path: Path) -> None:
    """To the last digit, on the organism, with a fitted arm, one table, one report."""
    found = []
    for size in (1, 2):
        root = tmp_path / str(size)
        arms = "+arms.calibrated_shift={_target_: mitigation.threshold.CalibratedShift}"
        ended = launched(size, f"output_root={root}", "attention=false", arms)
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout.count("report: ") == 1
        (folder,) = (root / "study").iterdir()
        assert json.loads((folder / "environment.json").read_text())["processes"] == size
        assert len(list(folder.glob("predictions*.jsonl"))) == 1
        development = [line for *_, line in complete_lines(folder / "development.jsonl")]
        results = [row._replace(run="") for row in read_results(folder)]
        design = (folder / "metrics.json").read_text()
        found.append([read_records(folder), ordered(development, ()), results, design])
    assert len(found[0][0]) == 3 * 8
    assert found[0] == found[1]
