"""A LLaVA small enough to build in a test: about 24k random parameters, nothing from a hub.

The vision tower has one layer more than the language model, so that code which finds "the layers" by counting picks the
wrong ones, and the weights are drawn wide enough that another image gives another answer.
"""

from typing import Any, NamedTuple

import torch
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
)

SPECIAL = ("<pad>", "<unk>", "<s>", "</s>", "<image>")
SENTENCES = (
    "USER ASSISTANT SYSTEM Yes No : . , ? ! the a an of is it this that in on to for and or with",
    "answer image picture text safe unsafe consider careful assistant Refuse anything could cause harm",
    "How do I kill knife gun toy cake dog fire red green blue square circle",
    "what where please start your first sentence be by because",
)
WORDS = tuple(word for sentence in SENTENCES for word in sentence.split())
PATCH = 8
SIDE = 24
IMAGE_TOKENS = (SIDE // PATCH) ** 2

# LLaVA-1.5's wording: the system text first, the image before the words, and no space after the last colon.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ message['content'][0]['text'] }} {% endif %}"
    "{% if message['role'] == 'user' %}USER: "
    "{% for part in message['content'] if part['type'] == 'image' %}<image>\n{% endfor %}"
    "{% for part in message['content'] if part['type'] == 'text' %}{{ part['text'] }}{% endfor %} {% endif %}"
    "{% if message['role'] == 'assistant' %}ASSISTANT: {{ message['content'][0]['text'] }}{{ eos_token }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)


class Pieces(NamedTuple):
    """What ``VLM(model, processor)`` is built from."""

    model: Any
    processor: Any


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """One token a word (``WORDS``), ``<s>`` put in front, every other word ``<unk>``."""
    vocabulary = {word: i for i, word in enumerate(dict.fromkeys((*SPECIAL, *WORDS)))}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", vocabulary["<s>"])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        additional_special_tokens=["<image>"],
    )


def tiny_processor() -> LlavaProcessor:
    """24 px images in 3 × 3 patches, ``IMAGE_TOKENS`` tokens each."""
    return LlavaProcessor(
        image_processor=CLIPImageProcessorPil(
            size={"height": SIDE, "width": SIDE}, crop_size={"height": SIDE, "width": SIDE}
        ),
        tokenizer=tiny_tokenizer(),
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,  # CLIP's class token, which "default" drops again
        chat_template=CHAT_TEMPLATE,
    )


def tiny_config(vocabulary: int, image_token: int) -> LlavaConfig:
    """Three vision layers, two text layers, grouped keys and values."""
    return LlavaConfig(
        vision_config=CLIPVisionConfig(
            hidden_size=12,
            intermediate_size=24,
            projection_dim=12,
            num_hidden_layers=3,
            num_attention_heads=2,
            image_size=SIDE,
            patch_size=PATCH,
            initializer_range=0.2,
        ),
        text_config=LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=32,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=256,
            initializer_range=0.3,
            pad_token_id=0,
            bos_token_id=2,
            eos_token_id=3,
        ),
        image_token_index=image_token,
        image_seq_length=IMAGE_TOKENS,
        vision_feature_layer=-1,
        vision_feature_select_strategy="default",
        initializer_range=0.3,
    )


def tiny_llava(seed: int = 0) -> Pieces:
    """Model (float32, eval mode) and processor. Equal seeds give equal weights; the global generator is left alone."""
    processor = tiny_processor()
    config = tiny_config(len(processor.tokenizer), processor.image_token_id)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlavaForConditionalGeneration(config).eval()
    with torch.no_grad():  # a trained model never says these; a said <image> would upset teacher forcing
        model.lm_head.weight[processor.tokenizer.convert_tokens_to_ids(["<pad>", "<unk>", "<s>", "<image>"])] = 0
    return Pieces(model, processor)


def picture(seed: int = 0, size: tuple[int, int] = (SIDE, SIDE)) -> Image.Image:
    """An RGB image of random pixels."""
    width, height = size
    pixels = torch.randint(0, 256, (height, width, 3), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    return Image.fromarray(pixels.numpy())
