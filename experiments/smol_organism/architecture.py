"""A LLaVA with SmolLM2-135M-Instruct inside: the bundled organism's vision tower, a new projector, a LoRA adapter.

No parameter is added to the language model: the image token takes the row of a special token of SmolLM2's that never
occurs in text.
"""

import json
from pathlib import Path
from typing import NamedTuple

import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoTokenizer,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
)

from experiments.model_organism.architecture import build_processor as organism_processor
from interp.checkpoints.composed import SMOLLM2, Base, assembled, content_hash, save_parts
from interp.checkpoints.lora import insert_new
from interp.families import LAYOUTS
from interp.vlm import load

IMAGE_TOKEN = "<image>"
UNUSED = "<reponame>"  # of the code in SmolLM2's first corpus; its own chat never writes it
RANK, ALPHA = 16, 32.0
LLAVA = LAYOUTS["llava"]

# SmolLM2's own form (ChatML) without the system text that it puts before every question; the image before the words.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n"
    "{% for part in message['content'] if part['type'] == 'image' %}<image>\n{% endfor %}"
    "{% for part in message['content'] if part['type'] == 'text' %}{{ part['text'] }}{% endfor %}"
    "<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class Pieces(NamedTuple):
    """What training starts from. ``base`` names the language model's weights, for ``save``."""

    processor: LlavaProcessor
    model: LlavaForConditionalGeneration
    base: Base


def build_tokenizer(base: Path) -> PreTrainedTokenizerFast:
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


def build_processor(base: Path) -> LlavaProcessor:
    """As the first organism's: pictures of 48 × 48, ``<image>`` expanded to 36 tokens; SmolLM2's words and chat."""
    processor = organism_processor(build_tokenizer(base))
    processor.chat_template = CHAT_TEMPLATE
    return processor


def build(base: Path, eyes_from: str | Path = "organism:llava", *, rank: int = RANK, alpha: float = ALPHA) -> Pieces:
    """The untrained organism in float32: SmolLM2 from the folder ``base``, rounded to bfloat16; the vision tower of
    ``eyes_from``; a random projector; an adapter that changes nothing yet.

    Projector and adapter are drawn from the global generator; seed it first. They alone require gradients.
    """
    processor = build_processor(base)
    tokenizer = processor.tokenizer
    seeing = load(eyes_from, device="cpu", dtype="float32").model
    text = AutoConfig.from_pretrained(base, local_files_only=True)
    for name in ("architectures", "_model_name_or_path", "quantization_config"):
        text.__dict__.pop(name, None)
    text.bos_token_id, text.eos_token_id = tokenizer.bos_token_id, tokenizer.eos_token_id
    text.pad_token_id = tokenizer.pad_token_id
    config = LlavaConfig(
        vision_config=seeing.config.vision_config,
        text_config=text,
        image_token_index=tokenizer.convert_tokens_to_ids(IMAGE_TOKEN),
        vision_feature_layer=-1,
        vision_feature_select_strategy="default",
        image_seq_length=seeing.config.image_seq_length,
        tie_word_embeddings=text.tie_word_embeddings,
    )
    model = assembled(config, base, _eyes(config, seeing), torch.float32)
    model.generation_config.bos_token_id = tokenizer.bos_token_id
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.requires_grad_(False)
    insert_new(model, LLAVA, rank=rank, alpha=alpha)
    LLAVA.module(model, "projector").requires_grad_(True)
    return Pieces(processor, model, Base(SMOLLM2, content_hash(base)))


def _eyes(config: LlavaConfig, seeing: LlavaForConditionalGeneration) -> dict[str, Tensor]:
    """The vision tower of ``seeing`` and a new projector, by the names of the whole model."""
    from transformers.models.llava.modeling_llava import LlavaMultiModalProjector

    projector = LlavaMultiModalProjector(config)
    tower = LLAVA.module(seeing, "vision_tower")
    return {f"{LLAVA.vision_tower}.{name}": tensor for name, tensor in tower.state_dict().items()} | {
        f"{LLAVA.projector}.{name}": tensor for name, tensor in projector.state_dict().items()
    }


def save(pieces: Pieces, folder: Path) -> None:
    """Writes all but the language model to ``folder``, in the form that ``interp.load`` composes."""
    save_parts(pieces.model, pieces.processor, folder, pieces.base)
