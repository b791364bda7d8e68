"""Worse pictures: noise against the published code's outputs, what each kind shows, and what it may depend on."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from interp.vlm import VLM, Prompt
from mitigation.contrastive.corruption import (
    BLUR_SIGMA,
    DONORS,
    bank_picture,
    blurred,
    case_generator,
    corrupt_inputs,
    diffuse,
    diffuse_images,
    mixture,
)
from mitigation.method import NOISE_KINDS
from tests.families import FAMILIES
from tests.tiny import picture

STEPS = st.integers(0, 999)


@pytest.mark.parametrize("step", [0, 1, 250, 500, 750, 999])
def test_published_outputs_are_matched(published: dict[str, Tensor], step: int) -> None:
    noised = diffuse(published["noise.image"], step=step, eps=published[f"noise.{step}.eps"])
    torch.testing.assert_close(noised, published[f"noise.{step}.out"], atol=1e-5, rtol=0)


@given(STEPS)
def test_signal_falls_and_the_variance_is_kept(step: int) -> None:
    share = mixture(step)
    assert share.signal**2 + share.noise**2 == pytest.approx(1, abs=1e-6)
    assert step == 0 or share.signal < mixture(step - 1).signal


def test_another_key_or_seed_is_another_noise() -> None:
    pairs = [("a", 0), ("a", 1), ("b", 0), ("", 0), ("1", 1), ("", 11)]
    draws = [torch.randn(8, generator=case_generator(key, seed)) for key, seed in pairs]
    assert all(not torch.equal(x, y) for i, x in enumerate(draws) for y in draws[:i])


def test_tiles_keep_their_noise_and_padding_stays_empty() -> None:
    tiles = torch.rand(2, 3, 4, 4) + 0.1
    padded = torch.cat([tiles, torch.zeros(1, 3, 4, 4)])[None]
    alone = diffuse_images({"pixel_values": tiles[None]}, ["a"], step=999, seed=0)["pixel_values"]
    within = diffuse_images({"pixel_values": padded}, ["a"], step=999, seed=0)["pixel_values"]
    assert torch.equal(within[:, :2], alone)
    assert not within[:, 2].any()
    assert not torch.equal(alone[0, 0] - alone[0, 1], mixture(999).signal * (tiles[0] - tiles[1]))  # each its own noise


def test_only_the_pixels_are_exchanged() -> None:
    inputs = {"input_ids": torch.tensor([[1]]), "pixel_values": torch.ones(1, 3, 4, 4, dtype=torch.bfloat16)}
    noised = diffuse_images(inputs, ["a"], step=999, seed=0)
    assert noised["input_ids"] is inputs["input_ids"]
    assert noised["pixel_values"].dtype == torch.bfloat16
    assert torch.equal(inputs["pixel_values"], torch.ones(1, 3, 4, 4, dtype=torch.bfloat16))
    assert not torch.equal(noised["pixel_values"], inputs["pixel_values"])


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
    bank = {tuple(kept(vlm, bank_picture(i).resize((24, 24))).flatten().tolist()): i for i in range(DONORS)}
    assert len(bank) == DONORS
    prompts = [Prompt("what is red", picture(1), key=f"case-{i}") for i in range(40)]
    shown = [bank[tuple(p.flatten().tolist())] for p in corrupted(vlm, prompts, "swapped")["pixel_values"]]
    other = [bank[tuple(p.flatten().tolist())] for p in corrupted(vlm, prompts, "swapped", seed=1)["pixel_values"]]
    assert len(set(shown)) > 10
    assert shown != other
