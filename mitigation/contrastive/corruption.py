"""The distorted picture of contrastive decoding: noised, blurred, black, another picture, or none.

Diffusion noise is added to the normalised pixels, by the published schedule (Leng et al. 2023, arXiv 2311.16922,
equation 2, and its code). The other kinds change the picture before preprocessing and keep its size, so that tiling
does not change. A case's distorted picture depends only on its own picture, its key and the seed, not on its batch.

This module finds the pictures and the rows of each prompt in ``pixel_values``. Families lay them out in five ways:

- one row per picture (LLaVA, PaliGemma, Gemma 3, InstructBLIP)
- one row per picture with a second axis of tiles (LLaVA-NeXT, Idefics3, SmolVLM; IDEFICS, with one tile)
- the same with an axis of pictures before the tiles (Llama 3.2)
- one row per tile (InternVL)
- one row per patch, each pixel repeated ``temporal_patch_size`` times (Qwen2-VL, Qwen2.5-VL, Qwen3-VL)

For the last two, rows are assigned to prompts by their numbers of image tokens.

Other families put pictures into one or several inputs. How is measured: each picture size is encoded in a batch of one.
They have one row a prompt, or are joined on an axis (tiles, patches, crops; MiniCPM joins the last axis). In each case,
the shapes of single pictures add up to the shape of the batch on that axis.
"""

import colorsys
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, count, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, Int
from PIL import Image, ImageDraw, ImageFilter
from torch import Tensor

from interp.errors import UserError
from interp.generation import pixel_inputs
from interp.messages import as_seen
from interp.module_map import ModuleMap, module_map_of
from interp.prompt import Prompt, check_numbers
from mitigation.method import NOISE_STEPS, check_noise_step, check_seed

if TYPE_CHECKING:
    from interp.vlm import VLM


GRIDS = "image_grid_thw"  # Qwen: frames, rows and columns of patches, one row per image


def image_rows(inputs: Mapping[str, Any], config: Any) -> list[range]:
    """Return the images of each prompt.

    Without grids, each row of ``pixel_values`` counts as one image of equal size.
    """
    count = len(inputs[GRIDS] if inputs.get(GRIDS) is not None else inputs["pixel_values"])
    if count == len(inputs["input_ids"]):
        return [range(row, row + 1) for row in range(count)]
    tokens = (inputs["input_ids"] == module_map_of(config).image_token_id(config)).sum(dim=1).tolist()
    if inputs.get(GRIDS) is None:
        sizes = [sum(tokens) // count] * count
    else:
        sizes = (inputs[GRIDS].prod(dim=1) // config.vision_config.spatial_merge_size**2).tolist()
    starts = [0, *accumulate(sizes)]
    try:
        edges = [starts.index(start) for start in (0, *accumulate(tokens))]
    except ValueError:
        edges = [0]
    if edges[-1] != count:
        raise UserError(
            f"{sum(tokens)} image tokens cannot be divided among {count} images or tiles; prompts are told apart by "
            "their image tokens; give every prompt one image"
        )
    return [range(first, last) for first, last in pairwise(edges)]


@dataclass(frozen=True)
class Pictures:
    """The views of every picture, and how to join changed views.

    A view is a tile of the picture or, if ``copies`` is true, a copy of the whole picture. ``sizes`` gives, by picture
    and view, the height and width without padding (0, 0: the whole view is padding).
    """

    views: list[Float[Tensor, "_ channel _ _"]]  # view, channel, height, width
    sizes: list[list[tuple[int, int]]]
    copies: bool
    join: Callable[[list[Tensor]], Tensor]


def pictures_of(inputs: Mapping[str, Any], count: int, *, model: Any = None) -> Pictures:
    """Return the ``count`` pictures of a processor's ``inputs``. ``join`` of the views gives ``pixel_values`` back.

    ``model`` (or its config) is needed if a row is not a picture, for the patch size or the number of tokens per tile.

    Raises:
        UserError: no pixel values, a layout that needs ``model`` without it, videos, or a number of pictures other than
            ``count``.
    """
    pixels, config = inputs.get("pixel_values"), getattr(model, "config", model)
    if pixels is None:
        raise UserError("no pixel_values in the inputs; contrasting pictures needs one; give every prompt an image")
    if inputs.get(GRIDS) is not None and (model is None or repeats_pixels(inputs, config)):
        return _patched(pixels, inputs[GRIDS], count, config)
    others = [name for name, value in inputs.items() if name.startswith("pixel_values_") and isinstance(value, Tensor)]
    if inputs.get(GRIDS) is not None or pixels.ndim not in (4, 5, 6) or others:
        raise UserError(
            f"pixel_values of {tuple(pixels.shape)}{' next to ' if others else ''}{', '.join(others)}; this family "
            "packs its pictures in another way; use mitigation.VCD, which measures it"
        )
    rows = [1] * len(pixels)  # of pixel_values by picture: one, or its number of tiles
    if model is not None and pixels.ndim != 5 and module_map_of(model).geometry == "tiles":
        rows = [len(each) for each in image_rows(inputs, config)]
    if count != (number := len(rows) if sum(rows) == len(pixels) else len(pixels)):
        raise UserError(
            f"{count} keys for {number} rows of pixel_values; a key seeds the noise of one image, so a row must be an "
            "image; give one key an image, and model=model where a row is a tile (InternVL)"
        )
    if pixels.ndim == 6:
        tiles = pixels.flatten(1, 2)
        return Pictures(
            list(tiles), _shown(tiles, None), False, lambda views: torch.stack(views).unflatten(1, pixels.shape[1:3])
        )
    if pixels.ndim == 5:
        return Pictures(list(pixels), _shown(pixels, inputs.get("pixel_attention_mask")), False, torch.stack)
    views = list(pixels.split(rows))
    return Pictures(views, [[_size(view)] * len(view) for view in views], False, torch.cat)


def joins_pictures(module_map: ModuleMap) -> bool:
    """Return whether the pictures of a prompt are one row of ``pixel_values``, or rows grouped by prompt."""
    return module_map.geometry in ("tiles", "cross_attention")


def repeats_pixels(inputs: Mapping[str, Any], config: Any) -> bool:
    """Return whether ``pixel_values`` are Qwen's patches, in which each pixel is there several times."""
    vision = getattr(config, "vision_config", None)
    patched = hasattr(vision, "temporal_patch_size") and hasattr(vision, "spatial_merge_size")
    return inputs.get(GRIDS) is not None and patched and inputs["pixel_values"].ndim == 2


def _size(view: Float[Tensor, "*tiles channel height width"]) -> tuple[int, int]:
    return int(view.shape[-2]), int(view.shape[-1])


def _shown(
    pixels: Float[Tensor, "picture tile channel height width"], mask: Int[Tensor, "picture tile height width"] | None
) -> list[list[tuple[int, int]]]:
    """Return height and width of each tile without padding.

    Tiles of zeros are padding; ``mask`` marks it inside tiles.
    """
    if mask is None:
        return [[_size(tile) if bool(tile.any()) else (0, 0) for tile in picture] for picture in pixels]
    rows, columns = mask.bool().any(dim=-1).sum(dim=-1), mask.bool().any(dim=-2).sum(dim=-1)
    return [list(zip(*sizes, strict=True)) for sizes in zip(rows.tolist(), columns.tolist(), strict=True)]


def _patched(
    pixels: Float[Tensor, "patch value"], grids: Int[Tensor, "picture 3"], count: int, config: Any
) -> Pictures:
    """Return Qwen's patches: merge blocks row-major, the patches of a block row-major, then channel, copy, row,
    column.
    """
    if config is None:
        raise UserError(
            "pixel_values are patches here (Qwen), whose noise must be drawn on the picture they were cut from; pass "
            "model=model, whose config tells the patch size"
        )
    if len(grids) != count:
        raise UserError(f"{count} keys for {len(grids)} images; a key seeds the noise of one image; give one an image")
    if bool((grids[:, 0] != 1).any()):
        raise UserError("an image of several frames; only pictures are noised; give a picture instead of a video")
    vision = config.vision_config
    sizes = {"mh": vision.spatial_merge_size, "mw": vision.spatial_merge_size, "copy": vision.temporal_patch_size,
             "ph": vision.patch_size, "pw": vision.patch_size}  # fmt: skip
    flat, picture = "(gh gw mh mw) (channel copy ph pw)", "copy channel (gh mh ph) (gw mw pw)"
    parts = pixels.split(grids.prod(dim=1).tolist())
    merged = [int(height) // vision.spatial_merge_size for height in grids[:, 1]]
    views = [rearrange(p, f"{flat} -> {picture}", **sizes, gh=gh) for p, gh in zip(parts, merged, strict=True)]

    def join(changed: list[Tensor]) -> Tensor:
        return torch.cat([rearrange(view, f"{picture} -> {flat}", **sizes) for view in changed])

    return Pictures(views, [[_size(view)] * len(view) for view in views], True, join)


Shapes = Mapping[str, tuple[int, ...]]
_JOINS: "WeakKeyDictionary[VLM, bool]" = WeakKeyDictionary()
_ALONE: "WeakKeyDictionary[VLM, dict[tuple[int, int], Shapes]]" = WeakKeyDictionary()


def pieces(vlm: "VLM", prompts: "Sequence[Prompt]", inputs: Mapping[str, Any]) -> list[dict[str, Tensor]]:
    """Return each picture's part of every input that holds pixels, as views of ``inputs``, without padding.

    Raises:
        UserError: the shapes of single pictures do not add up to the shape of the batch.
    """
    alone = [_alone(vlm, image.size) for prompt in prompts for image in prompt.images]
    parts: list[dict[str, Tensor]] = [{} for _ in alone]
    for name in pixel_inputs(inputs):
        shapes = [each[name] for each in alone]
        for part, piece in zip(parts, _divided(name, inputs[name], shapes, vlm.name), strict=True):
            part[name] = piece
    return parts


def joins_rows(vlm: "VLM") -> bool:
    """Return whether two batches can be joined by rows. It is measured: one prompt, encoded once and twice.

    They cannot if an input grows on another axis, or has numbers that count through the batch (Molmo 2's pooling).
    """
    if vlm.module_map.geometry != "unknown":
        return True
    if vlm not in _JOINS:
        prompt = Prompt("?", Image.new("RGB", (64, 48)))
        single, double = (dict(vlm.inputs([prompt] * times)) for times in (1, 2))
        tensors = {name: value for name, value in single.items() if isinstance(value, Tensor)}
        _JOINS[vlm] = all(_same(torch.cat([value, value]), double[name]) for name, value in tensors.items())
    return _JOINS[vlm]


def _same(first: Tensor, second: Tensor) -> bool:
    return first.shape == second.shape and torch.equal(first, second)


def _alone(vlm: "VLM", size: tuple[int, int]) -> Shapes:
    """Return the shapes of the inputs with pixels of one picture of ``size``, encoded once."""
    shapes = _ALONE.setdefault(vlm, {})
    if size not in shapes:
        inputs = vlm.inputs([Prompt("?", Image.new("RGB", size))])
        shapes[size] = {name: tuple(inputs[name].shape) for name in pixel_inputs(inputs)}
    return shapes[size]


def _divided(name: str, batch: Tensor, shapes: Sequence[tuple[int, ...]], model: str) -> list[Tensor]:
    if len(batch) == len(shapes) and all(shape[0] == 1 for shape in shapes) and len(shapes) > 1:
        return [_corner(batch[i : i + 1], shape) for i, shape in enumerate(shapes)]
    for axis in range(batch.ndim):
        lengths = [shape[axis] for shape in shapes]
        others = all(
            len(shape) == batch.ndim and all(shape[i] <= batch.shape[i] for i in range(batch.ndim) if i != axis)
            for shape in shapes
        )
        if others and sum(lengths) == batch.shape[axis]:
            return [_corner(part, shape) for part, shape in zip(batch.split(lengths, axis), shapes, strict=True)]
    raise UserError(
        f"{name} of {model} is {tuple(batch.shape)} for pictures that separately are {', '.join(map(str, shapes))}; "
        "they do not add up, so no noise can be drawn by picture; ask prompts one at a time (batch_size=1)"
    )


def _corner(piece: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return a padded piece without its padding."""
    return piece[tuple(slice(0, length) for length in shape)]


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
        UserError: as ``pictures_of``, and for a step or seed out of range.
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
    that is measured (last paragraph of the module's docstring).

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
