"""Provenance of a run: commit, versions, device, command. Never environment variables, which may hold keys."""

import platform
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.runs.launch import Launch

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


def machine(vlm: "VLM | None") -> dict[str, Any]:
    """Commit, versions, device, threads and processes of this launch; ``vlm`` is None where no model is asked."""
    import torch

    return {
        "commit": _git("rev-parse", "HEAD"),
        "dirty": bool(_git("status", "--porcelain")),
        "versions": {"python": platform.python_version()} | {package: version(package) for package in PACKAGES},
        "device": _device(vlm),
        "threads": torch.get_num_threads(),
        "processes": Launch.current().size,
    }


def command() -> str:
    """The command line that started this process, for a shell."""
    return shlex.join(["python", "-m", "experiments.run", *sys.argv[1:]])


def _device(vlm: "VLM | None") -> str:
    """The GPU's name or other device of the weights; "remote" for a model behind an API, "none" without a model."""
    import torch

    device = getattr(vlm, "device", None)
    if device is None:
        return "none" if vlm is None else "remote"
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def _git(*arguments: str) -> str | None:
    """The output of a git command in this source tree; None outside a checkout or without git."""
    here = Path(__file__).parent
    try:
        answer = subprocess.run(["git", *arguments], cwd=here, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()
