"""Models without trained weights: published configurations, stand-ins for their processors, and prompts for them.

Good for time and memory. Its answers mean nothing. torch and transformers are imported when a model is
built.
"""

import json
import random
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from interp.checkpoints.config import ORGANISM, ORGANISMS
from interp.prompt import Prompt

if TYPE_CHECKING:
    from interp.vlm import VLM

LLAVA, QWEN = "llava-hf/llava-1.5-7b-hf", "Qwen/Qwen2.5-VL-7B-Instruct"
WORDS = tuple(f"word{number}" for number in range(400))
LONGEST = 4096  # tokens of a prompt with its answer
SIDE = 504  # pixels of a picture for a model that takes any size
ORGANISM_SIZE = "organism"  # the bundled model, with its trained weights
CPU_TEXT = {"hidden_size": 1024, "intermediate_size": 2752, "num_hidden_layers": 8, "num_attention_heads": 16}
CPU_VISION = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 4}
SIZES: dict[str, tuple[str, dict[str, int], dict[str, int]]] = {  # published model, what differs in text and vision
    # 170 million parameters: a step reads its weights from memory, as on a GPU. Its picture has few tokens.
    "cpu": (LLAVA, {**CPU_TEXT, "num_key_value_heads": 16}, {**CPU_VISION, "image_size": 42}),
    "7b": (LLAVA, {}, {}),
    "7b_qwen": (QWEN, {}, {}),
}
CHAT_WORDS = "Yes No yes no USER ASSISTANT user assistant system . , : ? !"
MARKS = ("<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% for part in m['content'] %}{% if part['type'] == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@cache
def shipped() -> dict[str, dict[str, Any]]:
    """Map hub ids to the shipped configurations."""
    files = [
        json.loads(path.read_text(encoding="utf-8"))
        for path in sorted((Path(__file__).parent / "known").glob("*.json"))
    ]
    return {file["path"]: file for file in files}


def configured(path: str, text: Mapping[str, Any], vision: Mapping[str, Any]) -> Any:
    """Return a shipped configuration with changes of its ``text`` and ``vision`` parts."""
    from transformers import AutoConfig

    given = dict(shipped()[path]["config"])
    parts = {"text_config": {**given["text_config"], **text}, "vision_config": {**given["vision_config"], **vision}}
    return AutoConfig.for_model(given.pop("model_type"), **given | parts)


def stand_in(config: Any, image: Mapping[str, Any], *, words: Sequence[str], longest: int) -> Any:
    """Return a processor for ``config`` that cuts pictures as the published one, with one token for each of ``words``.

    ``image`` are settings of the image processor. The ids of the special tokens are set in ``config``.
    """
    import transformers as hf

    tokenizer: Any = hf.AutoTokenizer.from_pretrained(ORGANISMS / "llava")  # word by word
    tokenizer.add_tokens([hf.AddedToken(word, single_word=True) for word in (*CHAT_WORDS.split(), *words)])
    tokenizer.model_max_length = longest
    vision, text, kind = config.vision_config, config.text_config, config.model_type
    text.bos_token_id, text.eos_token_id = tokenizer.bos_token_id, tokenizer.eos_token_id
    text.pad_token_id = tokenizer.pad_token_id
    if kind.startswith("llava"):
        side = {"height": vision.image_size, "width": vision.image_size}
        names = ("LlavaNext", "LlavaNext") if kind == "llava_next" else ("Llava", "CLIP")
        processor = getattr(hf, f"{names[0]}Processor")(
            image_processor=getattr(hf, f"{names[1]}ImageProcessorPil")(**image or {"size": side, "crop_size": side}),
            tokenizer=tokenizer,
            patch_size=vision.patch_size,
            vision_feature_select_strategy=config.vision_feature_select_strategy,
            num_additional_image_tokens=1,  # CLIP's class token, which "default" drops again
            chat_template=tokenizer.chat_template,
        )
        config.image_token_index = config.image_token_id = processor.image_token_id
        return processor
    name = {"qwen2_vl": "Qwen2VL", "qwen2_5_vl": "Qwen2_5_VL", "qwen3_vl": "Qwen3VL"}[kind]
    published = getattr(hf, f"{name}Processor")

    def accept(self: Any, part: str, argument: Any) -> Any:  # the video processor needs torchvision
        return None if part == "video_processor" else published.check_argument_for_proper_class(self, part, argument)

    tokenizer.add_special_tokens({"additional_special_tokens": list(MARKS)})
    tokenizer.image_token, tokenizer.video_token = MARKS[-2:]
    _, _, config.vision_start_token_id, config.vision_end_token_id, config.image_token_id, config.video_token_id = (
        tokenizer.convert_tokens_to_ids(list(MARKS))
    )
    settings = {"patch_size": vision.patch_size, "merge_size": vision.spatial_merge_size, **image}
    pictures = hf.Qwen2VLImageProcessorPil(**settings)
    without = type("WithoutVideos", (published,), {"check_argument_for_proper_class": accept})
    return without(image_processor=pictures, tokenizer=tokenizer, video_processor=None, chat_template=CHATML)


def built(config: Any, processor: Any, device: Any, dtype: Any, *, name: str, seed: int = 0, **options: Any) -> "VLM":
    """Return a model with random weights; on the device ``meta`` without weights. Equal seeds give equal weights."""
    import torch
    from transformers import AutoModelForImageTextToText

    from interp.vlm import VLM

    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), device:
        torch.manual_seed(seed)
        model = AutoModelForImageTextToText.from_config(config, dtype=dtype, **options)
    model.tie_weights()
    return VLM(model.eval(), processor, name=name)


def random_model(config: Any, *, device: Any, dtype: Any, seed: int, words: Sequence[str] = WORDS) -> "VLM":
    """Return a model that tells ``words`` apart and never ends an answer."""
    import torch

    config.text_config.max_position_embeddings = LONGEST
    processor = stand_in(config, {}, words=words, longest=LONGEST)
    vlm = built(config, processor, device, dtype, name=config.model_type, seed=seed, attn_implementation="sdpa")
    with torch.no_grad():
        vlm.model.get_submodule(vlm.module_map.lm_head).weight[processor.tokenizer.all_special_ids] = 0
    return vlm


def model_of(size: str, device: str, seed: int, words: Sequence[str] = WORDS) -> "VLM":
    """Return the model of ``size``: in float32 on a CPU, in bfloat16 on a GPU."""
    import torch

    from interp.loading import load

    if size == ORGANISM_SIZE:
        return load(f"{ORGANISM}llava", device=device)
    target = torch.device(device)
    dtype = torch.float32 if target.type == "cpu" else torch.bfloat16
    return random_model(configured(*SIZES[size]), device=target, dtype=dtype, seed=seed, words=words)


def prompt_of(vlm: "VLM", tokens: int, *, seed: int) -> Prompt:
    """Return a prompt of ``tokens`` tokens: a noise picture, random words and the template."""
    side = getattr(vlm.model.config.vision_config, "image_size", SIDE)
    image = Image.fromarray(np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8))
    short = vlm.encode([Prompt(WORDS[0], image)])["input_ids"].shape[1]
    words = random.Random(seed).choices(WORDS, k=tokens - short + 1)
    return Prompt(" ".join(words), image)
