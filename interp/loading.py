"""``load``: a checkpoint as a ``VLM``, checked where no contract test has proved a model of its kind."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from interp.checkpoints.config import ModelConfig
from interp.checkpoints.load import read_checkpoint
from interp.proof import check_unknown
from interp.vlm import VLM


def load(
    source: str | Path | ModelConfig,
    *,
    dtype: str | None = None,
    device: str | None = None,
    revision: str | None = None,
    attn_implementation: str | None = None,
    trust_remote_code: bool | None = None,
    chat_template: str | None = None,
    template: dict[str, Any] | None = None,
    check: bool = True,
) -> "VLM":
    """The model at ``source``: ``organism:<name>``, a folder, a hub id, or a ``ModelConfig``.

    The other arguments, where given, replace the fields of ``ModelConfig`` with the same name. Weights are read from
    safetensors only. A model that the contract table does not have is checked in a few forwards, unless ``check`` is
    False: tools that cannot be trusted on it are named, and refuse. ``VLM.revision`` is the hub commit, or for a folder
    a sha256 over its safetensors files.

    Raises:
        UserError: as ``interp.checkpoints.load.read_checkpoint``.
    """
    given = {
        "dtype": dtype,
        "device": device,
        "revision": revision,
        "attn_implementation": attn_implementation,
        "trust_remote_code": trust_remote_code,
        "chat_template": chat_template,
        "template": template,
    }
    config = source if isinstance(source, ModelConfig) else ModelConfig(Path(source).name, str(source))
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    config = replace(config, **changes)
    model, processor, found = read_checkpoint(config)
    vlm = VLM(model, processor, name=config.name, revision=found)
    vlm.thinking = config.thinking
    if check:
        check_unknown(vlm)
    return vlm
