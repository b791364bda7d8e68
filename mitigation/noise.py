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

from mitigation.pixels import pictures_of
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


def diffuse_images(
    inputs: Mapping[str, Any], keys: Sequence[str], *, step: int, seed: int, model: Any = None
) -> dict[str, Any]:
    """A processor's ``inputs`` with every image diffused to ``step``; everything else is handed on as it is.

    ``keys`` has one entry per image, in the order of the prompts; images with equal keys and sizes get equal noise,
    whatever else the batch holds. Noise lives in the space of normalised pixels: where a family cuts the picture into
    patches and writes each pixel twice (Qwen), it is drawn on the whole picture and both copies get the same; tiles,
    and the small copy of the whole picture beside them, each get their own, as the published code does with whatever
    the processor returns. Padding stays as it is. The sum is taken in float32 and returned in the type of
    ``pixel_values``. ``model`` is needed where a row of ``pixel_values`` is no image (Qwen, InternVL). UserError as
    ``mitigation.pixels.pictures_of``, and for a step or seed out of range.
    """
    check_noise_step(step)
    pictures = pictures_of(inputs, len(keys), model=model)
    noised = [
        _diffuse_views(views, shown, pictures.copies, step, case_generator(key, seed))
        for views, shown, key in zip(pictures.views, pictures.shown, keys, strict=True)
    ]
    return {**inputs, "pixel_values": pictures.join(noised).to(inputs["pixel_values"].dtype)}


def _diffuse_views(
    views: Float[Tensor, "view channel height width"],
    shown: Sequence[tuple[int, int]],
    copies: bool,
    step: int,
    generator: torch.Generator,
) -> Float[Tensor, "view channel height width"]:
    # A draw a view and only of what is shown: the noise must not depend on what fills the picture up to the batch's.
    noised = views.float().clone()
    if copies:
        eps = torch.randn(views.shape[1:], generator=generator, device=generator.device)
        return torch.stack([diffuse(view, step=step, eps=eps) for view in noised])
    for view, (height, width) in zip(noised, shown, strict=True):
        view[:, :height, :width] = diffuse(view[:, :height, :width], step=step, generator=generator)
    return noised
