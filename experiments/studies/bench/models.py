"""Models with random weights in the shape of real ones, and prompts of a given length for them.

Good for measuring time and memory; what such a model answers or attends to means nothing. torch and transformers are
imported once a model is built: the shapes are named before.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from experiments.studies.bench.processors import stand_in
from interp.prompt import Prompt

if TYPE_CHECKING:
    import torch

    from interp.vlm import VLM


@dataclass(frozen=True)
class Shape:
    """A Llama behind a CLIP tower, by its dimensions; heads are not grouped, as in LLaVA-1.5."""

    width: int
    intermediate: int
    layers: int
    heads: int
    vocabulary: int
    vision_width: int
    vision_layers: int
    vision_heads: int
    image_size: int  # pixels a side
    patch_size: int

    @property
    def image_tokens(self) -> int:
        """Tokens that one image becomes."""
        return (self.image_size // self.patch_size) ** 2


SHAPES = {
    "tiny": Shape(32, 64, 2, 4, 512, 16, 3, 2, image_size=24, patch_size=8),
    # Small beside its language model, so that time spent on the image does not hide what attention costs.
    "cpu": Shape(1024, 2752, 8, 16, 4096, 256, 4, 4, image_size=336, patch_size=14),
    # 170 million parameters and the pictures of the one below, whose prompts take as much of an answer as its do.
    "170m": Shape(1024, 2752, 8, 16, 32064, 256, 4, 4, image_size=336, patch_size=14),
    # LLaVA-1.5-7B: Vicuna and CLIP ViT-L/14 at 336 pixels.
    "7b": Shape(4096, 11008, 32, 32, 32064, 1024, 24, 16, image_size=336, patch_size=14),
}


# Qwen2.5-VL-7B-Instruct's config.json, and what differs in little.
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
SMALL_TEXT: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1024,
    "rope_parameters": {**QWEN_TEXT["rope_parameters"], "mrope_section": [2, 1, 1]},
}
SMALL_VISION: dict[str, Any] = {
    "depth": 2,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_heads": 2,
    "out_hidden_size": 32,
    "fullatt_block_indexes": [1],
}
QWEN_SIDE = 504  # pixels of a side of the picture shown to it
QWEN_TOKENS = (QWEN_SIDE // 28) ** 2  # patches of 14 pixels, merged by two and two
IMAGE_TOKENS = {name: shape.image_tokens for name, shape in SHAPES.items()} | dict.fromkeys(
    ("7b_qwen", "small_qwen"), QWEN_TOKENS
)
"""Tokens of the image, by the size of a model: the shapes above, and Qwen2.5-VL-7B (``small_qwen``: in little)."""


@dataclass(frozen=True)
class DecodingSize:
    """A shape that decoding is timed in, its types, and one generation: prompt (image included) and new tokens.

    ``shape`` is None for Qwen2.5-VL. On a CPU peaks are measured in the first type alone.
    """

    shape: Shape | None
    dtypes: tuple[str, ...]
    prompt_tokens: int
    new_tokens: int


DECODING_SIZES = {
    # The bundled organism's shape, 2.3 million parameters; what a step costs here is Python, not arithmetic.
    "tiny": DecodingSize(Shape(160, 432, 4, 5, 512, 128, 4, 4, image_size=48, patch_size=8), ("float32",), 64, 24),
    # 170 million parameters: a step reads its weights from memory, as on a GPU. A prompt is short, and its image small,
    # for its forward takes most of the time that steps are to be measured in.
    "cpu": DecodingSize(
        Shape(1024, 2752, 8, 16, 32064, 256, 4, 4, image_size=42, patch_size=14), ("bfloat16", "float32"), 28, 8
    ),
    "7b": DecodingSize(SHAPES["7b"], ("bfloat16",), 700, 32),
    "7b_qwen": DecodingSize(None, ("bfloat16",), 1500, 32),
    "small_qwen": DecodingSize(None, ("float32",), QWEN_TOKENS + 24, 6),
}


WORDS = tuple(f"word{number}" for number in range(400))
LONGEST = 2048  # tokens of a prompt with its answer
ORGANISMS = {"tiny": "llava", "smol": "smol"}  # trained, and no shapes with random weights


def llava(shape: Shape) -> Any:
    """The configuration of a LLaVA in that shape."""
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig

    vision = CLIPVisionConfig(
        hidden_size=shape.vision_width,
        intermediate_size=4 * shape.vision_width,
        num_hidden_layers=shape.vision_layers,
        num_attention_heads=shape.vision_heads,
        image_size=shape.image_size,
        patch_size=shape.patch_size,
    )
    text = LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
    )
    return LlavaConfig(vision_config=vision, text_config=text, image_seq_length=shape.image_tokens)


def qwen(text: Mapping[str, Any], vision: Mapping[str, Any]) -> Any:
    """The configuration of Qwen2.5-VL-7B, but for what ``text`` and ``vision`` give."""
    from transformers import Qwen2_5_VLConfig

    return Qwen2_5_VLConfig(text_config={**QWEN_TEXT, **text}, vision_config={**QWEN_VISION, **vision})


def configured(size: str) -> Any:
    """The configuration of a size in ``IMAGE_TOKENS``."""
    if size.endswith("_qwen"):
        return qwen(SMALL_TEXT, SMALL_VISION) if size.startswith("small") else qwen({}, {})
    return llava(SHAPES[size])


def random_model(
    config: Any,
    *,
    device: "torch.device",
    dtype: "torch.dtype",
    seed: int,
    words: Sequence[str] = WORDS,
    longest: int = LONGEST,
) -> "VLM":
    """A model with sdpa attention for prompts of up to ``longest`` tokens; equal seeds give equal weights per device.

    ``words`` are those that it tells apart. It never ends an answer.
    """
    import torch
    from transformers import AutoModelForImageTextToText

    from interp.checkpoints.word_level import SPECIAL
    from interp.vlm import VLM

    config.text_config.max_position_embeddings = longest
    processor = stand_in(config, {}, words=words, longest=longest)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), device:
        torch.manual_seed(seed)
        model = AutoModelForImageTextToText.from_config(config, dtype=dtype, attn_implementation="sdpa")
    vlm = VLM(model.eval(), processor, name=f"random {config.model_type}")
    with torch.no_grad():
        vlm.model.get_submodule(vlm.layout.lm_head).weight[: len(SPECIAL)] = 0
    return vlm


def model_of(size: str, texts: Sequence[str], *, device: str, seed: int) -> "VLM":
    """The model of one size, which tells the words of ``texts`` apart.

    ``small`` and ``small_qwen`` are the two large ones' shapes in little, for tests. On a CPU ``170m`` alone is in
    bfloat16.
    """
    import torch

    from interp.loading import load

    if size in ORGANISMS:
        return load(f"organism:{ORGANISMS[size]}", device=device)
    where = torch.device(device)
    dtype = torch.bfloat16 if where.type == "cuda" or size == "170m" else torch.float32
    config = configured("tiny" if size == "small" else size)
    return random_model(config, device=where, dtype=dtype, seed=seed, words=texts)


def prompt_of(vlm: "VLM", tokens: int, *, seed: int) -> Prompt:
    """A noise image and as many words as make ``tokens`` tokens, template and image included."""
    side = getattr(vlm.model.config.vision_config, "image_size", QWEN_SIDE)
    image = Image.fromarray(np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8))
    short = vlm.encode([Prompt(WORDS[0], image)])["input_ids"].shape[1]
    words = random.Random(seed).choices(WORDS, k=tokens - short + 1)
    return Prompt(" ".join(words), image)
