"""What a run ran on: commit, versions, device, seeds, revisions. Never keys or the rest of the process environment."""

import platform
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.config import Run
from experiments.runs.launch import Launch
from experiments.runs.records import now
from experiments.types import Loaded
from interp.checkpoints.config import ModelConfig

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


def describe(run: Run, vlm: "VLM | None", loaded: Loaded) -> dict[str, Any]:
    """The contents of environment.json, before the run has finished."""
    import torch

    return {
        "commit": _git("rev-parse", "HEAD"),
        "dirty": bool(_git("status", "--porcelain")),
        "versions": {"python": platform.python_version()} | {package: version(package) for package in PACKAGES},
        "device": _device(vlm),
        "threads": torch.get_num_threads(),
        "processes": Launch.current().size,
        "seed": run.seed,
        "model": _model(run, vlm),
        "benchmark": {
            "name": run.benchmark.name,
            "manifest": loaded.manifest,
            "n": len(loaded.samples),
            "missing": loaded.missing,
        },
        "judge": run.judge.name,
        "arm_under_study": run.arm,
        "note": run.note,
        "command": shlex.join(["python", "-m", "experiments.run", *sys.argv[1:]]),
        "config": run.config,
        "config_hash": run.config_hash,
        "started": now(),
        "finished": None,
    }


def _device(vlm: "VLM | None") -> str:
    """The GPU's name, or where else the weights are; "remote" for a model behind an API, "none" without a model."""
    import torch

    device = getattr(vlm, "device", None)
    if device is None:
        return "none" if vlm is None else "remote"
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def _model(run: Run, vlm: "VLM | None") -> dict[str, Any]:
    if vlm is None:
        return {"name": "responses made elsewhere", "path": None, "revision": None, "dtype": None}
    if isinstance(run.model, ModelConfig):
        dtype = str(vlm.dtype).removeprefix("torch.")
        return {"name": vlm.name, "path": run.model.path, "revision": vlm.revision, "dtype": dtype}
    return {"name": vlm.name, "path": None, "revision": None, "dtype": None, "endpoint": run.model.identity()}


def _git(*arguments: str) -> str | None:
    """The answer of git about this source tree, None where it is not a checkout or git is missing."""
    here = Path(__file__).parent
    try:
        answer = subprocess.run(["git", *arguments], cwd=here, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()
