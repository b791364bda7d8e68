"""The batch script of the guide to clusters, and signals that wait for what is to be written."""

import re
import shlex
import shutil
import signal
import subprocess

import pytest

from experiments.runs import stopping
from tests.conftest import REPOSITORY
from tests.experiments.compose import composed

SCRIPT = REPOSITORY / "docs" / "cluster.sbatch"


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
def test_the_script_is_bash_and_asks_for_a_signal_before_its_time_is_up() -> None:
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True)
    text = SCRIPT.read_text(encoding="utf-8")
    asked = dict(line.partition("=")[::2] for line in re.findall(r"^#SBATCH --(\S+)", text, re.MULTILINE))
    assert {"nodes", "ntasks-per-node", "gpus-per-node", "cpus-per-task", "time", "requeue", "output"} <= set(asked)
    sent = re.fullmatch(r"B:USR1@(\d+)", asked["signal"])
    ends = re.search(r"TORCH_ELASTIC_SHUTDOWN_TIMEOUT:-(\d+)", text)
    assert sent is not None
    assert ends is not None
    assert int(ends[1]) < int(sent[1])  # the batch under way ends before Slurm kills the job
    assert '-m experiments.run "$@"' in text
