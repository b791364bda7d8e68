"""The base model in 4 bits (NF4), to train an adapter where the whole does not fit. Needs bitsandbytes and a GPU."""

from importlib.util import find_spec
from pathlib import Path

import torch

from interp.errors import UserError
from interp.layout import layout_for
from interp.loading import check_format, find, read_config, read_processor, resolve_device, weights_hash
from interp.model_config import ModelConfig
from interp.vlm import VLM


def load_four_bit(config: ModelConfig) -> VLM:
    """The model with its language model's linear layers in NF4, the rest in bfloat16.

    Raises:
        UserError: no GPU, no bitsandbytes, or whatever ``interp.load`` refuses.
    """
    device = resolve_device(config.device)
    if device.type != "cuda":
        raise UserError(f"four_bit=true on {device}; 4-bit weights need a CUDA GPU; leave four_bit out, or use one")
    if find_spec("bitsandbytes") is None:
        raise UserError(
            "four_bit=true, but bitsandbytes is not installed; it holds the 4-bit weights; pip install bitsandbytes"
        )
    from transformers import AutoModelForImageTextToText, BitsAndBytesConfig

    place = find(config)
    layout = layout_for(read_config(place, config))
    check_format(place)
    processor = read_processor(place, config)
    quantisation = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
        llm_int8_skip_modules=[layout.vision_tower, layout.projector, layout.lm_head],
    )
    model = AutoModelForImageTextToText.from_pretrained(
        place.path,
        **place.arguments(),
        dtype=torch.bfloat16,
        device_map={"": device},
        quantization_config=quantisation,
        attn_implementation=config.attn_implementation,
        trust_remote_code=config.trust_remote_code,
        use_safetensors=True,
    )
    return VLM(model, processor, name=config.name, revision=place.commit or weights_hash(Path(place.path)))
