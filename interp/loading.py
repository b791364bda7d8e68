"""``load``: a checkpoint as a ``VLM``, checked if the contract table has no model of its kind."""

import json
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from interp.checkpoints.config import ModelConfig
from interp.checkpoints.load import read_checkpoint
from interp.selfcheck import QUICK, prove
from interp.vlm import VLM

CONTRACT = Path(__file__).with_name("contract.json")


def load(source: str | Path | ModelConfig, *, check: bool = True, **changes: Any) -> "VLM":
    """Load the model at ``source``: ``organism:<name>``, a folder, a hub id, or a ``ModelConfig``.

    ``changes`` replace fields of ``ModelConfig``, such as ``dtype``, ``device``, ``revision`` and ``chat_template``;
    None leaves the field as it is. Weights are read from safetensors only. ``check`` notes the tools that cannot be
    trusted on the model (``refuse_untrusted``). ``VLM.revision`` is the hub commit, or for a folder a sha256 over its
    safetensors files.

    Raises:
        UserError: as ``interp.checkpoints.load.read_checkpoint``.
    """
    config = source if isinstance(source, ModelConfig) else ModelConfig(Path(source).name, str(source))
    config = replace(config, **{name: value for name, value in changes.items() if value is not None})
    model, processor, commit = read_checkpoint(config)
    vlm = VLM(model, processor, name=config.name, revision=commit)
    vlm.thinking = config.thinking
    if check:
        refuse_untrusted(vlm)
    return vlm


def refuse_untrusted(vlm: "VLM") -> None:
    """Note in ``vlm.refused`` which tools cannot be trusted, and name them on stderr.

    The contract table says so, if it has a model of these types and was made with this version of transformers.
    Otherwise the quick checks do, and the check of conversations.
    """
    table = json.loads(CONTRACT.read_text(encoding="utf-8"))
    rows = table["families"].values() if table["transformers"] == version("transformers") else ()
    row = next((row for row in rows if row["types"] == types_of(vlm.model)), None)
    tools = prove(vlm, checks=(*QUICK, "conversation")).tools if row is None else row["refused"]
    vlm.refused = {tool: why for tool, why in tools.items() if why}
    for tool, why in vlm.refused.items():
        print(f"warning: {tool} is refused on {vlm.name}: {why}", file=sys.stderr)


def types_of(model: Any) -> list[str]:
    """Return what a check of one model says of another: the types of model, text, vision tower and layers."""
    text, vision = model.config.get_text_config(), getattr(model.config, "vision_config", None)
    parts = (getattr(part, "model_type", "") for part in (text, vision))
    return [model.config.model_type, *parts, *sorted(set(getattr(text, "layer_types", None) or ()))]
