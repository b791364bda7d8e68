"""A model to plan with: its real architecture without weights, and prompts of a stated length. No network.

Configurations come from the model's folder, from the hub's local cache, or from ``known/`` (the shipped models whose
processors are simple enough to be stood in for). torch and transformers are imported where a model is built.
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from experiments.bench.processors import STAND_INS, stand_in
from interp.checkpoints.config import ORGANISM, ModelConfig
from interp.errors import UserError
from interp.prompt import Prompt

if TYPE_CHECKING:
    import torch

    from interp.vlm import VLM

KNOWN = Path(__file__).parent / "known"
WORD = "word"


@dataclass(frozen=True)
class Blueprint:
    """A model's configuration, where it comes from, and its processor: a real one, or a stand-in.

    A stand-in cuts and resizes pictures as the published one does, and knows words but no tokens.
    """

    config: Any
    processor: Any
    origin: str
    stand_in: bool


@cache
def known() -> dict[str, dict[str, Any]]:
    """Hub id → the shipped configuration."""
    files = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(KNOWN.glob("*.json"))]
    return {file["path"]: file for file in files}


def blueprint(model: ModelConfig) -> Blueprint:
    """What is known of ``model`` here, without asking the hub.

    Raises:
        UserError: neither a folder, nor in the hub's cache, nor among the shipped ones; or a folder that cannot be
            read.
    """
    from interp.checkpoints.hub import Source, find
    from interp.checkpoints.load import read_config, read_processor

    local = model.path.startswith(ORGANISM) or Path(model.path).expanduser().is_dir() or model.path.count("/") != 1
    place = find(model) if local else Source(model.path, model.revision)
    if local or _cached(model):
        config = read_config(place, model)
        try:
            return Blueprint(config, read_processor(place, model), place.path, stand_in=False)
        except UserError:
            if config.model_type not in STAND_INS:
                raise
        return Blueprint(config, _stand_in(config, {}, model), place.path, stand_in=True)
    if model.path not in known():
        raise UserError(
            f"the configuration of {model.path} is not known here; it is for {', '.join(sorted(known()))}; "
            "give a folder with its config.json and processor as model.path, or fetch those once with network"
        )
    from transformers import AutoConfig

    file = known()[model.path]
    given = dict(file["config"])
    config = AutoConfig.for_model(given.pop("model_type"), **given)
    return Blueprint(config, _stand_in(config, file["image_processor"], model), "a configuration shipped here", True)


def _stand_in(config: Any, image: dict[str, Any], model: ModelConfig) -> Any:
    from interp.checkpoints.load import set_bounds

    processor = stand_in(config, image, words=(WORD,), longest=config.get_text_config().max_position_embeddings)
    set_bounds(processor.image_processor, model)
    return processor


def _cached(model: ModelConfig) -> bool:
    from huggingface_hub import try_to_load_from_cache

    names = ("config.json", "tokenizer_config.json")
    return all(isinstance(try_to_load_from_cache(model.path, name, revision=model.revision), str) for name in names)


def build(plan: Blueprint, model: ModelConfig, dtype: "torch.dtype") -> "VLM":
    """The whole model on torch's ``meta`` device, where it takes no memory."""
    import torch
    from transformers import AutoModelForImageTextToText

    from interp.checkpoints.composed import ADAPTER, is_composed
    from interp.checkpoints.lora import insert_new, read_adapter_config
    from interp.layout import layout_for
    from interp.vlm import VLM

    with torch.device("meta"):
        made = AutoModelForImageTextToText.from_config(
            plan.config, dtype=dtype, attn_implementation=model.attn_implementation
        )
        if is_composed(Path(plan.origin)):
            settings = read_adapter_config(Path(plan.origin) / ADAPTER)
            insert_new(made, layout_for(made), rank=settings["r"], alpha=float(settings["lora_alpha"]))
    made.tie_weights()
    return VLM(made.eval(), plan.processor, name=model.name)


@dataclass(frozen=True)
class Asked:
    """The prompts of a plan: words of text in each, and width and height of its picture in pixels."""

    words: int
    width: int
    height: int

    def prompts(self, count: int, *, seed: int = 0) -> list[Prompt]:
        """``count`` questions of equal length about pictures of noise; other seeds give other pictures."""
        return [self._prompt(seed * 10_000 + number) for number in range(count)]

    def _prompt(self, number: int) -> Prompt:
        coarse = np.random.default_rng(number).integers(0, 256, (8, 8, 3), dtype=np.uint8)
        picture = Image.fromarray(coarse).resize((self.width, self.height))
        return Prompt(" ".join([WORD] * self.words), picture, key=f"planned-{number}", shows=f"A {WORD}.")
