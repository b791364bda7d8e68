"""A stand-in for Slurm's commands: one machine, one job. ``python slurm_stand_in.py sbatch|srun|scancel|scontrol …``

The folder SLURM_STAND_IN has ``calls`` (what was called), ``shell`` and ``tasks`` (process ids of the batch shell, and
of what srun started), ``preempted`` (there while the job is pre-empted), ``directives.json`` (the ``#SBATCH`` options).
"""

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil

FOLDER = Path(os.environ["SLURM_STAND_IN"])
JOB = "42"


def sbatch(*words: str) -> int:
    """Runs the script as the batch shell, and ends as it does. Options on the command line come before the script's."""
    given = [word for word in words if word.startswith("--")]
    script, *arguments = words[len(given) :]
    options = [*re.findall(r"^#SBATCH (--\S+)", Path(script).read_text(), re.MULTILINE), *given]
    directives = dict(option.removeprefix("--").partition("=")[::2] for option in options)
    (FOLDER / "directives.json").write_text(json.dumps(directives))
    nodes = directives["nodes"]
    cores = {"SLURM_CPUS_PER_TASK": directives["cpus-per-task"]}
    slurm = {"SLURM_JOB_ID": JOB, "SLURM_NNODES": nodes, "SLURM_JOB_NODELIST": f"node[1-{nodes}]"}
    shell = subprocess.Popen(["bash", script, *arguments], env=os.environ | slurm | cores)
    (FOLDER / "shell").write_text(str(shell.pid))
    return shell.wait()


def srun(*words: str) -> int:
    """Starts the command once a node, and ends with the highest code; as the real one, SIGTERM kills all it started."""
    command = [word for word in words if not word.startswith("--kill-on-bad-exit")]
    cores, command = command[0], command[1:]
    if cores != f"--cpus-per-task={os.environ['SLURM_CPUS_PER_TASK']}":
        sys.exit("a step without --cpus-per-task has one core")
    nodes = int(os.environ["SLURM_NNODES"])
    started = [subprocess.Popen(command, env=os.environ | {"SLURM_NODEID": str(node)}) for node in range(nodes)]
    (FOLDER / "tasks").write_text(" ".join(str(task.pid) for task in started))
    signal.signal(signal.SIGTERM, lambda *_: signal_tasks(signal.SIGKILL))
    return max(code if (code := task.wait()) >= 0 else 128 - code for task in started)


def signal_tasks(number: int) -> None:
    """To every process that a task consists of, as slurmstepd does."""
    for task in map(int, (FOLDER / "tasks").read_text().split()):
        with suppress(psutil.NoSuchProcess):
            for process in [psutil.Process(task), *psutil.Process(task).children(recursive=True)]:
                process.send_signal(number)


def scancel(*words: str) -> int:
    """With ``--signal=TERM`` to the steps' processes alone, else to the batch shell too."""
    signal_tasks(signal.SIGTERM)
    if words[0] != "--signal=TERM":
        os.kill(int((FOLDER / "shell").read_text()), signal.SIGTERM)
    return 0


def scontrol(*words: str) -> int:
    """``show hostnames``, ``show job`` as far as it says when the job was pre-empted, and ``requeue``, only noted."""
    if words[:2] == ("show", "hostnames"):
        print("\n".join(["127.0.0.1"] * int(os.environ["SLURM_NNODES"])))
    if words[:2] == ("show", "job"):
        when = "2026-11-24T01:02:03" if (FOLDER / "preempted").exists() else "None"
        print(f"   PreemptEligibleTime=2026-11-24T01:00:00 PreemptTime={when}")
    return 0


if __name__ == "__main__":
    name, *rest = sys.argv[1:]
    with (FOLDER / "calls").open("a") as calls:
        calls.write(" ".join([name, *rest]) + "\n")
    sys.exit({"sbatch": sbatch, "srun": srun, "scancel": scancel, "scontrol": scontrol}[name](*rest))
