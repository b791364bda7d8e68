"""The worse picture that visual contrastive decoding contrasts with: diffusion noise on the normalised pixels.

The schedule is the published one (Leng et al. 2023, arXiv 2311.16922, equation 2, and its code). A case's noise depends
on its key and the seed alone, never on its place in a batch. Knows nothing of logits or models.
"""

import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from interp.errors import UserError
from mitigation.ranges import NOISE_STEPS, check_noise_step, check_seed


class Mixture(NamedTuple):
    """How much of the amplitude is picture and how much noise; the squares sum to 1."""

    signal: float
    noise: float


@cache
def _schedule() -> tuple[Mixture, ...]:
    """√ᾱ_t and √(1 − ᾱ_t) for every step, with β_t = sigmoid(linspace(−6, 6))·(0.005 − 1e-5) + 1e-5."""
    betas = torch.sigmoid(torch.linspace(-6, 6, NOISE_STEPS)) * (0.5e-2 - 1e-5) + 1e-5
    kept = torch.cumprod(1 - betas, dim=0)  # float32 as in the published code, whose outputs the golden file holds
    return tuple(Mixture(*pair) for pair in zip(kept.sqrt().tolist(), (1 - kept).sqrt().tolist(), strict=True))


def mixture(step: int) -> Mixture:
    """The shares at ``step``: signal 0.863 at 500, 0.285 at 999. UserError outside 0 to 999."""
    check_noise_step(step)
    return _schedule()[step]


def diffuse(
    pixels: Float[Tensor, "*shape"],
    *,
    step: int,
    generator: torch.Generator | None = None,
    eps: Float[Tensor, "*shape"] | None = None,
) -> Float[Tensor, "*shape"]:
    """√ᾱ_t·pixels + √(1 − ᾱ_t)·ε in float32, unclipped; ``pixels`` are normalised, ``step`` is t.

    ε is ``eps`` if given, else standard normal from ``generator`` (torch's global one if None), drawn on the
    generator's device, so that a CPU generator gives the same noise for every accelerator. UserError for a step
    outside 0 to 999.
    """
    share = mixture(step)
    if eps is None:
        home = pixels.device if generator is None else generator.device
        eps = torch.randn(pixels.shape, generator=generator, device=home)
    return share.signal * pixels.float() + share.noise * eps.to(pixels.device, torch.float32)


def case_generator(key: str, seed: int) -> torch.Generator:
    """A CPU generator that depends on the case's ``key`` and ``seed`` alone. UserError if ``seed`` is no integer."""
    check_seed(seed)
    digest = hashlib.sha256(f"{seed}\n{key}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big", signed=True))


def diffuse_images(inputs: Mapping[str, Any], keys: Sequence[str], *, step: int, seed: int) -> dict[str, Any]:
    """A processor's ``inputs`` with every image diffused to ``step``; everything else is handed on as it is.

    ``keys`` has one entry per image, in the order of the first axis of ``pixel_values``; images with equal keys and
    sizes get equal noise. An image in tiles (a second axis, as in LLaVA-NeXT and Idefics3) is noised tile after tile,
    and tiles of zeros, which pad it to the batch's largest, stay zeros. The sum is taken in float32 and returned in
    the type of ``pixel_values``. UserError if there is no image, or if the first axis does not count the keys.
    """
    pixels = inputs.get("pixel_values")
    if pixels is None:
        raise UserError("no pixel_values in the inputs; contrasting pictures needs one; give every prompt an image")
    if len(pixels) != len(keys):
        raise UserError(
            f"{len(keys)} keys for {len(pixels)} rows of pixel_values; a key seeds the noise of one image, so a "
            f"row must be an image (InternVL has a row for every tile, Qwen for every patch); give one key a row"
        )
    images = [_diffuse_image(image, step, case_generator(key, seed)) for image, key in zip(pixels, keys, strict=True)]
    return {**inputs, "pixel_values": torch.stack(images).to(pixels.dtype)}


def _diffuse_image(
    image: Float[Tensor, "*tiles channel height width"], step: int, generator: torch.Generator
) -> Tensor:
    if image.ndim == 3:
        return diffuse(image, step=step, generator=generator)
    # A draw a tile: the noise of the first tiles must not depend on how many follow to fill the batch.
    return torch.stack([diffuse(t, step=step, generator=generator) if t.any() else t.float() for t in image])
