"""A stand-in for ``sbatch``, ``srun`` and ``scontrol``: one machine, one job. ``python slurm_stand_in.py NAME …``

The folder SLURM_STAND_IN has ``calls`` (what was called), ``shell`` (the process id of the batch shell) and
``directives.json`` (the script's ``#SBATCH`` options).
"""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

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
    slurm = {"SLURM_JOB_ID": JOB, "SLURM_NNODES": nodes, "SLURM_JOB_NODELIST": f"node[1-{nodes}]"}
    shell = subprocess.Popen(["bash", script, *arguments], env=os.environ | slurm)
    (FOLDER / "shell").write_text(str(shell.pid))
    return shell.wait()


def srun(*words: str) -> int:
    """Starts the command once a node, passes SIGTERM on, and ends with the highest code."""
    command = [word for word in words if not word.startswith("--kill-on-bad-exit")]
    nodes = int(os.environ["SLURM_NNODES"])
    started = [subprocess.Popen(command, env=os.environ | {"SLURM_NODEID": str(node)}) for node in range(nodes)]
    signal.signal(signal.SIGTERM, lambda *_: [task.terminate() for task in started])
    return max(code if (code := task.wait()) >= 0 else 128 - code for task in started)


def scontrol(*words: str) -> int:
    """``show hostnames`` and ``requeue``, which is only noted."""
    if words[:2] == ("show", "hostnames"):
        print("\n".join(["127.0.0.1"] * int(os.environ["SLURM_NNODES"])))
    return 0


if __name__ == "__main__":
    name, *rest = sys.argv[1:]
    with (FOLDER / "calls").open("a") as calls:
        calls.write(" ".join([name, *rest]) + "\n")
    sys.exit({"sbatch": sbatch, "srun": srun, "scontrol": scontrol}[name](*rest))
