"""A model to plan with: its real architecture without weights, and prompts of a stated length. No network.

Configurations come from the model's folder, from the hub's local cache, or from ``known/`` (the shipped models whose
processors are simple enough to be stood in for). torch and transformers are imported where a model is built.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

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
        return Blueprint(config, stand_in(config, {}, model), place.path, stand_in=True)
    if model.path not in known():
        raise UserError(
            f"the configuration of {model.path} is not known here; it is for {', '.join(sorted(known()))}; "
            "give a folder with its config.json and processor as model.path, or fetch those once with network"
        )
    from transformers import AutoConfig

    file = known()[model.path]
    given = dict(file["config"])
    config = AutoConfig.for_model(given.pop("model_type"), **given)
    return Blueprint(config, stand_in(config, file["image_processor"], model), "a configuration shipped here", True)


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
    from interp.families import layout_for
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


def stand_in(config: Any, image: dict[str, Any], model: ModelConfig) -> Any:
    """A processor for ``config`` whose tokenizer knows a few words; sets the ids of its marks in ``config``."""
    from interp.checkpoints.load import set_bounds

    processor = STAND_INS[config.model_type](config, image)
    set_bounds(processor.image_processor, model)
    return processor


def _tokenizer(*marks: str, longest: int) -> Any:
    from experiments.bench.models import CHAT_WORDS
    from interp.checkpoints.word_level import build_tokenizer

    tokenizer = build_tokenizer([CHAT_WORDS, WORD])
    tokenizer.model_max_length = longest
    if marks:
        tokenizer.add_special_tokens({"additional_special_tokens": list(marks)})
    return tokenizer


def _llava(config: Any, image: dict[str, Any]) -> Any:
    import transformers as hf

    from interp.checkpoints.word_level import CHAT_TEMPLATE

    tokenizer = _tokenizer(longest=config.text_config.max_position_embeddings)
    vision = config.vision_config
    side = {"height": vision.image_size, "width": vision.image_size}
    given: dict[str, Any] = image or {"size": side, "crop_size": side}
    many = config.model_type == "llava_next"
    processor = (hf.LlavaNextProcessor if many else hf.LlavaProcessor)(
        image_processor=(hf.LlavaNextImageProcessorPil if many else hf.CLIPImageProcessorPil)(**given),
        tokenizer=tokenizer,
        patch_size=vision.patch_size,
        vision_feature_select_strategy=config.vision_feature_select_strategy,
        num_additional_image_tokens=1,  # CLIP's class token, which "default" drops again
        chat_template=CHAT_TEMPLATE,
    )
    config.image_token_index = config.image_token_id = processor.image_token_id
    _ends(config.text_config, tokenizer)
    return processor


def _qwen(config: Any, image: dict[str, Any]) -> Any:
    import transformers as hf

    from experiments.bench.models import CHATML, MARKS

    kinds = {"qwen2_vl": "Qwen2VL", "qwen2_5_vl": "Qwen2_5_VL", "qwen3_vl": "Qwen3VL"}
    published = getattr(hf, f"{kinds[config.model_type]}Processor")

    def accept(self: Any, name: str, argument: Any) -> Any:
        if name == "video_processor":  # which it insists on, and which needs torchvision
            return None
        return published.check_argument_for_proper_class(self, name, argument)

    without = type("WithoutVideos", (published,), {"check_argument_for_proper_class": accept})
    tokenizer = _tokenizer(*MARKS, longest=config.text_config.max_position_embeddings)
    tokenizer.image_token, tokenizer.video_token = "<|image_pad|>", "<|video_pad|>"
    vision = config.vision_config
    given: dict[str, Any] = {"patch_size": vision.patch_size, "merge_size": vision.spatial_merge_size} | image
    processor = without(
        image_processor=hf.Qwen2VLImageProcessorPil(**given),
        tokenizer=tokenizer,
        video_processor=None,
        chat_template=CHATML,
    )
    ids = {mark: tokenizer.convert_tokens_to_ids(mark) for mark in MARKS}
    config.image_token_id, config.video_token_id = ids["<|image_pad|>"], ids["<|video_pad|>"]
    config.vision_start_token_id, config.vision_end_token_id = ids["<|vision_start|>"], ids["<|vision_end|>"]
    _ends(config.text_config, tokenizer)
    return processor


def _ends(text: Any, tokenizer: Any) -> None:
    text.bos_token_id, text.eos_token_id = tokenizer.bos_token_id, tokenizer.eos_token_id
    text.pad_token_id = tokenizer.pad_token_id


STAND_INS: dict[str, Callable[[Any, dict[str, Any]], Any]] = {
    "llava": _llava,
    "llava_next": _llava,
    "qwen2_vl": _qwen,
    "qwen2_5_vl": _qwen,
    "qwen3_vl": _qwen,
}


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
