"""One small random model of every family in ``interp/families.py``, with its real processor class, built in memory.

Vision towers have one layer more than the language model (3 against 2), so code that counts layers picks the wrong
ones. Keys and values are grouped; gemma3, ``llava_mistral`` and ``paligemma2`` have sliding windows; ``paligemma2``
soft-caps its attention logits. ``tests/family_parts.py`` says what is not the real thing.
"""

from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import Any

import pytest
import transformers as hf
from transformers.models.idefics.image_processing_pil_idefics import IdeficsImageProcessorPil
from transformers.models.mllama.image_processing_pil_mllama import MllamaImageProcessorPil

from tests.family_parts import (
    CHATML,
    HEADERS,
    IMAGE_THEN_WORDS,
    INST,
    PATCH,
    TEXT,
    TURNS,
    USER_COLON,
    USER_PICTURE,
    VISION,
    WORDS_ALONE,
    bpe,
    build,
    image_part_alone,
)
from tests.tiny import Pieces, tiny_config, tiny_llava, tiny_processor

SQUARE = {"height": 32, "width": 32}


def llava(seed: int = 0) -> Pieces:
    """LLaVA-1.5: Llama, 3 × 3 patches."""
    return tiny_llava(seed)


def llava_mistral(seed: int = 0) -> Pieces:
    """LLaVA over a Mistral with a sliding window of 12 tokens, shorter than any prompt."""
    processor = tiny_processor()
    config = tiny_config(len(processor.tokenizer), processor.image_token_id)
    special = {"vocab_size": len(processor.tokenizer), "bos_token_id": 2, "eos_token_id": 3}
    config.text_config = hf.MistralConfig(**TEXT | special | {"head_dim": 8}, sliding_window=12)
    pieces = build(hf.LlavaForConditionalGeneration, config, processor, seed=seed)
    pieces.model.generation_config.eos_token_id = 3
    return pieces


def _processor(kind: str, image: Any, tokenizer: Any, template: str, **settings: Any) -> Any:
    """Return the family's processor; one without its video part is accepted."""
    with image_part_alone():
        processor = getattr(hf, f"{kind}Processor")(image_processor=image, tokenizer=tokenizer, **settings)
    processor.chat_template = template
    return processor


def _pieces(kind: str, processor: Any, seed: int, *, attention: str = "sdpa", **settings: Any) -> Pieces:
    """Return the family's model with these settings of its configuration."""
    config = getattr(hf, f"{kind}Config")(**settings)
    return build(getattr(hf, f"{kind}ForConditionalGeneration"), config, processor, seed=seed, attention=attention)


def _llama(tokenizer: Any) -> Any:
    return hf.LlamaConfig(**TEXT, vocab_size=len(tokenizer))


def llava_next(seed: int = 0) -> Pieces:
    """A base grid of 3 × 3 and up to 2 × 2 (or 1 × 3, 3 × 1) tiles of 24 px, with newline columns."""
    tokenizer, grid = bpe("<image>", image_token="<image>"), {"image_grid_pinpoints": [[48, 48], [24, 72], [72, 24]]}
    crop = {"size": {"shortest_edge": 24}, "crop_size": {"height": 24, "width": 24}}
    settings = {"patch_size": PATCH, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    processor = _processor("LlavaNext", hf.LlavaNextImageProcessorPil(**crop, **grid), tokenizer, INST, **settings)
    parts = {"vision_config": hf.CLIPVisionConfig(**VISION | {"image_size": 24}), "text_config": _llama(tokenizer)}
    ids = {"image_token_index": processor.image_token_id, "vision_feature_layer": -1}
    return _pieces("LlavaNext", processor, seed, **parts, **ids, **grid)


def _qwen(kind: str, vision: dict[str, Any], text: dict[str, Any], seed: int) -> Pieces:
    """The parts that the three Qwen families share: ChatML, 16 px merged patches, M-RoPE."""
    marks = ("<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
    tokenizer = bpe(*marks, byte_level=True, image_token="<|image_pad|>", video_token="<|video_pad|>")
    size = {"shortest_edge": 32 * 32, "longest_edge": 64 * 64}
    template = CHATML.replace("IMAGE", "<|vision_start|><|image_pad|><|vision_end|>")
    image = hf.Qwen2VLImageProcessorPil(patch_size=PATCH, size=size)
    processor = _processor(kind, image, tokenizer, template, video_processor=None)
    names = ("vision_start_token_id", "vision_end_token_id", "image_token_id", "video_token_id")
    ids = dict(zip(names, tokenizer.convert_tokens_to_ids(list(marks[2:])), strict=True))
    rope = {"rope_type": "default", "mrope_section": [2, 1, 1], "rope_theta": 1e4}
    parts = {
        "vision_config": {"depth": 3, "num_heads": 2, "patch_size": PATCH, **vision},
        "text_config": {**TEXT, "vocab_size": len(tokenizer), "rope_parameters": rope, **text},
    }
    return _pieces(kind, processor, seed, **parts, **ids)


def qwen2_vl(seed: int = 0) -> Pieces:
    """Qwen2-VL."""
    return _qwen("Qwen2VL", {"embed_dim": 16, "hidden_size": 32}, {}, seed)


def qwen2_5_vl(seed: int = 0) -> Pieces:
    """Qwen2.5-VL; windowed vision attention, whose tokens are put back in order at the end."""
    vision = {"hidden_size": 16, "out_hidden_size": 32, "intermediate_size": 16, "window_size": 32}
    return _qwen("Qwen2_5_VL", vision | {"fullatt_block_indexes": [2]}, {}, seed)


def qwen3_vl(seed: int = 0) -> Pieces:
    """Qwen3-VL with one DeepStack layer."""
    vision = {"hidden_size": 16, "out_hidden_size": 32, "intermediate_size": 16, "num_position_embeddings": 64}
    return _qwen("Qwen3VL", vision | {"deepstack_visual_indexes": [1]}, {"head_dim": 8}, seed)


def instructblip(seed: int = 0) -> Pieces:
    """InstructBLIP over a Llama (Vicuna): 4 queries, put before BOS."""
    tokenizer, questions = bpe("<image>", bos=True), bpe(bos=True)
    settings = {"qformer_tokenizer": questions, "num_query_tokens": 4}
    processor = _processor("InstructBlip", hf.BlipImageProcessorPil(size=SQUARE), tokenizer, WORDS_ALONE, **settings)
    qformer = {name: VISION[name] for name in ("hidden_size", "intermediate_size", "num_attention_heads")}
    qformer |= {"vocab_size": len(questions), "num_hidden_layers": 2, "cross_attention_frequency": 1}
    parts = {"vision_config": VISION, "qformer_config": qformer, "text_config": _llama(tokenizer).to_dict()}
    ids = {"num_query_tokens": 4, "image_token_index": tokenizer.convert_tokens_to_ids("<image>")}
    pieces = _pieces("InstructBlip", processor, seed, **parts, **ids)
    for module in (pieces.model, pieces.model.language_model):
        module.generation_config.eos_token_id = 1  # as on the hub, where it is the begin token; the end is 2
    return pieces


def _idefics(kind: str, names: tuple[str, ...], seed: int, **settings: Any) -> Pieces:
    """Tiles of 32 px in 2 × 2 pixel-shuffled tokens, at most 2 × 2 of them, then the whole picture."""
    marks = ("<fake_token_around_image>", "<image>", "<end_of_utterance>", *names)
    tokenizer = bpe(*marks, byte_level=True, image_token="<image>")
    sizes = {"size": {"longest_edge": 64}, "max_image_size": {"longest_edge": 32}}
    image = getattr(hf, f"{kind}ImageProcessorPil")(**sizes)
    processor = _processor(kind, image, tokenizer, USER_COLON, image_seq_len=4, **settings)
    vision = VISION | {"model_type": f"{kind.lower()}_vision"}
    parts = {"vision_config": vision, "text_config": _llama(tokenizer).to_dict()}
    ids = {"image_token_id": tokenizer.convert_tokens_to_ids("<image>"), "scale_factor": 2, "pad_token_id": 0}
    return _pieces(kind, processor, seed, **parts, **ids)


def idefics3(seed: int = 0) -> Pieces:
    """Idefics3-8B has no tokens for rows, columns and the whole picture: it spells them out."""
    return _idefics("Idefics3", (), seed)


def smolvlm(seed: int = 0) -> Pieces:
    """SmolVLM: as Idefics3, with its own processor, and tokens for rows and columns."""
    names = ("<global-img>", *(f"<row_{r}_col_{c}>" for r in range(1, 5) for c in range(1, 5)))
    return _idefics("SmolVLM", names, seed, video_processor=SimpleNamespace(num_frames=1, fps=1))


def internvl(seed: int = 0) -> Pieces:
    """InternVL: tiles of 32 px in 2 × 2 tokens, up to 4 of them, then a thumbnail, all in one run."""
    named = {"start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>"}
    named |= {"video_token": "<video>"}
    tokenizer = bpe("<|im_start|>", "<|im_end|>", *named.values(), byte_level=True, **named)
    image = hf.GotOcr2ImageProcessorPil(size=SQUARE, crop_to_patches=True, min_patches=1, max_patches=4)
    template = CHATML.replace("IMAGE", "<IMG_CONTEXT>\n")
    processor = _processor("InternVL", image, tokenizer, template, video_processor=None, image_seq_length=4)
    parts = {"vision_config": VISION, "text_config": hf.Qwen2Config(**TEXT, vocab_size=len(tokenizer))}
    ids = {"image_token_id": tokenizer.convert_tokens_to_ids("<IMG_CONTEXT>"), "image_seq_length": 4}
    return _pieces("InternVL", processor, seed, **parts, **ids, tie_word_embeddings=False)


def _paligemma(text: Any, seed: int, attention: str, **settings: Any) -> Pieces:
    tokenizer = bpe("<image>", image_token="<image>")
    image = hf.SiglipImageProcessorPil(size=SQUARE, image_seq_length=16)
    image.image_seq_length = 16
    processor = _processor("PaliGemma", image, tokenizer, IMAGE_THEN_WORDS)
    vision = hf.SiglipVisionConfig(**VISION, vision_use_head=False)
    parts = {"vision_config": vision, "text_config": text(**TEXT, vocab_size=len(tokenizer), head_dim=8, **settings)}
    ids = {"image_token_index": tokenizer.convert_tokens_to_ids("<image>"), "projection_dim": 32, "hidden_size": 32}
    untied = {"tie_word_embeddings": False}  # tied, a random model only repeats its last token
    return _pieces("PaliGemma", processor, seed, attention=attention, **parts, **ids, **untied)


def paligemma(seed: int = 0) -> Pieces:
    """PaliGemma: 4 × 4 patches first, then a prompt that sees itself both ways."""
    return _paligemma(hf.GemmaConfig, seed, "sdpa")


def paligemma2(seed: int = 0) -> Pieces:
    """PaliGemma 2: Gemma 2, so soft-capped attention, which sdpa cannot run, and a window of 12 in one layer."""
    capped = {"query_pre_attn_scalar": 8, "attn_logit_softcapping": 2.0, "sliding_window": 12}
    return _paligemma(hf.Gemma2Config, seed, "eager", **capped)


def gemma3(seed: int = 0) -> Pieces:
    """Gemma 3: 2 × 2 pooled tokens that see each other both ways, and a window of 12 in the first layer."""
    marks = ("<start_of_image>", "<end_of_image>", "<image_soft_token>", "<start_of_turn>", "<end_of_turn>")
    names = ("boi_token", "eoi_token", "image_token")
    tokenizer = bpe(*marks, **dict(zip(names, marks, strict=False)))
    image = hf.Gemma3ImageProcessorPil(size=SQUARE)
    processor = _processor("Gemma3", image, tokenizer, TURNS, image_seq_length=4)
    window = {"sliding_window": 12, "layer_types": ["sliding_attention", "full_attention"]}
    text = hf.Gemma3TextConfig(**TEXT, **window, vocab_size=len(tokenizer), head_dim=8, query_pre_attn_scalar=8)
    parts = {"vision_config": hf.SiglipVisionConfig(**VISION, vision_use_head=False), "text_config": text}
    ids = {f"{name}_index": tokenizer.convert_tokens_to_ids(mark) for name, mark in zip(names, marks, strict=False)}
    return _pieces("Gemma3", processor, seed, **parts, **ids, mm_tokens_per_image=4, tie_word_embeddings=False)


def idefics(seed: int = 0) -> Pieces:
    """IDEFICS: 6 resampled features of 4 × 4 patches, read by gated cross-attention before every other layer.

    Its placeholders' embeddings and logits are added behind the vocabulary, as in the published checkpoints.
    """
    marks = ("<fake_token_around_image>", "<image>", "<end_of_utterance>")
    tokenizer = bpe(*marks)
    processor = _processor("Idefics", IdeficsImageProcessorPil(image_size=32), tokenizer, USER_PICTURE)
    resampler = {"resampler_n_latents": 6, "resampler_depth": 1, "resampler_n_heads": 2, "resampler_head_dim": 8}
    config = hf.IdeficsConfig(
        **{name: value for name, value in TEXT.items() if name != "num_key_value_heads"},
        vocab_size=len(tokenizer) - len(marks),
        additional_vocab_size=len(marks),
        cross_layer_interval=2,
        use_resampler=True,
        perceiver_config={"use_resampler": True, **resampler},
        vision_config={"embed_dim": 16, **{name: VISION[name] for name in VISION if name != "hidden_size"}},
    )
    return build(hf.IdeficsForVisionText2Text, config, processor, seed=seed)


def mllama(seed: int = 0) -> Pieces:
    """Llama 3.2 Vision: up to 4 tiles of 16 px, whose features are keys in the second of three layers alone."""
    marks = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|python_tag|>", "<|image|>")
    tokenizer = bpe(*marks, byte_level=True)
    tiles = MllamaImageProcessorPil(size={"height": 16, "width": 16}, max_image_tiles=4)
    processor = _processor("Mllama", tiles, tokenizer, HEADERS)
    vision = VISION | {"num_hidden_layers": 4, "num_global_layers": 1, "attention_heads": 2, "image_size": 16}
    vision |= {"intermediate_layers_indices": [0], "vision_output_dim": 32}
    # The placeholder is the first id behind the vocabulary: it has an embedding and no logit.
    image = tokenizer.convert_tokens_to_ids("<|image|>")
    text = {**TEXT, "num_hidden_layers": 3, "cross_attention_layers": [1], "vocab_size": image}
    return _pieces("Mllama", processor, seed, vision_config=vision, text_config=text, image_token_index=image)


MECHANISMS: dict[str, tuple[str, ...]] = {
    "one run of patches": ("llava", "llava_mistral"),
    "tiles": ("llava_next", "internvl", "idefics3", "smolvlm"),
    "M-RoPE": ("qwen2_5_vl", "qwen2_vl", "qwen3_vl"),
    "bidirectional, soft-capped": ("paligemma2", "paligemma", "gemma3"),
    "cross-attention": ("mllama", "idefics"),
    "learned queries": ("instructblip",),
}
"""How a picture enters a model, and the families where it does so; the first that a test can take stands for them."""

FAMILIES: dict[str, Callable[..., Pieces]] = {
    name: globals()[name] for names in MECHANISMS.values() for name in sorted(names)
}


def every_family(but: Collection[str] = ()) -> list[Any]:
    """The parameters of a test of all families but those of ``but``, by name.

    One of each of the six ``MECHANISMS`` is in the default tests, the others are marked ``families``: they run in
    ``make contract`` and ``make contract-check``.
    """
    names = [name for name in FAMILIES if name not in but]
    default = {next((name for name in some if name in names), "") for some in MECHANISMS.values()}
    return [pytest.param(name, id=name, marks=() if name in default else pytest.mark.families) for name in names]
