"""Provenance of a run: commit, versions, device, command. Never environment variables, which may hold keys."""

import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.runs.launch import Launch

if TYPE_CHECKING:
    from interp.vlm import VLM

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")  # owner/name
SHOWN = 8  # characters of a hash, beside the name
PACKAGES = "torch transformers tokenizers accelerate peft trl numpy pillow scipy statsmodels"


def machine(vlm: "VLM | None") -> dict[str, Any]:
    """Return commit, versions, device, threads and processes of this launch; ``vlm`` is None if no model is asked.

    The device is the GPU's name, "remote" for a model behind an API, or "none" without a model. The commit is None
    outside a checkout.
    """
    import torch

    here = getattr(vlm, "device", None)
    device = ("none" if vlm is None else "remote") if here is None else str(here)
    return {
        "commit": _git("rev-parse", "HEAD"),
        "dirty": bool(_git("status", "--porcelain")),
        "versions": {"python": platform.python_version()} | {package: version(package) for package in PACKAGES.split()},
        "device": torch.cuda.get_device_name(here) if device.startswith("cuda") else device,
        "threads": torch.get_num_threads(),
        "processes": Launch.current().size,
    }


def model_title(model: Mapping[str, Any] | None) -> str:
    """Return what a run's model is called: its name and the first eight characters of its weights' hash, if any.

    ``model`` is the entry of environment.json: ``name``, and ``revision``, which is a hub's commit or ``sha256:…``.
    """
    name = str((model or {}).get("name") or "the model")
    return f"{name}{_in_brackets(_short_hash((model or {}).get('revision')))}"


def arm_title(model: Mapping[str, Any] | None, arm: str) -> str:
    """Return what a run's arm is called: its name, with the hash of the adapter that it puts on the weights, if any.

    An arm of responses made elsewhere is followed by what answered, unless that is what the run itself is called after.
    """
    adapter = ((model or {}).get("adapters") or {}).get(arm)
    responses = ((model or {}).get("responses") or {}).get(arm)
    if responses and model_title(responses) != model_title(model):
        return f"{arm} = {model_title(responses)}"
    return f"{arm}{_in_brackets(adapter and f'adapter {_short_hash(adapter)}')}"


def sides_of(model: Mapping[str, Any] | None, arm: str) -> list[str]:
    """Return what answered in an arm of responses made elsewhere, then what it is compared with; else nothing."""
    responses = (model or {}).get("responses") or {}
    if arm not in responses:
        return []
    others = [] if (model or {}).get("made_elsewhere") else [model]
    others = [responses["baseline"]] if "baseline" in responses and arm != "baseline" else others
    return [model_title(responses[arm]), *map(model_title, others)]


def adapters(arms: Mapping[str, Any]) -> dict[str, str]:
    """Return arm → hash of the adapter that its method, or one inside, puts on the weights; other arms are left out."""
    return _declared(arms, "adapter", "revision")


def code(arms: Mapping[str, Any]) -> dict[str, str]:
    """Return arm → digest of the user's Python file that its method, or one inside, is; other arms are left out."""
    return _declared(arms, "path", "digest")


def _declared(arms: Mapping[str, Any], name: str, wanted: str) -> dict[str, str]:
    """Return arm → the attribute ``wanted`` of its method, or of one inside, that has ``name`` and it."""
    declared: dict[str, str] = {}
    for arm, method in arms.items():
        while method is not None and not (getattr(method, name, None) and getattr(method, wanted, None)):
            method = getattr(method, "method", None) or getattr(method, "inner", None)
        if method is not None:
            declared[arm] = str(getattr(method, wanted))
    return declared


def _short_hash(revision: Any) -> str:
    return str(revision or "").rpartition(":")[2][:SHOWN]


def _in_brackets(text: str | None) -> str:
    return f" ({text})" if text else ""


def command() -> str:
    """Return the command line that started this process, for a shell."""
    return shlex.join(["python", "-m", "experiments.run", *sys.argv[1:]])


def without_paths(value: Any) -> Any:
    """Return the value with only the last part of every absolute path, so that it shows no path of this machine."""
    if isinstance(value, Mapping):
        return {key: without_paths(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [without_paths(entry) for entry in value]
    absolute = isinstance(value, str) and (value.startswith("~") or Path(value).is_absolute())
    return Path(value).name if absolute else value


def _git(*arguments: str) -> str | None:
    """Return the output of a git command in this source tree; None outside a checkout or without git."""
    here = Path(__file__).parent
    try:
        answer = subprocess.run(["git", *arguments], cwd=here, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()
