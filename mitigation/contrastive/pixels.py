"""How families lay out ``pixel_values``: conversion to pictures and back, and the rows of each prompt.

Five layouts:

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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from einops import rearrange
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor

from interp.errors import UserError
from interp.generation import pixel_inputs
from interp.module_map import ModuleMap, module_map_of

if TYPE_CHECKING:
    from interp.vlm import VLM, Prompt

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
    from interp.prompt import Prompt

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
    from interp.prompt import Prompt

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
