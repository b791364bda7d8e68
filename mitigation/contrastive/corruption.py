"""The distorted picture of contrastive decoding: noised, blurred, black, another picture, or none.

Diffusion noise is added to the normalised pixels, by the published schedule (Leng et al. 2023, arXiv 2311.16922,
equation 2, and its code). The other kinds change the picture before preprocessing and keep its size, so that tiling
does not change. A case's distorted picture depends only on its own picture, its key and the seed, not on its batch.
"""

import colorsys
import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image, ImageDraw, ImageFilter
from torch import Tensor

from interp.errors import UserError
from interp.generation import pixel_inputs
from interp.prompt import check_numbers
from mitigation.contrastive.pixels import joins_pictures, pictures_of, pieces, repeats_pixels
from mitigation.validation import NOISE_STEPS, check_noise_step, check_seed

if TYPE_CHECKING:
    from interp.vlm import VLM, Prompt

BLUR_SIGMA = 0.1
"""Standard deviation of the blur relative to the picture's shorter side: keeps colours and layout, removes objects."""
DONORS = 32
"""Number of pictures in the bank that ``swapped`` chooses from."""


class Mixture(NamedTuple):
    """The amplitudes of picture and noise; their squares sum to 1."""

    signal: float
    noise: float


def mixture(step: int) -> Mixture:
    """Return the amplitudes at ``step``: signal 0.863 at 500, 0.285 at 999.

    Raises:
        UserError: a step outside 0 to 999.
    """
    check_noise_step(step)
    return _schedule()[step]


@cache
def _schedule() -> tuple[Mixture, ...]:
    """Return √ᾱ_t and √(1 − ᾱ_t) for every step, with β_t = sigmoid(linspace(−6, 6))·(0.005 − 1e-5) + 1e-5."""
    betas = torch.sigmoid(torch.linspace(-6, 6, NOISE_STEPS)) * (0.5e-2 - 1e-5) + 1e-5
    signal = torch.cumprod(1 - betas, dim=0)  # float32 as in the published code, whose outputs are in the golden file
    return tuple(Mixture(*pair) for pair in zip(signal.sqrt().tolist(), (1 - signal).sqrt().tolist(), strict=True))


def diffuse(
    pixels: Float[Tensor, "*shape"],
    *,
    step: int,
    generator: torch.Generator | None = None,
    eps: Float[Tensor, "*shape"] | None = None,
) -> Float[Tensor, "*shape"]:
    """Return √ᾱ_t·pixels + √(1 − ᾱ_t)·ε in float32, unclipped; ``pixels`` are normalised, ``step`` is t.

    ε is ``eps`` if given, else standard normal from ``generator`` (None: torch's global one). It is drawn on the
    generator's device, so that a CPU generator gives the same noise on every accelerator.

    Raises:
        UserError: a step outside 0 to 999.
    """
    share = mixture(step)
    if eps is None:
        home = pixels.device if generator is None else generator.device
        eps = torch.randn(pixels.shape, generator=generator, device=home)
    return share.signal * pixels.float() + share.noise * eps.to(pixels.device, torch.float32)


def diffuse_images(
    inputs: Mapping[str, Any], keys: Sequence[str | None], *, step: int, seed: int, model: Any = None
) -> dict[str, Any]:
    """Return a processor's ``inputs`` with every image diffused to ``step``; other inputs do not change.

    ``keys`` has one entry per image, in the order of the prompts; None leaves an image as it is. Images with equal keys
    and sizes get equal noise, regardless of the rest of the batch. Noise is added to normalised pixels. For families
    that cut the picture into patches and repeat each pixel (Qwen), it is drawn on the whole picture, and the copies
    share it. Tiles and their thumbnail get separate noise, as in the published code. Padding does not change. The sum
    is computed in float32 and returned in the dtype of ``pixel_values``. ``model`` is needed if a row of
    ``pixel_values`` is not an image (Qwen, InternVL).

    Raises:
        UserError: as ``mitigation.contrastive.pixels.pictures_of``, and for a step or seed out of range.
    """
    pictures = pictures_of(inputs, len(keys), model=model)
    noised = [
        views.float() if key is None else _diffuse_views(views, sizes, pictures.copies, step, case_generator(key, seed))
        for views, sizes, key in zip(pictures.views, pictures.sizes, keys, strict=True)
    ]
    return {**inputs, "pixel_values": pictures.join(noised).to(inputs["pixel_values"].dtype)}


def diffuse_prompts(
    vlm: "VLM",
    prompts: "Sequence[Prompt]",
    encoded: Mapping[str, Any],
    *,
    step: int,
    seed: int,
    only: Sequence[int] = (),
) -> dict[str, Any]:
    """Return ``encoded = vlm.encode(prompts)`` with every picture diffused to ``step``, in every family.

    ``only`` are the numbers of the pictures to diffuse, from 1; empty: all. If it is not known how pictures are packed,
    that is measured (``mitigation.contrastive.pixels``).

    Raises:
        UserError: as ``diffuse_images``, or pictures that cannot be told apart.
    """
    keys = [
        picture_key(prompt.key, number) if not only or number in only else None
        for prompt in prompts
        for number in range(1, len(prompt.images) + 1)
    ]
    if vlm.module_map.geometry != "unknown" or repeats_pixels(encoded, vlm.model.config):
        if len(keys) != len(prompts) and joins_pictures(vlm.module_map):
            if only:
                raise UserError(
                    f"images={list(only)} with noise on processed pixels: {vlm.name} packs the pictures of a prompt "
                    "into one row; take noise=diffusion8, blur, black or swapped, which change pictures before that"
                )
            keys = [prompt.key for prompt in prompts]
        return diffuse_images(encoded, keys, step=step, seed=seed, model=vlm.model)
    changed = {**encoded, **{name: encoded[name].clone() for name in pixel_inputs(encoded)}}
    for key, inputs in zip(keys, pieces(vlm, prompts, changed), strict=True):
        generator = None if key is None else case_generator(key, seed)
        for piece in inputs.values() if generator is not None else ():
            piece.copy_(diffuse(piece, step=step, generator=generator))
    return changed


def picture_key(key: str, number: int) -> str:
    """Return the key that seeds the noise of a case's picture: the case's key, for later pictures with their number."""
    return key if number == 1 else f"{key}\npicture {number}"


def _diffuse_views(
    views: Float[Tensor, "view channel height width"],
    sizes: Sequence[tuple[int, int]],
    copies: bool,
    step: int,
    generator: torch.Generator,
) -> Float[Tensor, "view channel height width"]:
    # One draw per view, without padding: the noise must not depend on the batch's largest picture.
    noised = views.float().clone()
    if copies:
        eps = torch.randn(views.shape[1:], generator=generator, device=generator.device)
        return torch.stack([diffuse(view, step=step, eps=eps) for view in noised])
    for view, (height, width) in zip(noised, sizes, strict=True):
        view[:, :height, :width] = diffuse(view[:, :height, :width], step=step, generator=generator)
    return noised


def case_generator(key: str, seed: int) -> torch.Generator:
    """Return a CPU generator that depends only on the case's ``key`` and ``seed``.

    Raises:
        UserError: ``seed`` is not an integer.
    """
    check_seed(seed)
    digest = hashlib.sha256(f"{seed}\n{key}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big", signed=True))


def corrupt_inputs(
    vlm: "VLM",
    prompts: "Sequence[Prompt]",
    encoded: Mapping[str, Any],
    *,
    kind: str,
    step: int,
    seed: int,
    side: int | None = None,
    only: Sequence[int] = (),
) -> Mapping[str, Any]:
    """Return ``encoded``, the inputs of ``prompts``, with the picture of each distorted.

    Args:
        kind: ``diffusion`` (noise at ``step`` on the normalised pixels) or ``diffusion8`` (``diffused_picture``).
            ``blur`` is a Gaussian with sigma = ``BLUR_SIGMA`` × the shorter side. ``black`` and
            ``swapped`` (``donor``, resized) replace the picture.
        step: diffusion step, for ``diffusion``.
        seed: for the diffusion noise and the choice from the bank.
        side: of the picture that ``diffusion8`` makes; None: its own size.
        only: numbers of the pictures to distort, from 1; empty: all.

    Raises:
        UserError: as ``diffuse_prompts``.
    """
    if kind == "diffusion":
        for prompt in prompts:
            check_numbers(only, len(prompt.images), prompt.key or prompt.text)
        return diffuse_prompts(vlm, prompts, encoded, step=step, seed=seed, only=only)
    if kind == "diffusion8":

        def noised(key: str, image: Image.Image) -> Image.Image:
            return diffused_picture(image, key, step=step, seed=seed, side=side)

        return vlm.encode([changed(prompt, noised, only) for prompt in prompts])
    worse: Mapping[str, Callable[[str, Image.Image], Image.Image]] = {
        "blur": lambda _, image: blurred(image),
        "black": lambda _, image: Image.new("RGB", image.size),
        "swapped": lambda key, _: donor(key, seed),
    }
    return with_pictures(vlm, prompts, worse[kind], only)


def changed(
    prompt: "Prompt", other: "Callable[[str, Image.Image], Image.Image | None]", only: Sequence[int] = ()
) -> "Prompt":
    """Return the prompt with what ``other`` makes of each picture and its ``picture_key``."""
    keys = (picture_key(prompt.key, number) for number in sorted(set(only)) or count(1))
    return prompt.with_images(lambda image: other(next(keys), image), only)


def with_pictures(
    vlm: "VLM",
    prompts: "Sequence[Prompt]",
    other: "Callable[[str, Image.Image], Image.Image]",
    only: Sequence[int] = (),
) -> Mapping[str, Any]:
    """Return the inputs of ``prompts`` with another picture in place of each, resized to the size of its own."""

    def resized(key: str, image: Image.Image) -> Image.Image:
        return other(key, image).resize(image.size)

    return vlm.encode([changed(prompt, resized, only) for prompt in prompts])


def diffused_picture(image: Image.Image, key: str, *, step: int, seed: int, side: int | None = None) -> Image.Image:
    """Return the picture in RGB diffused to ``step``, pixels scaled to −1 … 1, then clipped and rounded to 8 bits.

    It is ``side`` pixels wide and high (None: its own size). Where a processor neither scales it nor normalises
    otherwise, this is ``diffuse_images`` of it, but for the clipping and the rounding.
    """
    from interp.pictures import as_seen

    image = as_seen(image)
    if side is not None:
        image = image.resize((side, side), Image.Resampling.BICUBIC)
    pixels = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1) / 127.5 - 1
    noised = (diffuse(pixels, step=step, generator=case_generator(key, seed)) + 1) * 127.5
    return Image.fromarray(noised.round().clamp(0, 255).to(torch.uint8).permute(1, 2, 0).numpy())


def blind_inputs(vlm: "VLM", prompts: "Sequence[Prompt]", only: Sequence[int] = ()) -> Mapping[str, Any]:
    """Return the inputs of ``prompts`` without their pictures, or without those numbered ``only``.

    Raises:
        UserError: the family does not support prompts without one.
    """
    return vlm.encode([prompt.with_images(lambda _: None, only) for prompt in prompts])


def blurred(image: Image.Image) -> Image.Image:
    """Return the picture in RGB, blurred with a sigma of ``BLUR_SIGMA`` times its shorter side."""
    from interp.pictures import as_seen

    return as_seen(image).filter(ImageFilter.GaussianBlur(BLUR_SIGMA * min(image.size)))


def donor(key: str, seed: int) -> Image.Image:
    """Return one of a bank of ``DONORS`` drawn pictures of coloured shapes, by hash of key and seed."""
    digest = hashlib.sha256(f"{seed}\n{key}".encode()).digest()
    return bank_picture(int.from_bytes(digest[:8], "big") % DONORS)


@cache
def bank_picture(number: int, side: int = 336) -> Image.Image:
    """Return picture ``number`` of the bank: two to four shapes on a plain background, identical on every machine."""
    rng = np.random.default_rng(number)
    image = Image.new("RGB", (side, side), _colour(rng))
    pen = ImageDraw.Draw(image)
    for _ in range(int(rng.integers(2, 5))):
        x, y = (float(v) for v in rng.uniform(0.2, 0.8, size=2) * side)
        reach, turn = float(rng.uniform(0.1, 0.3)) * side, float(rng.uniform(0, 360))
        if corners := int(rng.choice([0, 3, 4, 6])):
            pen.regular_polygon((x, y, reach), corners, rotation=turn, fill=_colour(rng))
        else:
            pen.ellipse((x - reach, y - reach, x + reach, y + reach), fill=_colour(rng))
    return image


def _colour(rng: np.random.Generator) -> tuple[int, int, int]:
    red, green, blue = colorsys.hsv_to_rgb(*rng.uniform((0, 0.2, 0.3), (1, 1, 1)))
    return round(255 * red), round(255 * green), round(255 * blue)
