"""Diffusion noise against the published code's outputs, and what it may depend on."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from interp.errors import UserError
from mitigation.contrastive.corruption import case_generator, diffuse, diffuse_images, mixture

STEPS = st.integers(0, 999)


@pytest.mark.parametrize("step", [0, 1, 250, 500, 750, 999])
def test_published_outputs_are_matched(published: dict[str, Tensor], step: int) -> None:
    noised = diffuse(published["noise.image"], step=step, eps=published[f"noise.{step}.eps"])
    torch.testing.assert_close(noised, published[f"noise.{step}.out"], atol=1e-5, rtol=0)


@pytest.mark.parametrize(("step", "signal"), [(500, 0.863), (999, 0.285)])
def test_the_signal_keeps_the_stated_amplitude(step: int, signal: float) -> None:
    assert mixture(step).signal == pytest.approx(signal, abs=5e-4)


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


def test_noise_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    diffuse(torch.zeros(3, 4, 4), step=500, generator=case_generator("a", 0))
    assert torch.equal(torch.get_rng_state(), before)


def test_without_a_generator_torchs_own_is_used() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        eps = torch.randn(3, 4, 4)
        torch.manual_seed(3)
        noised = diffuse(torch.ones(3, 4, 4), step=700)
    assert torch.equal(noised, diffuse(torch.ones(3, 4, 4), step=700, eps=eps))


def test_half_precision_pixels_are_mixed_in_float32() -> None:
    pixels, eps = torch.rand(3, 4, 4).bfloat16(), torch.rand(3, 4, 4).bfloat16()
    noised = diffuse(pixels, step=500, eps=eps)
    assert noised.dtype == torch.float32
    assert torch.equal(noised, diffuse(pixels.float(), step=500, eps=eps.float()))


@pytest.mark.parametrize("step", [-1, 1000])
def test_a_step_out_of_range_is_refused(step: int) -> None:
    with pytest.raises(UserError, match=r"noise_step=.*0 .*999"):
        mixture(step)


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


def test_no_image_and_too_few_keys_are_refused() -> None:
    with pytest.raises(UserError, match="no pixel_values"):
        diffuse_images({"input_ids": torch.tensor([[1]])}, ["a"], step=1, seed=0)
    with pytest.raises(UserError, match="1 keys for 2 rows of pixel_values"):
        diffuse_images({"pixel_values": torch.zeros(2, 3, 4, 4)}, ["a"], step=1, seed=0)
