"""The second branch's picture made worse in other ways than diffusion noise: blurred, black, another one, or none.

All but diffusion change the picture before the processor sees it and keep its size, so that every family tiles it and
counts its tokens as before. A case's picture depends on its own picture, its key and the seed alone, never on its
batch. Knows nothing of logits.
"""

import colorsys
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from interp.errors import UserError
from mitigation.noise import diffuse_images
from mitigation.ranges import NOISE_KINDS, check_noise_kind, check_noise_step, check_seed

if TYPE_CHECKING:
    from transformers import BatchFeature

    from interp.vlm import VLM, Prompt

NONE = "none"
BLUR_SIGMA = 0.1
"""Standard deviation of the blur as a share of the picture's shorter side: colours and layout stay, objects do not."""

DONORS = 32
"""How many pictures the bank has from which ``swapped`` takes one where the caller hands in none."""


def corrupt_inputs(
    vlm: "VLM",
    prompts: "Sequence[Prompt]",
    *,
    kind: str,
    step: int,
    seed: int,
    donors: Mapping[str, Image.Image] | None = None,
) -> "BatchFeature | dict[str, Any]":
    """Inputs of the second branch: what ``vlm.encode`` gives for ``prompts``, with a worse picture.

    Args:
        kind: ``diffusion`` (noise at ``step`` on the normalised pixels, ``mitigation.noise``), ``blur`` (a Gaussian,
            sigma = ``BLUR_SIGMA`` × the shorter side), ``black``, ``swapped`` (another picture, resized to this one's
            size), or ``none`` (no picture: the text alone, so that the ids are others and fewer).
        step: of the diffusion alone.
        seed: of the diffusion, and of which picture of the bank is taken.
        donors: prompt key → the picture that ``swapped`` shows in place of the prompt's own, for a caller who knows the
            benchmark. None: one of a bank of ``DONORS`` drawn pictures of coloured shapes, by hash of key and seed. A
            donor from the batch itself would make an answer depend on who is asked beside it.

    Raises:
        UserError: an unknown kind, a step or seed out of range, a prompt without image or without donor, or a family
            that cannot be asked without an image.
    """
    if kind != NONE:
        check_noise_kind(kind)
    check_noise_step(step)
    check_seed(seed)
    pictured = [(prompt, _picture(prompt)) for prompt in prompts]
    if kind == "diffusion":
        return diffuse_images(vlm.encode(prompts), [p.key for p in prompts], step=step, seed=seed, model=vlm.model)
    if kind == NONE:
        return vlm.encode([replace(prompt, image=None) for prompt in prompts])
    worse: Mapping[str, Callable[[Prompt, Image.Image], Image.Image]] = {
        "blur": lambda _, image: blurred(image),
        "black": lambda _, image: Image.new("RGB", image.size),
        "swapped": lambda prompt, image: _donor(prompt.key, seed, donors).resize(image.size),
    }
    assert set(worse) | {"diffusion"} == set(NOISE_KINDS)
    return vlm.encode([replace(prompt, image=worse[kind](prompt, image)) for prompt, image in pictured])


def blurred(image: Image.Image) -> Image.Image:
    """The picture in RGB, blurred with a sigma of ``BLUR_SIGMA`` times its shorter side."""
    from interp.rendering import to_rgb

    return to_rgb(image).filter(ImageFilter.GaussianBlur(BLUR_SIGMA * min(image.size)))


def _picture(prompt: "Prompt") -> Image.Image:
    if prompt.image is None:
        raise UserError(
            f"no image in prompt '{prompt.key or prompt.text}'; VCD contrasts two pictures; ask it with another method"
        )
    return prompt.image


def _donor(key: str, seed: int, donors: Mapping[str, Image.Image] | None) -> Image.Image:
    if donors is None:
        digest = hashlib.sha256(f"{seed}\n{key}".encode()).digest()
        return bank_picture(int.from_bytes(digest[:8], "big") % DONORS)
    if key not in donors:
        raise UserError(
            f"no donor picture for the prompt with key '{key}'; swapped shows another picture in place of the prompt's "
            "own; hand in one a key, or donors=None for the bundled bank"
        )
    return donors[key].convert("RGB")


@cache
def bank_picture(number: int, side: int = 336) -> Image.Image:
    """Picture ``number`` of the bank: a background of one colour and two to four shapes, equal on every machine."""
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
