"""An adapter on disk: peft's two files, its origin (``vrtuning.json``), and a model card generated from that.

Importing this module loads neither torch nor transformers.
"""

import dataclasses
import hashlib
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from interp.checkpoints.config import ORGANISM, is_other
from interp.errors import UserError
from interp.tensor_file import TrainingRows, read_rows

if TYPE_CHECKING:
    from interp.vlm import VLM

WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"
RECORD = "vrtuning.json"
HASH_LENGTH = 12
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True)
class Origin:
    """How an adapter was trained. ``base_revision`` is a hub commit or hash of weights, None for a model in memory;
    ``data`` describes the examples, ``data_digest`` is their hash."""

    base: str
    base_path: str
    base_revision: str | None
    data: str
    data_digest: str
    examples: int
    steps: int
    processes: int
    settings: dict[str, Any]
    final_loss: float
    versions: dict[str, str]
    base_preprocessing: str = ""  # ``VLM.preprocessing``; "" where it is not known


def folder_of(adapter: Path) -> Path:
    """Return the folder with the adapter's files: ``adapter`` itself, or its subfolder ``adapter`` for a run's folder.

    Raises:
        UserError: neither holds both files.
    """
    for folder in (adapter, adapter / "adapter"):
        if (folder / WEIGHTS).is_file() and (folder / CONFIG).is_file():
            return folder
    raise UserError(
        f"no adapter at {adapter}; its folder has {WEIGHTS} and {CONFIG}; give the folder of a finished training"
    )


def adapter_hash(folder: Path) -> str:
    """Return ``sha256:`` and 12 hex digits over both files."""
    digest = hashlib.sha256()
    for name in (CONFIG, WEIGHTS):
        with (folder / name).open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return f"sha256:{digest.hexdigest()[:HASH_LENGTH]}"


def read_origin(folder: Path) -> Origin | None:
    """Return the record of an adapter; None if it has none (an adapter from elsewhere) or an unknown one."""
    try:
        return Origin(**json.loads((folder / RECORD).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def check_base(folder: Path, vlm: "VLM") -> None:
    """Check that the adapter was trained on the weights and the preprocessing of ``vlm``.

    Compare hashes or commits if both are known, else names. For an adapter from elsewhere, compare the base that its
    configuration names: two ids of the hub must be equal. If a folder has another name, print this; peft checks its
    shapes.

    Raises:
        UserError: it was trained on another model.
    """
    origin = read_origin(folder)
    if origin is None:
        _check_named(folder, vlm)
        return
    both_known = origin.base_revision and vlm.revision
    if (origin.base_revision != vlm.revision) if both_known else (origin.base != vlm.name):
        raise UserError(
            f"adapter {folder} was trained on {origin.base} ({origin.base_revision or 'in memory'}), this model is "
            f"{vlm.name} ({vlm.revision or 'in memory'}); an adapter fits the weights it was trained on; choose that "
            "model, or train an adapter for this one"
        )
    if is_other(origin.base_preprocessing, vlm.preprocessing):
        raise UserError(
            f"adapter {folder} was trained on {origin.base} with another configuration, processor, chat template or "
            f"tokenizer than {vlm.name} has ({origin.base_preprocessing}, here {vlm.preprocessing}); give the "
            "files and options of model that it was trained with, or train it again"
        )


def _check_named(folder: Path, vlm: "VLM") -> None:
    """Compare the base that peft's configuration names with the model. Raises as ``check_base``."""
    try:
        base = str(json.loads((folder / CONFIG).read_text(encoding="utf-8")).get("base_model_name_or_path") or "")
    except (OSError, ValueError, AttributeError):
        return  # peft says what is wrong with it
    here = str(getattr(vlm.model.config, "_name_or_path", "") or vlm.name)
    if not base or _last(base) in (_last(here), vlm.name):
        return
    if HUB_ID.fullmatch(base) and HUB_ID.fullmatch(here) and not Path(here).exists():
        raise UserError(
            f"adapter {folder} was trained on {base}, this model is {here}; an adapter fits the weights it was trained "
            "on; choose that model, or train an adapter for this one"
        )
    print(
        f"adapter {folder} names {base} as its base; it is unknown whether {here} has the same weights", file=sys.stderr
    )


def _last(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def save(model: Any, folder: Path, origin: Origin, rows: TrainingRows | None = None) -> None:
    """Write the adapter of the peft ``model`` with its record and card to ``folder``, which is created.

    ``rows`` are hashes of what it was trained on.
    """
    for config in model.peft_config.values():
        config.base_model_name_or_path = origin.base_path or None
    model.save_pretrained(folder, save_embedding_layers=False)  # "auto" would query the hub for the vocabulary size
    record = json.dumps(dataclasses.asdict(origin), indent=2, sort_keys=True, ensure_ascii=False)
    (folder / RECORD).write_text(record + "\n", encoding="utf-8")
    if rows is not None:
        rows.write(folder)
    (folder / "README.md").write_text(card(origin), encoding="utf-8")


def merge(vlm: "VLM", adapter: Path, folder: Path) -> Path:
    """Write base + adapter as one checkpoint with its processor, which transformers loads without peft.

    ``vlm`` is copied first and does not change.
    """
    import copy

    from peft import PeftModel

    source = folder_of(adapter)
    check_base(source, vlm)
    merged = PeftModel.from_pretrained(copy.deepcopy(vlm.model), source).merge_and_unload()
    merged.save_pretrained(folder)
    vlm.processor.save_pretrained(folder)
    if (rows := read_rows(source)) is not None:
        rows.write(folder)
    return folder


def card(origin: Origin) -> str:
    """Return the card as Markdown."""
    revision = f" (`{origin.base_revision}`)" if origin.base_revision else ", built in memory"
    versions = ", ".join(f"{name} {version}" for name, version in origin.versions.items())
    listed = {name: value for name, value in origin.settings.items() if name != "report_to"}
    settings = "\n".join(f"- {name}: {_listed(value)}" for name, value in listed.items())
    return f"""\
---
base_model: {json.dumps(origin.base_path or origin.base)}
library_name: peft
tags: [lora, vrtuning-style, trl]
---

# VRTuning-style adapter for {origin.base}

LoRA on the language model only; vision tower, projector and output head are the base model's. MMSafeAware
(arXiv 2502.11184) publishes neither the data nor the settings of its VRTuning, so these are ours.

{_loading(origin)}

- Base model: {origin.base}{revision}
- Data: {origin.data or "not described"}; {origin.examples} examples, digest `{origin.data_digest}`
- Training: {origin.steps} optimiser steps, seed {origin.settings.get("seed")}, {origin.processes} process(es)
- Last logged loss: {origin.final_loss:.4f}
- Versions: {versions}

## Settings

{settings}

## Licence and limits

The adapter is a derivative of the base model: the base model's licence applies to it, and so may that of the data. Rows
of MOSSBench and MMSafeAware are refused in training. The adapter changes how a model answers safety questions; it is no
safety guarantee.
"""


def _loading(origin: Origin) -> str:
    """Return the lines of Python that load base and adapter, indented; they read the adapter from ``folder``."""
    if origin.base_path.startswith(ORGANISM):
        note = [f"# {origin.base_path} is bundled with forestlens; AutoPeftModel looks for it on the hub, in vain."]
        base = ["from interp import load", f"base = load({origin.base_path!r}).model"]
    else:
        pinned = origin.base_revision if origin.base_revision and ":" not in origin.base_revision else None
        revision = f", revision={pinned!r}" if pinned else ""
        note = []
        base = [
            "from transformers import AutoModelForImageTextToText",
            f"base = AutoModelForImageTextToText.from_pretrained({(origin.base_path or origin.base)!r}{revision})",
        ]
    lines = [*note, "from peft import PeftModel", *base, "model = PeftModel.from_pretrained(base, folder)"]
    return "\n".join(f"    {line}" for line in lines)


def _listed(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
