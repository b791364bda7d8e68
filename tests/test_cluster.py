"""The batch script of the guide to clusters."""

import re
import shlex
import shutil
import subprocess

import pytest

from tests.conftest import REPOSITORY
from tests.experiments.compose import composed

SCRIPT = REPOSITORY / "docs" / "cluster.sbatch"


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
    assert sent is not None
    assert '-m experiments.run "$@"' in text
