"""The models that answering is timed on: the bundled organism, or random weights in the shape of a real one."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import (
    AutoModelForImageTextToText,
    Qwen2_5_VLConfig,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessorPil,
)

from experiments.bench.llava import build
from experiments.bench.shapes import SHAPES
from experiments.organism.architecture import SPECIAL, build_tokenizer
from interp.vlm import VLM, load

LONGEST = 2048  # tokens of a prompt with its answer
WORDS = "Yes No yes no USER ASSISTANT user assistant system . , : ? !"
MARKS = ("<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% for part in m['content'] %}{% if part['type'] == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Qwen2.5-VL-7B-Instruct's config.json.
QWEN_TEXT: dict[str, Any] = {
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "rope_parameters": {"rope_type": "default", "mrope_section": [16, 24, 24], "rope_theta": 1e6},
}
QWEN_VISION: dict[str, Any] = {
    "depth": 32,
    "hidden_size": 1280,
    "intermediate_size": 3420,
    "num_heads": 16,
    "out_hidden_size": 3584,
    "patch_size": 14,
    "window_size": 112,
    "fullatt_block_indexes": [7, 15, 23, 31],
}


def model_of(size: str, texts: Sequence[str], *, device: str, seed: int) -> VLM:
    """The model of one size, which tells the words of ``texts`` apart; never ends an answer where weights are random.

    ``small`` and ``small_qwen`` are the two large ones' shapes in little, for tests.
    """
    if size == "tiny":
        return load("organism:llava", device=device)
    where = torch.device(device)
    dtype = torch.bfloat16 if where.type == "cuda" else torch.float32
    if size.endswith("_qwen"):
        vlm = _qwen(texts, where, dtype, seed, small=size.startswith("small"))
    else:
        shape = SHAPES["tiny" if size == "small" else size]
        words = [" ".join((WORDS, *texts))]
        vlm = build(shape, longest=LONGEST, device=where, dtype=dtype, seed=seed, words=words)
    with torch.no_grad():
        vlm.model.get_submodule(vlm.layout.lm_head).weight[: len(SPECIAL)] = 0
    return vlm


class _Pictures(Qwen2_5_VLProcessor):
    """Without videos, whose processor needs torchvision."""

    def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
        """As the base class, but for videos."""
        return (
            None
            if argument_name == "video_processor"
            else super().check_argument_for_proper_class(argument_name, argument)
        )


def _qwen(texts: Sequence[str], device: torch.device, dtype: torch.dtype, seed: int, *, small: bool) -> VLM:
    tokenizer: Any = build_tokenizer([WORDS, *texts])
    tokenizer.model_max_length = LONGEST
    tokenizer.add_special_tokens({"additional_special_tokens": list(MARKS)})
    tokenizer.image_token, tokenizer.video_token = "<|image_pad|>", "<|video_pad|>"
    processor = _Pictures(
        image_processor=Qwen2VLImageProcessorPil(), tokenizer=tokenizer, video_processor=None, chat_template=CHATML
    )
    ids = {mark: tokenizer.convert_tokens_to_ids(mark) for mark in MARKS}
    text, vision = QWEN_TEXT, QWEN_VISION
    if small:
        rope = {**text["rope_parameters"], "mrope_section": [2, 1, 1]}
        few = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
        text = {**text, **few, "num_key_value_heads": 2, "vocab_size": len(tokenizer), "rope_parameters": rope}
        less = {"depth": 2, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 32}
        vision = {**vision, **less, "fullatt_block_indexes": [1]}
    special = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = Qwen2_5_VLConfig(
        text_config=text | special,
        vision_config=vision,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
    )
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), device:
        torch.manual_seed(seed)
        model = AutoModelForImageTextToText.from_config(config, dtype=dtype, attn_implementation="sdpa")
    return VLM(model.eval(), processor, name="random Qwen2.5-VL")
