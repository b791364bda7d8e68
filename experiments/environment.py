"""What a run ran on: commit, versions, device, seeds, revisions. Never keys or the rest of the process environment."""

import platform
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.benchmarks.sample import Loaded
from experiments.records import now
from experiments.schema import Run

if TYPE_CHECKING:
    from interp.vlm import VLM

PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "accelerate",
    "peft",
    "trl",
    "numpy",
    "pillow",
    "scipy",
    "statsmodels",
)


def describe(run: Run, vlm: "VLM", loaded: Loaded) -> dict[str, Any]:
    """The contents of environment.json, before the run has finished."""
    import torch

    return {
        "commit": _git("rev-parse", "HEAD"),
        "dirty": bool(_git("status", "--porcelain")),
        "versions": {"python": platform.python_version()} | {package: version(package) for package in PACKAGES},
        "device": torch.cuda.get_device_name(vlm.device) if vlm.device.type == "cuda" else str(vlm.device),
        "threads": torch.get_num_threads(),
        "seed": run.seed,
        "model": {
            "name": vlm.name,
            "path": run.model.path,
            "revision": vlm.revision,
            "dtype": str(vlm.dtype).removeprefix("torch."),
        },
        "benchmark": {
            "name": run.benchmark.name,
            "manifest": loaded.manifest,
            "n": len(loaded.samples),
            "missing": loaded.missing,
        },
        "arm_under_study": run.arm,
        "note": run.note,
        "command": shlex.join(["python", "-m", "experiments.run", *sys.argv[1:]]),
        "config": run.config,
        "config_hash": run.config_hash,
        "started": now(),
        "finished": None,
    }


def _git(*arguments: str) -> str | None:
    """The answer of git about this source tree, None where it is not a checkout or git is missing."""
    here = Path(__file__).parent
    try:
        answer = subprocess.run(["git", *arguments], cwd=here, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()
