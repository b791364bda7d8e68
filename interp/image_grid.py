"""Where each image token lies in the picture: columns of the batch as grids, from the processor's actual output.

``interp.families`` names the arrangement of a family's tokens. Of other families the processor may say it in numbers
(``image_grid_thw``, ``image_sizes``). Otherwise there is no grid, and so no map over the picture.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isqrt
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from interp.errors import UserError
from interp.families import Geometry

Size = tuple[int, int]
"""Width and height of a picture in pixels."""

Box = tuple[float, float, float, float]
"""Left, top, right, bottom as fractions of the original picture's width and height. Outside 0 to 1 is padding."""

WHOLE: Box = (0.0, 0.0, 1.0, 1.0)


@dataclass(frozen=True)
class PatchGrid:
    """A grid of image tokens over the picture.

    ``columns`` are columns of the (left-padded) batch, row-major from the top left. ``box`` is the part of the picture
    they cover. ``name`` is ``base`` (the whole picture), ``tiles`` (the whole picture in high resolution) or
    ``global`` (the low-resolution copy that accompanies the tiles).
    """

    name: str
    columns: Int[Tensor, "height width"]
    box: Box = WHOLE


class ImageTokens(NamedTuple):
    """One row's image tokens and what is needed to lay them out."""

    columns: list[int]  # in the batch, ascending
    ids: Sequence[int]  # the row's whole input_ids
    picture: int  # index among the batch's pictures
    pictures: int  # number of the batch's pictures
    size: tuple[int, int]  # width and height of the original picture, in pixels
    batch: Mapping[str, Any]  # the processor's output
    config: Any  # the model's config
    processor: Any


def grid_of(name: str, columns: Sequence[int], height: int, width: int, box: Box = WHOLE) -> PatchGrid:
    """Return a grid of these columns, row by row.

    Raises:
        UserError: they do not fill it.
    """
    if height * width != len(columns):
        raise UserError(
            f"{len(columns)} image tokens do not fill a grid of {height} × {width}; the processor and the model "
            "disagree; load both from one checkpoint"
        )
    return PatchGrid(name, torch.tensor(columns).reshape(height, width), box)


def _patches(tokens: ImageTokens) -> tuple[PatchGrid, ...]:
    """Return one run, with the aspect ratio of the pixels that the model sees."""
    pixels = tokens.batch["pixel_values"]
    if len(pixels) != tokens.pictures:
        raise UserError(
            f"{len(pixels)} crops of {tokens.pictures} pictures; crops (pan and scan) are not mapped; "
            "load the processor with do_pan_and_scan=False"
        )
    height, width = pixels.shape[-2:]
    count = len(tokens.columns)
    box = crop_box(tokens.processor.image_processor, tokens.size)
    return (grid_of("base", tokens.columns, isqrt(count * height // width), isqrt(count * width // height), box),)


def _anyres(tokens: ImageTokens) -> tuple[PatchGrid, ...]:
    """Return the base grid, then the unpadded high-resolution grid, whose last column is the newline embedding."""
    from transformers.models.llava_next.modeling_llava_next import get_anyres_image_grid_shape, unpad_image

    vision = tokens.config.vision_config
    side = vision.image_size // vision.patch_size
    size = [int(edge) for edge in tokens.batch["image_sizes"][tokens.picture]]
    tiles = get_anyres_image_grid_shape(size, tokens.config.image_grid_pinpoints, vision.image_size)
    height, width = unpad_image(torch.zeros(1, tiles[0] * side, tiles[1] * side), size).shape[1:]
    base, rest = tokens.columns[: side * side], tokens.columns[side * side :]
    with_newline = grid_of("tiles", rest, height, width + 1)
    # Padding is removed in whole cells, equally on both sides: of an odd number, half a cell stays on each side.
    visible = [min(tiles[0], tiles[1] * size[0] / size[1]) * side, min(tiles[1], tiles[0] * size[1] / size[0]) * side]
    top, left = (visible[0] - height) / (2 * visible[0]), (visible[1] - width) / (2 * visible[1])
    box = (left, top, 1 - left, 1 - top)
    return grid_of("base", base, side, side), PatchGrid("tiles", with_newline.columns[:, :-1], box)


def _tiles(tokens: ImageTokens) -> tuple[PatchGrid, ...]:
    """Square tiles, row by row, then the whole picture. A single tile is the whole picture."""
    runs = _equal_runs(tokens)
    side = isqrt(len(runs[0]))
    if len(runs) == 1:
        return (grid_of("base", runs[0], side, side),)
    rows, columns = _tile_arrangement(tokens, len(runs) - 1)
    squares = torch.stack([grid_of("tiles", run, side, side).columns for run in runs[:-1]])
    picture = squares.reshape(rows, columns, side, side).transpose(1, 2).reshape(rows * side, columns * side)
    return PatchGrid("tiles", picture), grid_of("global", runs[-1], side, side)


def _equal_runs(tokens: ImageTokens) -> list[list[int]]:
    """Return the image tokens split into tiles of equal length (InternVL has no delimiter tokens between them)."""
    length = getattr(tokens.processor, "image_seq_len", None) or tokens.processor.image_seq_length
    if len(tokens.columns) % length:
        raise UserError(
            f"{len(tokens.columns)} image tokens are no multiple of the {length} of one tile; the processor and the "
            "model disagree; load both from one checkpoint"
        )
    return [tokens.columns[i : i + length] for i in range(0, len(tokens.columns), length)]


def _tile_arrangement(tokens: ImageTokens, tiles: int) -> tuple[int, int]:
    """Return the rows and columns of tiles, by the image processor's own function for the picture's size.

    Not by the row and column tokens: Idefics3-8B has none in its vocabulary and spells them out in pieces.
    """
    width, height = tokens.size
    counted = tokens.processor.image_processor.get_number_of_image_patches(height, width, {})
    rows, columns = counted[1:] if isinstance(counted, tuple) else _canvas(tokens)
    if rows * columns != tiles:
        raise UserError(
            f"{tiles} tiles of an image where {rows} × {columns} were expected; the image processor was called with "
            "other settings than its own; call vlm.encode"
        )
    return rows, columns


def _canvas(tokens: ImageTokens) -> tuple[int, int]:
    """Return InternVL's rows and columns of tiles, by its image processor's own function."""
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import get_optimal_tiled_canvas

    processor = tokens.processor.image_processor
    width, height = tokens.size
    tile = (processor.size["height"], processor.size["width"])
    columns, rows = get_optimal_tiled_canvas((height, width), tile, processor.min_patches, processor.max_patches)
    return rows, columns


def _by_numbers(tokens: ImageTokens) -> tuple[PatchGrid, ...]:
    """Return the grid by the processor's numbers of patches or pixels, if the tokens fill it; else no grids."""
    vision: Any = getattr(tokens.config, "vision_config", None)
    merge = getattr(vision, "spatial_merge_size", getattr(tokens.config, "spatial_merge_size", None))
    grids: Any = tokens.batch.get("image_grid_thw")
    sizes: Any = tokens.batch.get("image_sizes")
    if merge is None or (grids is None and (sizes is None or tokens.batch["pixel_values"].ndim != 4)):
        return ()  # pixels with more dimensions are tiles
    if grids is not None:
        height, width = (int(count) // merge for count in grids[tokens.picture][1:])
    else:
        height, width = (int(edge) // (merge * vision.patch_size) for edge in sizes[tokens.picture])
    filled = height * width == len(tokens.columns)
    return (grid_of("base", tokens.columns, height, width),) if filled else ()


GRIDS: dict[Geometry, Callable[[ImageTokens], tuple[PatchGrid, ...]]] = {
    "patches": _patches,
    "anyres": _anyres,
    "thw": _by_numbers,
    "tiles": _tiles,
    "queries": lambda tokens: (),  # learned queries have no location in the picture
    "cross_attention": lambda tokens: (),  # never called: there are no columns to lay out
    "unknown": _by_numbers,
}


def crop_box(image_processor: Any, size: tuple[int, int]) -> Box:
    """Return the part of a picture of ``size`` (width, height) that remains after padding to a square and centre
    cropping.
    """
    width, height = size
    canvas = (max(size), max(size)) if getattr(image_processor, "do_pad", None) else size
    visible = [float(edge) for edge in canvas]
    if getattr(image_processor, "do_center_crop", None):
        resized = _resized(image_processor, canvas)
        crop = (image_processor.crop_size["width"], image_processor.crop_size["height"])
        visible = [canvas[i] * crop[i] / resized[i] for i in (0, 1)]
    left, top = (width - visible[0]) / 2, (height - visible[1]) / 2
    return left / width, top / height, (left + visible[0]) / width, (top + visible[1]) / height


def _resized(image_processor: Any, size: tuple[int, int]) -> tuple[float, float]:
    """Width and height after the processor's resize and before its crop."""
    target = dict(image_processor.size) if image_processor.do_resize else {"width": size[0], "height": size[1]}
    if "shortest_edge" in target:
        scale = target["shortest_edge"] / min(size)
        return size[0] * scale, size[1] * scale
    return float(target["width"]), float(target["height"])
