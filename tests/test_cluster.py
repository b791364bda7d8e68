"""The batch script of the guide to clusters, with stand-ins for Slurm's commands, on two processes of this machine."""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from experiments.runs import stopping
from tests.conftest import REPOSITORY
from tests.experiments.compose import composed

SCRIPT = REPOSITORY / "docs" / "cluster.sbatch"
STAND_IN = REPOSITORY / "tests" / "slurm_stand_in.py"
SLOW = """
import os, time
from dataclasses import dataclass


@dataclass(frozen=True)
class Slow:
    def generate(self, vlm, prompts, *, max_new_tokens):
        found = vlm.generate(prompts, max_new_tokens=max_new_tokens)
        note("begun", prompts)
        time.sleep(3)
        note("ended", prompts)
        return found


def note(what, prompts):
    line = " ".join([what, *(prompt.key for prompt in prompts)])
    with open(os.environ["NOTED"], "a") as file:
        file.write(line + chr(10))
"""


class Cluster:
    """The stand-ins on a PATH of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir()
        (folder / "calls").touch()
        for name in ("sbatch", "srun", "scancel", "scontrol"):
            command = folder / "bin" / name
            command.write_text(f'#!/bin/sh\nexec {sys.executable} {STAND_IN} {name} "$@"\n')
            command.chmod(0o755)

    def submit(self, *words: str, **environment: str) -> "subprocess.Popen[str]":
        """Starts ``sbatch`` with these words, in the repository."""
        paths = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        more = {"PATH": paths, "SLURM_STAND_IN": str(self.folder), "OMP_NUM_THREADS": "1"}
        (self.folder / "shell").unlink(missing_ok=True)
        return subprocess.Popen(
            ["sbatch", *words], cwd=REPOSITORY, env=os.environ | more | environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, executable=self.folder / "bin" / "sbatch",
        )  # fmt: skip

    def call(self, name: str, *words: str) -> None:
        """Types a command of Slurm's."""
        environment = os.environ | {"SLURM_STAND_IN": str(self.folder)}
        subprocess.run([self.folder / "bin" / name, *words], env=environment, check=True)

    def calls(self, beginning: str) -> list[str]:
        """What was called so."""
        return [line for line in (self.folder / "calls").read_text().splitlines() if line.startswith(beginning)]

    def time_is_nearly_up(self) -> None:
        """Sends the batch shell the signal that its script asks for."""
        asked = json.loads((self.folder / "directives.json").read_text())["signal"]
        to_the_shell = re.fullmatch(r"B:(USR1)@(\d+)", asked)
        assert to_the_shell is not None
        os.kill(int((self.folder / "shell").read_text()), getattr(signal, f"SIG{to_the_shell[1]}"))


def until(path: Path, pattern: str, process: "subprocess.Popen[str]", seconds: float = 200) -> str:
    """The text of ``path`` once it holds ``pattern``."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        text = path.read_text() if path.exists() else ""
        if re.search(pattern, text):
            return text
        if process.poll() is not None:
            break
        time.sleep(0.05)
    raise AssertionError(process.communicate(timeout=10)[0])


def work(folder: Path, *, ends_with: int, stopped_with: int) -> str:
    """A program in the place of Python that says what it was asked, and waits for SIGTERM where ``ends_with`` is -1."""
    program = folder / "program"
    waits = "sleep 30 & wait" if ends_with < 0 else f"exit {ends_with}"
    program.write_text(
        f'#!/bin/bash\necho "$@" > {folder}/asked\ntrap "kill %1 2>/dev/null; exit {stopped_with}" TERM\n'
        f"echo ready > {folder}/ready\n{waits}\n"
    )
    program.chmod(0o755)
    return str(program)


@pytest.mark.long
@pytest.mark.parametrize(
    ("sent", "stopped_with", "code", "requeued"),
    [
        ("USR1", 3, 0, True),
        ("USR1", 0, 0, False),
        ("scancel 42", 3, 3, False),
        ("scancel --signal=TERM 42", 3, 0, True),
    ],
    ids=["time is up", "time is up when it has just finished", "cancelled", "pre-empted, told by SIGTERM alone"],
)
def test_a_signal_stops_the_work_and_only_some_queue_it_again(
    sent: str, stopped_with: int, code: int, requeued: bool, tmp_path: Path
) -> None:
    cluster = Cluster(tmp_path)
    process = cluster.submit(str(SCRIPT), PYTHON=work(tmp_path, ends_with=-1, stopped_with=stopped_with))
    until(tmp_path / "ready", "ready", process)
    if sent == "USR1":
        cluster.time_is_nearly_up()
    else:
        if requeued:
            (tmp_path / "preempted").touch()
        cluster.call(*sent.split())
    said, _ = process.communicate(timeout=30)
    assert process.returncode == code, said  # 3: by SIGTERM, with time to end; 137 would be SIGKILL
    assert bool(cluster.calls("scontrol requeue 42")) is requeued
    assert ("stopping after the batch under way" in said) is not (tmp_path / "preempted").exists()


@pytest.mark.parametrize("ends_with", [0, 2])
def test_work_that_ends_by_itself_is_not_queued_again(ends_with: int, tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    program = work(tmp_path, ends_with=ends_with, stopped_with=0)
    process = cluster.submit("--nodes=2", str(SCRIPT), "+exp=vcd_llava", "note=two words", PYTHON=program)
    said, _ = process.communicate(timeout=30)
    assert process.returncode == ends_with, said
    assert not cluster.calls("scontrol requeue")
    asked = (tmp_path / "asked").read_text()
    assert "--nnodes 2 --nproc-per-node gpu" in asked
    assert "--rdzv-endpoint 127.0.0.1:29500 -m experiments.run +exp=vcd_llava note=two words" in asked


def free_port() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])


@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "processes"), [(1, 2), (2, 1)])
def test_a_job_whose_time_is_up_writes_its_batches_and_goes_on(
    nodes: int, processes: int, saved: Path, tmp_path: Path
) -> None:
    cluster, noted = Cluster(tmp_path), tmp_path / "noted"
    (tmp_path / "slow.py").write_text(SLOW)
    words = [
        f"--nodes={nodes}", str(SCRIPT), "method=file", f"method.path={tmp_path}/slow.py", f"model.path={saved}",
        f"output_root={tmp_path}/outputs", "model.device=cpu", "limit=12", "batch_size=2", "batch_tokens=null",
        "draws=20", "max_new_tokens=1",
    ]  # fmt: skip
    settings = {"PYTHON": sys.executable, "PROCESSES": str(processes), "NOTED": str(noted)}
    process = cluster.submit(*words, **settings, PORT=free_port())
    until(noted, r"begun(.|\n)*begun", process)  # a batch is under way in each of the two processes
    cluster.time_is_nearly_up()
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert len(cluster.calls("scontrol requeue 42")) == 1
    assert "stopped; the same command continues where it ended" in said
    (run,) = (tmp_path / "outputs").glob("*/*/")
    begun, ended = cases(noted, "begun"), cases(noted, "ended")
    assert begun == ended  # no batch was cut off
    assert 4 <= len(ended) < 12
    assert recorded(run) == ended  # and each is written
    process = cluster.submit(*words, **settings, PORT=free_port())
    said, _ = process.communicate(timeout=200)
    assert process.returncode == 0, said
    assert len(cluster.calls("scontrol requeue 42")) == 1
    assert list((tmp_path / "outputs").glob("*/*/")) == [run]
    assert cases(noted, "begun") == recorded(run)
    assert set(recorded(run).values()) == {1}  # nothing was asked twice
    assert len(recorded(run)) == 12
    assert (run / "report.html").exists()


def cases(noted: Path, what: str) -> Counter[str]:
    lines = [line.split() for line in noted.read_text().splitlines()]
    return Counter(key for word, *keys in lines if word == what for key in keys)


def recorded(run: Path) -> Counter[str]:
    """The cases of the slow arm in the run's file, or in the parts of its processes."""
    lines = [json.loads(line) for path in run.glob("predictions*.jsonl") for line in path.read_text().splitlines()]
    return Counter(line["case"] for line in lines if line["arm"] == "slow")


@pytest.fixture
def handlers() -> "object":
    """The handlers of this process, restored afterwards."""
    before = {number: signal.getsignal(number) for number in stopping.SIGNALS}
    for number in before:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def a_batch(numbers: list[signal.Signals], done: list[str], error: Exception | None = None) -> None:
    """Work that is to be written first, in which these signals arrive."""
    with stopping.written_first():
        for number in numbers:
            signal.raise_signal(number)
        if error is not None:
            raise error
        done.append("written")
    done.append("went on")


@pytest.mark.parametrize("number", stopping.SIGNALS)
def test_a_signal_waits_for_what_is_to_be_written(handlers: object, number: signal.Signals) -> None:
    stopping.heed()
    done: list[str] = []
    with pytest.raises(stopping.Stopped) as stopped:
        a_batch([number, number], done)
    assert done == ["written"]
    assert stopped.value.number == number
    a_batch([number], done)  # a second one, while the process ends
    assert done == ["written", "written", "went on"]


def test_where_nothing_is_under_way_a_signal_stops_at_once(handlers: object) -> None:
    stopping.heed()
    with pytest.raises(stopping.Stopped):
        signal.raise_signal(signal.SIGTERM)


def test_a_batch_that_fails_after_the_signal_stops_too(handlers: object) -> None:
    stopping.heed()
    with pytest.raises(stopping.Stopped):
        a_batch([signal.SIGTERM], [], ValueError("the batch failed"))


def test_others_handlers_are_left_alone(handlers: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as submitit has one of its own
    stopping.heed()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    signal.raise_signal(signal.SIGTERM)
    stopping.forget()
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


@pytest.mark.long
def test_every_job_in_the_guide_composes() -> None:
    guide = (REPOSITORY / "docs" / "guide-models.md").read_text(encoding="utf-8")
    jobs = re.findall(r"^sbatch (?:--\S+ )*docs/cluster\.sbatch (.*)$", guide, re.MULTILINE)
    sweeps = re.findall(r"^(?:\S+=\S+ )?forestlens -m (.*)$", guide, re.MULTILINE)
    assert (len(jobs), len(sweeps)) == (2, 2)
    for words in map(shlex.split, jobs):
        composed(*words)
    for words in map(shlex.split, sweeps):
        composed(*(re.sub(r",[^]]*$", "", word) for word in words if not word.startswith("hydra")))  # the first value


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_the_script_is_bash_that_can_be_read() -> None:
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True)
