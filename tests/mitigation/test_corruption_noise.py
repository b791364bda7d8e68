"""Diffusion noise against the published code's outputs, and what it may depend on."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mitigation.contrastive.corruption import case_generator, diffuse, diffuse_images, mixture

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


@pytest.mark.long
@given(STEPS, st.text(), st.integers())
def test_a_case_has_one_noise(step: int, key: str, seed: int) -> None:
    pixels = torch.zeros(3, 4, 4)
    once, again = (diffuse(pixels, step=step, generator=case_generator(key, seed)) for _ in range(2))
    assert torch.equal(once, again)


def test_another_key_or_seed_is_another_noise() -> None:
    pairs = [("a", 0), ("a", 1), ("b", 0), ("", 0), ("1", 1), ("", 11)]
    draws = [torch.randn(8, generator=case_generator(key, seed)) for key, seed in pairs]
    assert all(not torch.equal(x, y) for i, x in enumerate(draws) for y in draws[:i])


@given(st.permutations(range(4)), st.integers(1, 4))
def test_an_images_noise_ignores_its_place_and_the_batch(order: list[int], size: int) -> None:
    pixels, keys = torch.rand(4, 3, 4, 4), ["a", "b", "c", "d"]
    whole = diffuse_images({"pixel_values": pixels}, keys, step=999, seed=5)["pixel_values"]
    some = order[:size]
    part = diffuse_images({"pixel_values": pixels[some]}, [keys[i] for i in some], step=999, seed=5)["pixel_values"]
    assert torch.equal(part, whole[some])


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
