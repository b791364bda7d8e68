"""The two organisms before training: a tiny LLaVA of two million parameters, and one with SmolLM2-135M inside.

The second has the first one's vision tower, a new projector and a LoRA adapter. No parameter is added to its language
model: the image token takes the row of a special token of SmolLM2's that never occurs in text.
"""

import json
from pathlib import Path
from typing import NamedTuple

import torch
from tokenizers import Tokenizer
from transformers import (
    AutoConfig,
    AutoTokenizer,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.llava.modeling_llava import LlavaMultiModalProjector

from experiments.organisms.biased_labels import vocabulary_texts
from interp.checkpoints.composed import SMOLLM2, Base, assembled, content_hash, save_parts
from interp.checkpoints.lora import insert_new
from interp.checkpoints.word_level import CHAT_TEMPLATE, build_tokenizer
from interp.layout import layout_for
from interp.loading import load

IMAGE_SIZE = 48
PATCH_SIZE = 8
IMAGE_TOKEN = "<image>"
UNUSED = "<reponame>"  # of the code in SmolLM2's first corpus; its own chat never writes it
RANK = 16

# SmolLM2's own form (ChatML) without the system text that it puts before every question; the image before the words.
CHATML = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n"
    "{% for part in message['content'] if part['type'] == 'image' %}<image>\n{% endfor %}"
    "{% for part in message['content'] if part['type'] == 'text' %}{{ part['text'] }}{% endfor %}"
    "<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class Pieces(NamedTuple):
    """A model under training with its processor. ``base`` names the language model's weights where they stay apart."""

    processor: LlavaProcessor
    model: LlavaForConditionalGeneration
    base: Base | None = None

    def save(self, folder: Path) -> None:
        """Writes the checkpoint in bfloat16; of a model with a ``base`` all but the language model, as parts."""
        if self.base is not None:
            save_parts(self.model, self.processor, folder, self.base)
            return
        self.model.bfloat16().save_pretrained(folder)
        self.processor.save_pretrained(folder)


def _processor(tokenizer: PreTrainedTokenizerFast, chat_template: str) -> LlavaProcessor:
    """Resizes pictures to 48 × 48, expands ``<image>`` to 36 tokens, and carries the chat template."""
    side = {"height": IMAGE_SIZE, "width": IMAGE_SIZE}
    image_processor = CLIPImageProcessorPil(
        size=side, crop_size=side, do_center_crop=False, image_mean=[0.5] * 3, image_std=[0.5] * 3
    )
    return LlavaProcessor(
        image_processor=image_processor,
        tokenizer=tokenizer,
        patch_size=PATCH_SIZE,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=chat_template,
    )


def _config(vision: CLIPVisionConfig, text: LlamaConfig, tokenizer: PreTrainedTokenizerFast) -> LlavaConfig:
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        setattr(text, name, getattr(tokenizer, name))
    return LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=tokenizer.get_vocab()[IMAGE_TOKEN],
        vision_feature_layer=-1,
        vision_feature_select_strategy="default",
        image_seq_length=(IMAGE_SIZE // PATCH_SIZE) ** 2,
        tie_word_embeddings=text.tie_word_embeddings,
    )


def _with_ends(model: LlavaForConditionalGeneration, tokenizer: PreTrainedTokenizerFast) -> None:
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        setattr(model.generation_config, name, getattr(tokenizer, name))


def build_llava() -> Pieces:
    """The first organism with random weights from the global generator; seed it first."""
    tokenizer = build_tokenizer(vocabulary_texts())
    vision = CLIPVisionConfig(
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        image_size=IMAGE_SIZE,
        patch_size=PATCH_SIZE,
    )
    text = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=160,
        intermediate_size=432,
        num_hidden_layers=4,
        num_attention_heads=5,
        num_key_value_heads=5,
        max_position_embeddings=512,
        tie_word_embeddings=False,
    )
    model = LlavaForConditionalGeneration(_config(vision, text, tokenizer))
    _with_ends(model, tokenizer)
    return Pieces(_processor(tokenizer, CHAT_TEMPLATE), model)


def smol_tokenizer(base: Path) -> PreTrainedTokenizerFast:
    """The tokenizer of SmolLM2 in ``base``, with ``<image>`` in place of a special token that text never holds."""
    own = AutoTokenizer.from_pretrained(base, local_files_only=True)
    state = json.loads(own.backend_tokenizer.to_str())
    vocabulary = state["model"]["vocab"]
    row = vocabulary.pop(UNUSED)
    vocabulary[IMAGE_TOKEN] = row
    for added in state["added_tokens"]:
        if added["id"] == row:
            added["content"] = IMAGE_TOKEN
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(state)),
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        unk_token="<|endoftext|>",
        additional_special_tokens=[IMAGE_TOKEN],
        padding_side="left",
        model_max_length=8192,
    )


def build_smol(base: Path, eyes_from: str | Path = "organism:llava", *, rank: int = RANK) -> Pieces:
    """The second organism in float32: SmolLM2 from the folder ``base``, rounded to bfloat16; the vision tower of
    ``eyes_from``; a random projector; an adapter that changes nothing yet, with alpha twice the ``rank``.

    Projector and adapter are drawn from the global generator; seed it first. They alone require gradients.
    """
    tokenizer = smol_tokenizer(base)
    seeing = load(eyes_from, device="cpu", dtype="float32").model
    text = AutoConfig.from_pretrained(base, local_files_only=True)
    for name in ("architectures", "_model_name_or_path", "quantization_config"):
        text.__dict__.pop(name, None)
    config = _config(seeing.config.vision_config, text, tokenizer)
    layout = layout_for(seeing)
    tower = layout.module(seeing, "vision_tower").state_dict()
    projector = LlavaMultiModalProjector(config).state_dict()
    eyes = {f"{layout.vision_tower}.{name}": tensor for name, tensor in tower.items()}
    eyes |= {f"{layout.projector}.{name}": tensor for name, tensor in projector.items()}
    model = assembled(config, base, eyes, torch.float32)
    _with_ends(model, tokenizer)
    model.requires_grad_(False)
    insert_new(model, layout, rank=rank, alpha=2.0 * rank)
    layout.module(model, "projector").requires_grad_(True)
    return Pieces(_processor(tokenizer, CHATML), model, Base(SMOLLM2, content_hash(base)))
