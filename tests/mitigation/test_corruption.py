"""Worse pictures: what each kind shows, that ids and shapes stay, and that nothing depends on the batch."""

from typing import Any

import pytest
import torch
from PIL import Image

from interp.errors import UserError
from interp.vlm import VLM, Prompt
from mitigation.contrastive.corruption import (
    BLUR_SIGMA,
    DONORS,
    bank_picture,
    blind_inputs,
    blurred,
    corrupt_inputs,
)
from mitigation.controls import TextOnly
from mitigation.method import Method
from mitigation.validation import NOISE_KINDS
from mitigation.vcd import VCD
from tests.families import FAMILIES
from tests.tiny import picture


def corrupted(vlm: VLM, prompts: list[Prompt], kind: str, **options: Any) -> Any:
    return corrupt_inputs(vlm, prompts, vlm.encode(prompts), kind=kind, **{"step": 700, "seed": 0} | options)


def kept(vlm: VLM, image: Image.Image) -> torch.Tensor:
    return vlm.encode([Prompt("what is red", image)])["pixel_values"]


@pytest.mark.parametrize("family", ["llava", "llava_next", "qwen2_5_vl", "internvl", "idefics3"])
@pytest.mark.parametrize("kind", NOISE_KINDS)
def test_only_the_pixels_change(family: str, kind: str) -> None:
    vlm = VLM(*FAMILIES[family]())
    prompts = [Prompt("what is red", picture(1, (90, 40)), key="a"), Prompt("what", picture(2, (40, 80)), key="b")]
    clean, worse = vlm.encode(prompts), corrupted(vlm, prompts, kind)
    assert worse.keys() == clean.keys()
    for name, value in clean.items():
        assert torch.equal(worse[name], value) == (name != "pixel_values"), name
    assert worse["pixel_values"].shape == clean["pixel_values"].shape


@pytest.mark.parametrize("kind", NOISE_KINDS)
def test_a_picture_does_not_depend_on_its_batch(vlm: VLM, prompts: list[Prompt], kind: str) -> None:
    whole = corrupted(vlm, prompts, kind)["pixel_values"]
    for order in ([2, 0], [1], [1, 2, 0]):
        some = corrupted(vlm, [prompts[i] for i in order], kind)["pixel_values"]
        assert torch.equal(some, whole[order])


@pytest.mark.parametrize("side", [50, 120])
def test_the_blur_is_a_gaussian_of_the_stated_width(side: int) -> None:
    image = Image.new("RGB", (2 * side, side))
    image.paste((255, 255, 255), (side, 0, 2 * side, side))  # its edge becomes the Gaussian's integral
    row = torch.tensor(list(blurred(image).getchannel(0).crop((0, side // 2, 2 * side, side // 2 + 1)).tobytes())) / 255
    sigma = BLUR_SIGMA * side
    expected = torch.special.ndtr((torch.arange(2 * side) + 0.5 - side) / sigma)
    assert (row - expected).abs().max() < 0.03


def test_swapped_shows_a_picture_of_the_bank_by_key_and_seed(vlm: VLM) -> None:
    bank = {
        tuple(kept(vlm, bank_picture(i).resize((24, 24))).flatten().tolist()): number
        for number, i in enumerate(range(DONORS))
    }
    assert len(bank) == DONORS
    prompts = [Prompt("what is red", picture(1), key=f"case-{i}") for i in range(40)]
    shown = [bank[tuple(p.flatten().tolist())] for p in corrupted(vlm, prompts, "swapped")["pixel_values"]]
    other = [bank[tuple(p.flatten().tolist())] for p in corrupted(vlm, prompts, "swapped", seed=1)["pixel_values"]]
    assert len(set(shown)) > 10
    assert shown != other


def test_a_family_that_needs_a_picture_says_so(prompts: list[Prompt]) -> None:
    with pytest.raises(UserError, match="cannot answer without an image"):
        blind_inputs(VLM(*FAMILIES["instructblip"](), name="instructblip"), prompts)


@pytest.mark.parametrize("method", [*(VCD(noise=kind) for kind in NOISE_KINDS), TextOnly()])
def test_a_prompt_without_picture_is_refused(vlm: VLM, prompts: list[Prompt], method: Method) -> None:
    with pytest.raises(UserError, match="no image in prompt 'blind'"):
        method.generate(vlm, [*prompts, Prompt("what is red", key="blind")], max_new_tokens=1)
