"""The tiny LLaVA in parts: its language model in a folder of its own, eyes and an adapter that changes answers."""

import shutil
from pathlib import Path

import torch
from transformers import LlamaForCausalLM

from interp.checkpoints.composed import Base, content_hash, save_parts
from interp.checkpoints.lora import adapted_layers, insert_new
from interp.layout import layout_for
from tests.tiny import Pieces, tiny_llava

RANK, ALPHA = 2, 6.0


def save_base(model: LlamaForCausalLM, folder: Path) -> Base:
    """Saves a language model in bfloat16 and names it by its path."""
    shutil.rmtree(folder, ignore_errors=True)
    model.to(torch.bfloat16).save_pretrained(folder)
    return Base(str(folder), content_hash(folder))


def tiny_parts(folder: Path, base_folder: Path, *, tied: bool = True, seed: int = 0) -> Pieces:
    """Writes the parts to two folders; the model in memory is what they compose to (float32, eval mode).

    Its weights are values of bfloat16, so that saving rounds nothing.
    """
    model, processor = tiny_llava(seed)
    text = model.config.text_config
    text.tie_word_embeddings = model.config.tie_word_embeddings = tied
    if tied:
        model.lm_head.weight = model.model.language_model.embed_tokens.weight
    rounded(model)
    alone = LlamaForCausalLM(text)
    alone.model.load_state_dict(model.model.language_model.state_dict())
    alone.lm_head.weight = alone.model.embed_tokens.weight if tied else torch.nn.Parameter(model.lm_head.weight.clone())
    base = save_base(alone, base_folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed + 1)
        insert_new(model, layout_for(model), rank=RANK, alpha=ALPHA)
        for layer in adapted_layers(model).values():
            torch.nn.init.normal_(layer.lora_B, std=0.3)
    rounded(model)
    save_parts(model, processor, folder, base)
    return Pieces(model.eval(), processor)


@torch.no_grad()
def rounded(model: torch.nn.Module) -> None:
    """Rounds every weight to bfloat16, in place and in its own type."""
    for weight in model.parameters():
        weight.copy_(weight.to(torch.bfloat16))
