"""Estimates the memory and time of a training before it starts. Computed from stated assumptions, not measured.

Importing this module loads neither torch nor transformers; reading a checkpoint's shape does, but no weights.
"""

from dataclasses import dataclass
from typing import Any

from interp.checkpoints.config import ModelConfig
from mitigation.vrtuning.settings import Settings, total_steps

GIB = 2**30
TFLOPS = 350.0  # assumed for one GPU in bfloat16: about 35% of an H100's dense peak of 989
TOKENS = 1024  # assumed length of an example: LLaVA-1.5's 576 image tokens and about 450 text tokens
ADAPTER_BYTES = 16  # per trained weight in float32: the weight, its gradient, Adam's two moments
FOUR_BIT_BYTES = 0.516  # NF4 with double quantisation: 4.127 bits a weight (Dettmers et al. 2023, arXiv 2305.14314)
LAYER_BYTES = 34  # activations per token, layer and unit of width, 16 bit (Korthikanti et al. 2022, 2205.05198)
TILE = (4096, 32768)  # positions × vocabulary entries whose logits TRL 1.16 holds at a time, in bfloat16
RUNTIME_GIB = 1.5  # CUDA context and libraries


@dataclass(frozen=True)
class Shape:
    """Numbers of weights: of the checkpoint, of the decoder's linear layers (stored in 4 bits), and of the adapter."""

    parameters: int
    linear: int
    adapter: int
    hidden: int
    layers: int
    vocabulary: int


@dataclass(frozen=True)
class Estimate:
    """GiB on each GPU and hours of the whole run, with the assumptions as sentences."""

    gib: float
    hours: float
    steps: int
    assumptions: tuple[str, ...]

    def __str__(self) -> str:
        return f"about {self.gib:.1f} GiB a GPU and {self.hours:.1f} hours for {self.steps:,} steps. " + " ".join(
            self.assumptions
        )


def estimate(
    settings: Settings,
    model: ModelConfig | Shape,
    *,
    examples: int,
    tokens: int = TOKENS,
    tflops: float = TFLOPS,
    processes: int = 1,
) -> Estimate:
    """Memory and time of training on ``examples`` examples of ``tokens`` tokens each (image tokens included)."""
    shape = shape_of(model, settings) if isinstance(model, ModelConfig) else model
    steps = total_steps(settings, examples, processes)
    seen = steps * settings.batch_size * settings.accumulation * tokens
    recomputed = settings.checkpointing != "off"
    hours = seen * flops_per_token(shape, tokens, recomputed=recomputed) / (tflops * 1e12) / 3600
    held = "4 bits" if settings.four_bit else "bfloat16"
    assumptions = (
        f"Assumed: {tokens} tokens an example, {settings.batch_size} a GPU at once, {tflops:g} TFLOP/s a GPU;",
        f"base in {held}, frozen, {shape.adapter / 1e6:.1f} million adapter weights in float32 with Adam;",
        f"gradient checkpointing {'on' if recomputed else 'off'}; vision tower as if it were trained like the decoder;",
        "reading pictures and, in 4 bits, unpacking weights are not counted.",
    )
    return Estimate(memory_gib(settings, shape, tokens), hours, steps, assumptions)


def memory_gib(settings: Settings, shape: Shape, tokens: int) -> float:
    """Peak GiB of one GPU: weights, adapter with optimiser states, activations, a tile of logits, and the runtime."""
    quantised = shape.linear if settings.four_bit else 0
    weights = 2 * (shape.parameters - quantised) + FOUR_BIT_BYTES * quantised
    width = settings.batch_size * tokens * shape.hidden
    if settings.checkpointing == "off":
        activations = LAYER_BYTES * width * shape.layers
    else:  # every layer's input, and one layer's activations during recomputation
        activations = 2 * width * shape.layers + LAYER_BYTES * width
    logits = 2 * min(settings.batch_size * tokens, TILE[0]) * min(shape.vocabulary, TILE[1])
    return (weights + ADAPTER_BYTES * shape.adapter + activations + logits) / GIB + RUNTIME_GIB


def flops_per_token(shape: Shape, tokens: int, *, recomputed: bool) -> float:
    """Per weight: two forward, two backward (frozen weights need no gradient), and two more if recomputed.

    Plus the adapter's own three passes, and attention's 4 × tokens × width per layer and pass.
    """
    passes = 3 if recomputed else 2
    attention = 4 * tokens * shape.hidden * shape.layers
    return float(passes * (2 * shape.parameters + attention) + (passes + 1) * 2 * shape.adapter)


def shape_of(config: ModelConfig, settings: Settings) -> Shape:
    """The checkpoint's sizes, from its configuration alone.

    Raises:
        UserError: the checkpoint cannot be found; as ``interp.load``.
    """
    import torch
    from transformers import AutoModelForImageTextToText

    from interp.checkpoints.load import find, read_config
    from interp.layout import layout_for

    found = read_config(find(config), config)
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(found, trust_remote_code=config.trust_remote_code)
    return _measured(model, layout_for(found), settings)


def _measured(model: Any, layout: Any, settings: Settings) -> Shape:
    import re

    from torch import nn

    from mitigation.vrtuning.model import lora_config, target_pattern

    lora_config(model, layout, settings)  # raises if no layer matches the targets
    pattern = target_pattern(layout, settings.targets)
    decoder = layout.module(model, "layers")
    text = model.config.get_text_config()
    return Shape(
        parameters=sum(weight.numel() for weight in model.parameters()),
        linear=sum(part.weight.numel() for part in decoder.modules() if isinstance(part, nn.Linear)),
        adapter=sum(
            settings.rank * sum(part.weight.shape)
            for name, part in model.named_modules()
            if re.fullmatch(pattern, name)
        ),
        hidden=text.hidden_size,
        layers=text.num_hidden_layers,
        vocabulary=text.vocab_size,
    )
