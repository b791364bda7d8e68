"""Provenance of a run: commit, versions, device, command. Never environment variables, which may hold keys."""

import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.runs.launch import Launch

if TYPE_CHECKING:
    from interp.vlm import VLM

ARCHIVED = "$Format:%H$"  # git archive writes the commit here (.gitattributes)
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")  # owner/name
SHOWN = 8  # characters of a hash, beside the name
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
        "commit": _commit(),
        "dirty": bool(_git("status", "--porcelain")),
        "versions": {"python": platform.python_version()} | {package: installed(package) for package in PACKAGES},
        "device": _device(vlm),
        "threads": torch.get_num_threads(),
        "processes": Launch.current().size,
    }


def installed(package: str) -> str:
    """A package's version; a host where only some of what we need was brought need not have all."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def commit() -> str:
    """The commit of this source tree, for people; a copy of the files alone has none, an archive of git's has one."""
    commit_hash = _commit()
    return (
        "unknown" if commit_hash is None else commit_hash + (" with changes" if _git("status", "--porcelain") else "")
    )


def model_title(model: Mapping[str, Any] | None) -> str:
    """How a run's model is called: its name and the first eight characters of its weights' hash, if it has one.

    ``model`` is that of environment.json: ``name``, and ``revision``, which is a hub's commit or ``sha256:…``.
    """
    name = str((model or {}).get("name") or "the model")
    return f"{name}{_in_brackets(_short_hash((model or {}).get('revision')))}"


def arm_title(model: Mapping[str, Any] | None, arm: str) -> str:
    """How a run's arm is called: its name, with the hash of the adapter that it puts on the weights, if any.

    An arm of responses made elsewhere is followed by what answered, unless that is what the run itself is called after.
    """
    adapter = ((model or {}).get("adapters") or {}).get(arm)
    responses = ((model or {}).get("responses") or {}).get(arm)
    if responses and model_title(responses) != model_title(model):
        return f"{arm} = {model_title(responses)}"
    return f"{arm}{_in_brackets(adapter and f'adapter {_short_hash(adapter)}')}"


def sides_of(model: Mapping[str, Any] | None, arm: str) -> list[str]:
    """Of an arm of responses made elsewhere: what answered, then what it is compared with, if anything; else empty."""
    responses = (model or {}).get("responses") or {}
    if arm not in responses:
        return []
    others = [] if (model or {}).get("made_elsewhere") else [model]
    others = [responses["baseline"]] if "baseline" in responses and arm != "baseline" else others
    return [model_title(responses[arm]), *map(model_title, others)]


def adapters(arms: Mapping[str, Any]) -> dict[str, str]:
    """Arm → hash of the adapter that it, or a method inside it, puts on the weights; other arms are left out."""
    return _declared(arms, "adapter", "revision")


def code(arms: Mapping[str, Any]) -> dict[str, str]:
    """Arm → digest of the user's own Python file that it, or a method inside it, is; other arms are left out."""
    return _declared(arms, "path", "digest")


def _declared(arms: Mapping[str, Any], of: str, wanted: str) -> dict[str, str]:
    """Arm → the attribute ``wanted`` of its method, or of one inside, that has ``of`` and it; others are left out."""
    declared = {arm: _inside(method, of, wanted) for arm, method in arms.items()}
    return {arm: value for arm, value in declared.items() if value}


def _inside(method: Any, of: str, wanted: str) -> str:
    if getattr(method, of, None) and getattr(method, wanted, None):
        return str(getattr(method, wanted))
    inside = (getattr(method, name, None) for name in ("method", "inner"))
    return next((value for one in inside if one is not None and (value := _inside(one, of, wanted))), "")


def _short_hash(revision: Any) -> str:
    return str(revision or "").rpartition(":")[2][:SHOWN]


def _in_brackets(text: str | None) -> str:
    return f" ({text})" if text else ""


def command() -> str:
    """The command line that started this process, for a shell."""
    return shlex.join(["python", "-m", "experiments.run", *sys.argv[1:]])


def without_paths(value: Any) -> Any:
    """The value with the last part alone of every absolute path: what others may read has no path of this machine."""
    if isinstance(value, Mapping):
        return {key: without_paths(one) for key, one in value.items()}
    if isinstance(value, list):
        return [without_paths(one) for one in value]
    absolute = isinstance(value, str) and (value.startswith("~") or Path(value).is_absolute())
    return Path(value).name if absolute else value


def _device(vlm: "VLM | None") -> str:
    """The GPU's name or other device of the weights; "remote" for a model behind an API, "none" without a model."""
    import torch

    device = getattr(vlm, "device", None)
    if device is None:
        return "none" if vlm is None else "remote"
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def _commit() -> str | None:
    return _git("rev-parse", "HEAD") or (None if ARCHIVED.startswith("$") else ARCHIVED)


def _git(*arguments: str) -> str | None:
    """The output of a git command in this source tree; None outside a checkout or without git."""
    here = Path(__file__).parent
    try:
        answer = subprocess.run(["git", *arguments], cwd=here, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()
