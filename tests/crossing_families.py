"""Small random models of the families that read their pictures by cross-attention; see ``tests/families.py``."""

from typing import Any

import transformers as hf
from transformers.models.idefics.image_processing_pil_idefics import IdeficsImageProcessorPil
from transformers.models.mllama.image_processing_pil_mllama import MllamaImageProcessorPil

from tests.family_parts import HEADERS, TEXT, USER_PICTURE, VISION, bpe, build
from tests.tiny import Pieces


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
