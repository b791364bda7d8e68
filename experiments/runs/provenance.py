"""What a run ran on: commit, versions, device, command. Never keys or the rest of the process environment."""

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
    """The GPU's name, or where else the weights are; "remote" for a model behind an API, "none" without a model."""
    import torch

    device = getattr(vlm, "device", None)
    if device is None:
        return "none" if vlm is None else "remote"
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def _git(*arguments: str) -> str | None:
    """The answer of git about this source tree, None where it is not a checkout or git is missing."""
    here = Path(__file__).parent
    try:
        answer = subprocess.run(["git", *arguments], cwd=here, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()
