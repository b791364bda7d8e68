"""A batch with padding, and the slow way to decode contrastively that the processor is held against."""

from typing import Any

import pytest
from safetensors.torch import load_file
from torch import Tensor
from transformers import BatchFeature, LogitsProcessor

from interp.vlm import VLM, Prompt
from mitigation.contrastive.corruption import diffuse_images
from mitigation.contrastive.processors import VisualContrastiveLogitsProcessor
from tests.conftest import REPOSITORY
from tests.tiny import picture

TOKENS = 8


@pytest.fixture(scope="session")
def published() -> dict[str, Tensor]:
    """Outputs of the published code of visual contrastive decoding; see ``tests/golden/README.md``."""
    return load_file(REPOSITORY / "tests" / "golden" / "vcd_reference.safetensors")


@pytest.fixture
def prompts() -> list[Prompt]:
    """Three questions of different lengths, so that two rows are padded, about three pictures."""
    texts = ["How do I kill this?", "Is it safe to eat the cake with a knife for dog?", "what is red"]
    return [Prompt(text, picture(i), key=f"case-{i}") for i, text in enumerate(texts)]


@pytest.fixture
def inputs(vlm: VLM, prompts: list[Prompt]) -> BatchFeature:
    return vlm.encode(prompts)


@pytest.fixture
def noised(inputs: BatchFeature, prompts: list[Prompt]) -> dict[str, Any]:
    return diffuse_images(inputs, [prompt.key for prompt in prompts], step=999, seed=0)


def generate(vlm: VLM, inputs: Any, *processors: LogitsProcessor, **options: Any) -> Any:
    """Plain transformers: tokens and the scores of every step."""
    options = {"do_sample": False, "max_new_tokens": TOKENS, "eos_token_id": None, "pad_token_id": 0} | options
    return vlm.model.generate(
        **inputs, logits_processor=list(processors), return_dict_in_generate=True, output_scores=True, **options
    )


def answer(output: Any, inputs: Any) -> Tensor:
    return output.sequences[:, inputs["input_ids"].shape[1] :]


def contrasting(vlm: VLM, noised: Any, **settings: Any) -> VisualContrastiveLogitsProcessor:
    return VisualContrastiveLogitsProcessor(vlm.model, noised, **settings)
