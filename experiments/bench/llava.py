"""LLaVA models of a given shape with random weights, and prompts of a given length for them.

Good for measuring time and memory; what such a model answers or attends to means nothing.
"""

import random
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from transformers import (
    AutoModelForImageTextToText,
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaProcessor,
)

from experiments.bench.shapes import Shape
from experiments.organism.architecture import CHAT_TEMPLATE, build_tokenizer
from interp.vlm import VLM, Prompt

WORDS = tuple(f"word{number}" for number in range(400))


def build(
    shape: Shape,
    *,
    longest: int,
    device: torch.device,
    dtype: torch.dtype,
    seed: int,
    words: Sequence[str] = WORDS,
) -> VLM:
    """A model with sdpa attention for prompts of up to ``longest`` tokens; equal seeds give equal weights a device.

    ``words`` are those that it tells apart.
    """
    processor = _processor(shape, longest, words)
    config = _config(shape, longest, processor)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), device:
        torch.manual_seed(seed)
        model = AutoModelForImageTextToText.from_config(config, dtype=dtype, attn_implementation="sdpa")
    return VLM(model.eval(), processor, name="random LLaVA")


def prompt_of(vlm: VLM, tokens: int, *, seed: int) -> Prompt:
    """A noise image and as many words as make ``tokens`` tokens, template and image included."""
    side = vlm.model.config.vision_config.image_size
    image = Image.fromarray(np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8))
    short = vlm.encode([Prompt(WORDS[0], image)])["input_ids"].shape[1]
    words = random.Random(seed).choices(WORDS, k=tokens - short + 1)
    return Prompt(" ".join(words), image)


def _processor(shape: Shape, longest: int, words: Sequence[str]) -> LlavaProcessor:
    tokenizer = build_tokenizer([" ".join(words), "USER ASSISTANT :"])
    tokenizer.model_max_length = longest
    side = {"height": shape.image_size, "width": shape.image_size}
    return LlavaProcessor(
        image_processor=CLIPImageProcessorPil(size=side, crop_size=side),
        tokenizer=tokenizer,
        patch_size=shape.patch_size,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,  # CLIP's class token, which "default" drops again
        chat_template=CHAT_TEMPLATE,
    )


def _config(shape: Shape, longest: int, processor: LlavaProcessor) -> LlavaConfig:
    tokenizer = processor.tokenizer
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
        max_position_embeddings=longest,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=processor.image_token_id,
        image_seq_length=shape.image_tokens,
    )
