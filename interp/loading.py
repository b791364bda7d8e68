"""Finds a checkpoint and builds the VLM; the one place a model is read from disk or hub."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from interp.model_config import ModelConfig

if TYPE_CHECKING:
    from interp.vlm import VLM


def load(source: "str | Path | ModelConfig", **overrides: Any) -> "VLM":
    from transformers import AutoModelForImageTextToText, AutoProcessor

    from interp.vlm import VLM

    path = source.path if isinstance(source, ModelConfig) else str(source)
    model = AutoModelForImageTextToText.from_pretrained(path)
    return VLM(model, AutoProcessor.from_pretrained(path))
