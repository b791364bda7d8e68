"""A model to plan with: its real architecture without weights, and its processor. No network.

Configurations come from the model's folder, from the hub's local cache, or from ``known/`` (shipped models whose
processors are simple enough to be stood in for). torch and transformers are imported where a model is built.
"""

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from experiments.studies.bench.processors import STAND_INS, stand_in
from interp.checkpoints.config import ORGANISM, ModelConfig
from interp.errors import UserError

if TYPE_CHECKING:
    import torch

    from interp.vlm import VLM

KNOWN = Path(__file__).parent / "known"
WEIGHTS = ("model.safetensors", "model.safetensors.index.json")


class Outline(NamedTuple):
    """A model on torch's ``meta`` device, where its configuration comes from, and whether its processor is a stand-in.

    A stand-in cuts and resizes pictures as the published one does; its tokenizer makes one token of each word.
    """

    vlm: "VLM"
    origin: str
    stand_in: bool


@cache
def known() -> dict[str, dict[str, Any]]:
    """Hub id → the shipped configuration."""
    files = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(KNOWN.glob("*.json"))]
    return {file["path"]: file for file in files}


def outline(model: ModelConfig, dtype: "torch.dtype") -> Outline:
    """The whole model without weights, by what is known of it here.

    Raises:
        UserError: neither a folder, nor in the hub's cache, nor among the shipped ones; or a folder that cannot be
            read.
    """
    import torch
    from transformers import AutoModelForImageTextToText

    from interp.vlm import VLM

    config, processor, origin, made_up = _described(model)
    with torch.device("meta"):
        made = AutoModelForImageTextToText.from_config(
            config,
            dtype=dtype,
            attn_implementation=model.attn_implementation,
            trust_remote_code=model.trust_remote_code,
        )
    made.tie_weights()
    return Outline(VLM(made.eval(), processor, name=model.name), origin, made_up)


def at_hand(model: ModelConfig) -> bool:
    """Whether the model's weights are on this machine."""
    if model.path.startswith(ORGANISM):
        return True
    folder = Path(model.path).expanduser()
    return any(folder.glob("*.safetensors")) if folder.is_dir() else any(_cached(model, name) for name in WEIGHTS)


def _described(model: ModelConfig) -> tuple[Any, Any, str, bool]:
    """Configuration, processor, where the former comes from, and whether the latter is a stand-in."""
    from interp.checkpoints.hub import Source, find
    from interp.checkpoints.load import read_config, read_processor

    local = model.path.startswith(ORGANISM) or Path(model.path).expanduser().is_dir() or model.path.count("/") != 1
    if local or (_cached(model, "config.json") and _cached(model, "tokenizer_config.json")):
        place = find(model) if local else Source(model.path, model.revision)
        config = read_config(place, model)
        try:
            return config, read_processor(place, model), place.path, False
        except UserError:
            if config.model_type not in STAND_INS:
                raise
        return config, _stand_in(config, {}, model), place.path, True
    if model.path not in known():
        raise UserError(
            f"the configuration of {model.path} is not known here; it is for {', '.join(sorted(known()))}; "
            "give a folder with its config.json and processor as model.path, or fetch those once with network"
        )
    from transformers import AutoConfig

    file = known()[model.path]
    given = dict(file["config"])
    config = AutoConfig.for_model(given.pop("model_type"), **given)
    return config, _stand_in(config, file["image_processor"], model), "one that is shipped here", True


def _stand_in(config: Any, image: dict[str, Any], model: ModelConfig) -> Any:
    from interp.checkpoints.load import set_bounds

    processor = stand_in(config, image, words=(), longest=config.get_text_config().max_position_embeddings)
    set_bounds(processor.image_processor, model)
    return processor


def _cached(model: ModelConfig, name: str) -> bool:
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(model.path, name, revision=model.revision), str)
