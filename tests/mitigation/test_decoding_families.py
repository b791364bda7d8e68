"""The laws of the second branch on every family whose positions are the mask's own count; the others are refused."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from interp.errors import UserError
from interp.vlm import VLM, Prompt
from mitigation.decoding import VisualContrastiveLogitsProcessor
from mitigation.noise import diffuse_images
from mitigation.vcd import VCD
from tests.families import FAMILIES
from tests.mitigation.conftest import TOKENS, uncached
from tests.tiny import picture

REFUSED = {"qwen2_vl": "mrope", "qwen2_5_vl": "mrope", "qwen3_vl": "mrope", "instructblip": "generates from embeddings"}
FOLLOWED = [name for name in FAMILIES if name not in REFUSED]


@pytest.fixture
def prompts(prompts: list[Prompt]) -> list[Prompt]:
    """Pictures of other shapes, so that tiles differ in number and are padded in a batch."""
    sizes = [(24, 24), (90, 40), (40, 80)]
    return [replace(p, image=picture(i, sizes[i])) for i, p in enumerate(prompts)]


def noised_inputs(vlm: VLM, prompts: list[Prompt]) -> tuple[Any, dict[str, Any]]:
    """Inputs and their noised twin; a tile in a row of its own gets a key of its own."""
    inputs = vlm.encode(prompts)
    images = len(inputs["pixel_values"])
    keys = [p.key for p in prompts] if images == len(prompts) else [f"tile-{i}" for i in range(images)]
    return inputs, diffuse_images(inputs, keys, step=999, seed=0)


@pytest.mark.parametrize("family", FOLLOWED)
def test_the_cached_branch_equals_the_uncached_one(family: str, prompts: list[Prompt]) -> None:
    vlm = VLM(*FAMILIES[family](), name=family)
    for prompt in prompts[:2]:
        inputs, noised = noised_inputs(vlm, [prompt])
        processor = VisualContrastiveLogitsProcessor(vlm.model, noised, alpha=2.0, beta=0.01)
        got = vlm.generate([prompt], max_new_tokens=TOKENS, logits_processor=[processor], encoded=inputs)
        expected, _ = uncached(vlm.model, dict(inputs), noised, alpha=2.0, beta=0.01)
        assert got.token_ids[0] == expected[: len(got.token_ids[0])]


@pytest.mark.parametrize("family", [name for name in FOLLOWED if name != "internvl"])
def test_a_padded_batch_equals_one_prompt_at_a_time(family: str, prompts: list[Prompt]) -> None:
    vlm, method = VLM(*FAMILIES[family](), name=family), VCD(alpha=2.0, beta=0.01, noise_step=999)
    whole = method.generate(vlm, prompts, max_new_tokens=TOKENS)
    singles = [method.generate(vlm, [prompt], max_new_tokens=TOKENS) for prompt in prompts]
    assert whole.token_ids == [single.token_ids[0] for single in singles]
    torch.testing.assert_close(whole.margins, torch.cat([s.margins for s in singles]), atol=1e-3, rtol=1e-4)


def test_tiles_in_rows_of_their_own_are_refused(prompts: list[Prompt]) -> None:
    vlm = VLM(*FAMILIES["internvl"](), name="internvl")
    with pytest.raises(UserError, match=r"3 keys for \d+ rows of pixel_values.*InternVL"):
        VCD().generate(vlm, prompts, max_new_tokens=1)


@pytest.mark.parametrize("family", REFUSED)
def test_other_families_are_refused(family: str, prompts: list[Prompt]) -> None:
    vlm = VLM(*FAMILIES[family](), name=family)
    with pytest.raises(UserError, match=REFUSED[family]):
        VisualContrastiveLogitsProcessor(vlm.model, dict(vlm.encode(prompts[:1])))
