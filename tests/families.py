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


def llava_next(seed: int = 0) -> Pieces:
    """A base grid of 3 × 3 and up to 2 × 2 (or 1 × 3, 3 × 1) tiles of 24 px, with newline columns."""
    tokenizer = bpe("<image>", image_token="<image>")
    pinpoints = [[48, 48], [24, 72], [72, 24]]
    processor = hf.LlavaNextProcessor(
        image_processor=hf.LlavaNextImageProcessorPil(
            size={"shortest_edge": 24}, crop_size={"height": 24, "width": 24}, image_grid_pinpoints=pinpoints
        ),
        tokenizer=tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=INST,
    )
    config = hf.LlavaNextConfig(
        vision_config=hf.CLIPVisionConfig(**VISION | {"image_size": 24}),
        text_config=hf.LlamaConfig(**TEXT, vocab_size=len(tokenizer)),
        image_token_index=processor.image_token_id,
        image_grid_pinpoints=pinpoints,
        vision_feature_layer=-1,
    )
    return build(hf.LlavaNextForConditionalGeneration, config, processor, seed=seed)


def _qwen(name: str, vision: dict[str, Any], text: dict[str, Any], seed: int) -> Pieces:
    """The parts that the three Qwen families share: ChatML, 16 px merged patches, M-RoPE."""
    marks = ("<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
    tokenizer = bpe(*marks, byte_level=True, image_token="<|image_pad|>", video_token="<|video_pad|>")
    with image_part_alone():
        processor = getattr(hf, f"{name}Processor")(
            image_processor=hf.Qwen2VLImageProcessorPil(
                patch_size=PATCH, size={"shortest_edge": 32 * 32, "longest_edge": 64 * 64}
            ),
            tokenizer=tokenizer,
            video_processor=None,
            chat_template=CHATML.replace("IMAGE", "<|vision_start|><|image_pad|><|vision_end|>"),
        )
    ids = {mark: tokenizer.convert_tokens_to_ids(mark) for mark in marks}
    rope = {"rope_type": "default", "mrope_section": [2, 1, 1], "rope_theta": 1e4}
    config = getattr(hf, f"{name}Config")(
        vision_config={"depth": 3, "num_heads": 2, "patch_size": PATCH, **vision},
        text_config={**TEXT, "vocab_size": len(tokenizer), "rope_parameters": rope, **text},
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
    )
    return build(getattr(hf, f"{name}ForConditionalGeneration"), config, processor, seed=seed)


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
    tokenizer = bpe("<image>", bos=True)
    processor: Any = hf.InstructBlipProcessor(
        image_processor=hf.BlipImageProcessorPil(size={"height": 32, "width": 32}),
        tokenizer=tokenizer,
        qformer_tokenizer=bpe(bos=True),
        num_query_tokens=4,
    )
    processor.chat_template = WORDS_ALONE
    config = hf.InstructBlipConfig(
        vision_config=VISION,
        qformer_config={
            "vocab_size": len(processor.qformer_tokenizer),
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "cross_attention_frequency": 1,
        },
        text_config=hf.LlamaConfig(**TEXT, vocab_size=len(tokenizer)).to_dict(),
        num_query_tokens=4,
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
    )
    pieces = build(hf.InstructBlipForConditionalGeneration, config, processor, seed=seed)
    speaker = pieces.model.language_model
    for module in (pieces.model, speaker):
        module.generation_config.eos_token_id = 1  # as on the hub, where it is the begin token; the end is 2
    return pieces


def _idefics_tokenizer(tiles: bool) -> Any:
    """Idefics3-8B has no tokens for rows, columns and the whole picture: it spells them out; SmolVLM has them."""
    names = ["<global-img>", *(f"<row_{r}_col_{c}>" for r in range(1, 5) for c in range(1, 5))]
    marks = ("<fake_token_around_image>", "<image>", "<end_of_utterance>", *(names if tiles else ()))
    return bpe(*marks, byte_level=True, image_token="<image>")


def _idefics(name: str, processor: Any, tokenizer: Any, vision_name: str, seed: int) -> Pieces:
    config = getattr(hf, f"{name}Config")(
        vision_config=VISION | {"model_type": vision_name},
        text_config=hf.LlamaConfig(**TEXT, vocab_size=len(tokenizer)).to_dict(),
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        scale_factor=2,
        pad_token_id=0,
    )
    return build(getattr(hf, f"{name}ForConditionalGeneration"), config, processor, seed=seed)


def idefics3(seed: int = 0) -> Pieces:
    """Idefics3: tiles of 32 px in 2 × 2 pixel-shuffled tokens, at most 2 × 2 of them, then the whole picture."""
    tokenizer = _idefics_tokenizer(tiles=False)
    processor = hf.Idefics3Processor(
        image_processor=hf.Idefics3ImageProcessorPil(size={"longest_edge": 64}, max_image_size={"longest_edge": 32}),
        tokenizer=tokenizer,
        image_seq_len=4,
        chat_template=USER_COLON,
    )
    return _idefics("Idefics3", processor, tokenizer, "idefics3_vision", seed)


def smolvlm(seed: int = 0) -> Pieces:
    """SmolVLM: as Idefics3, with its own processor."""
    tokenizer = _idefics_tokenizer(tiles=True)
    with image_part_alone():
        processor = hf.SmolVLMProcessor(
            image_processor=hf.SmolVLMImageProcessorPil(size={"longest_edge": 64}, max_image_size={"longest_edge": 32}),
            tokenizer=tokenizer,
            video_processor=SimpleNamespace(num_frames=1, fps=1),
            image_seq_len=4,
            chat_template=USER_COLON,
        )
    return _idefics("SmolVLM", processor, tokenizer, "smolvlm_vision", seed)


def internvl(seed: int = 0) -> Pieces:
    """InternVL: tiles of 32 px in 2 × 2 tokens, up to 4 of them, then a thumbnail, all in one run."""
    marks = ("<|im_start|>", "<|im_end|>", "<img>", "</img>", "<IMG_CONTEXT>", "<video>")
    tokenizer = bpe(
        *marks,
        byte_level=True,
        start_image_token="<img>",
        end_image_token="</img>",
        context_image_token="<IMG_CONTEXT>",
        video_token="<video>",
    )
    with image_part_alone():
        processor = hf.InternVLProcessor(
            image_processor=hf.GotOcr2ImageProcessorPil(
                size={"height": 32, "width": 32}, crop_to_patches=True, min_patches=1, max_patches=4
            ),
            tokenizer=tokenizer,
            video_processor=None,
            image_seq_length=4,
            chat_template=CHATML.replace("IMAGE", "<IMG_CONTEXT>\n"),
        )
    config = hf.InternVLConfig(
        vision_config=VISION,
        text_config=hf.Qwen2Config(**TEXT, vocab_size=len(tokenizer)),
        image_token_id=tokenizer.convert_tokens_to_ids("<IMG_CONTEXT>"),
        image_seq_length=4,
        tie_word_embeddings=False,
    )
    return build(hf.InternVLForConditionalGeneration, config, processor, seed=seed)


def _paligemma(text: Any, seed: int, attention: str) -> Pieces:
    tokenizer = bpe("<image>", image_token="<image>")
    processor = hf.PaliGemmaProcessor(
        image_processor=hf.SiglipImageProcessorPil(size={"height": 32, "width": 32}, image_seq_length=16),
        tokenizer=tokenizer,
        chat_template=IMAGE_THEN_WORDS,
    )
    processor.image_processor.image_seq_length = 16
    config = hf.PaliGemmaConfig(
        vision_config=hf.SiglipVisionConfig(**VISION, vision_use_head=False),
        text_config=text(vocab_size=len(tokenizer), head_dim=8),
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        projection_dim=32,
        hidden_size=32,
        tie_word_embeddings=False,  # tied, a random model only repeats its last token
    )
    return build(hf.PaliGemmaForConditionalGeneration, config, processor, seed=seed, attention=attention)


def paligemma(seed: int = 0) -> Pieces:
    """PaliGemma: 4 × 4 patches first, then a prompt that sees itself both ways."""
    return _paligemma(lambda **extra: hf.GemmaConfig(**TEXT, **extra), seed, "sdpa")


def paligemma2(seed: int = 0) -> Pieces:
    """PaliGemma 2: Gemma 2, so soft-capped attention, which sdpa cannot run, and a window of 12 in one layer."""
    gemma2: dict[str, Any] = {"query_pre_attn_scalar": 8, "attn_logit_softcapping": 2.0, "sliding_window": 12}
    return _paligemma(lambda **extra: hf.Gemma2Config(**TEXT, **gemma2, **extra), seed, "eager")


def gemma3(seed: int = 0) -> Pieces:
    """Gemma 3: 2 × 2 pooled tokens that see each other both ways, and a window of 12 in the first layer."""
    marks = ("<start_of_image>", "<end_of_image>", "<image_soft_token>", "<start_of_turn>", "<end_of_turn>")
    tokenizer = bpe(*marks, boi_token="<start_of_image>", eoi_token="<end_of_image>", image_token="<image_soft_token>")
    processor = hf.Gemma3Processor(
        image_processor=hf.Gemma3ImageProcessorPil(size={"height": 32, "width": 32}),
        tokenizer=tokenizer,
        image_seq_length=4,
        chat_template=TURNS,
    )
    config = hf.Gemma3Config(
        vision_config=hf.SiglipVisionConfig(**VISION, vision_use_head=False),
        text_config=hf.Gemma3TextConfig(
            **TEXT,
            vocab_size=len(tokenizer),
            head_dim=8,
            query_pre_attn_scalar=8,
            sliding_window=12,
            layer_types=["sliding_attention", "full_attention"],
        ),
        mm_tokens_per_image=4,
        tie_word_embeddings=False,
        image_token_index=tokenizer.convert_tokens_to_ids("<image_soft_token>"),
        boi_token_index=tokenizer.convert_tokens_to_ids("<start_of_image>"),
        eoi_token_index=tokenizer.convert_tokens_to_ids("<end_of_image>"),
    )
    return build(hf.Gemma3ForConditionalGeneration, config, processor, seed=seed)


def idefics(seed: int = 0) -> Pieces:
    """IDEFICS: 6 resampled features of 4 × 4 patches, read by gated cross-attention before every other layer.

    Its placeholders' embeddings and logits are added behind the vocabulary, as in the published checkpoints.
    """
    marks = ("<fake_token_around_image>", "<image>", "<end_of_utterance>")
    tokenizer = bpe(*marks)
    processor: Any = hf.IdeficsProcessor(
        image_processor=IdeficsImageProcessorPil(image_size=32),
        tokenizer=tokenizer,
    )
    processor.chat_template = USER_PICTURE
    text = {name: value for name, value in TEXT.items() if name != "num_key_value_heads"}
    config = hf.IdeficsConfig(
        **text,
        vocab_size=len(tokenizer) - len(marks),
        additional_vocab_size=len(marks),
        cross_layer_interval=2,
        use_resampler=True,
        perceiver_config={
            "use_resampler": True,
            "resampler_n_latents": 6,
            "resampler_depth": 1,
            "resampler_n_heads": 2,
            "resampler_head_dim": 8,
        },
        vision_config={"embed_dim": 16, **{name: VISION[name] for name in VISION if name != "hidden_size"}},
    )
    return build(hf.IdeficsForVisionText2Text, config, processor, seed=seed)


def mllama(seed: int = 0) -> Pieces:
    """Llama 3.2 Vision: up to 4 tiles of 16 px, whose features are keys in the second of three layers alone."""
    marks = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|python_tag|>", "<|image|>")
    tokenizer = bpe(*marks, byte_level=True)
    processor = hf.MllamaProcessor(
        image_processor=MllamaImageProcessorPil(size={"height": 16, "width": 16}, max_image_tiles=4),
        tokenizer=tokenizer,
        chat_template=HEADERS,
    )
    image = tokenizer.convert_tokens_to_ids("<|image|>")
    config = hf.MllamaConfig(
        vision_config={
            **VISION,
            "num_hidden_layers": 4,
            "num_global_layers": 1,
            "attention_heads": 2,
            "image_size": 16,
            "intermediate_layers_indices": [0],
            "vision_output_dim": 32,
        },
        # The placeholder is the first id behind the vocabulary: it has an embedding and no logit.
        text_config={**TEXT, "num_hidden_layers": 3, "cross_attention_layers": [1], "vocab_size": image},
        image_token_index=image,
    )
    return build(hf.MllamaForConditionalGeneration, config, processor, seed=seed)


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
