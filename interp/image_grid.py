"""Where each image token lies in the picture: columns of the batch as grids, from the processor's actual output.

For families whose arrangement ``interp.families`` does not know it is measured (``measure_places``): a noise picture is
inverted one row stripe, then one column stripe at a time, and the change of each image token at the first decoder
layer's input is shared out among the stripes. A token lies where it changes most. The places are believed only if two
seeds agree, on ``AGREE`` of the tokens, with one grid that all tokens fill row by row; else they are refused. A vision
tower whose attention spreads every stripe over the whole picture is refused so.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isqrt
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor

from interp.errors import UserError
from interp.families import Geometry
from interp.prompt import Prompt

if TYPE_CHECKING:
    from interp.vlm import VLM

Size = tuple[int, int]
"""Width and height of a picture in pixels."""

Box = tuple[float, float, float, float]
"""Left, top, right, bottom as fractions of the original picture's width and height. Outside 0 to 1 is padding."""

WHOLE: Box = (0.0, 0.0, 1.0, 1.0)
MEASURED = "measured"
"""The name of a grid that was measured, in maps and tables."""


@dataclass(frozen=True)
class PatchGrid:
    """A grid of image tokens over the picture.

    ``columns`` are columns of the (left-padded) batch, row-major from the top left. ``box`` is the part of the picture
    they cover. ``name`` is ``base`` (the whole picture), ``tiles`` (the whole picture in high resolution), ``global``
    (the low-resolution copy that accompanies the tiles) or ``measured`` (the whole picture).
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
    """A grid of these columns, row by row.

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
    """One run, with the aspect ratio of the pixels that the model sees."""
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
    """The base grid, then the unpadded high-resolution grid, whose last column is the newline embedding."""
    from transformers.models.llava_next.modeling_llava_next import get_anyres_image_grid_shape, unpad_image

    vision = tokens.config.vision_config
    side = vision.image_size // vision.patch_size
    size = [int(edge) for edge in tokens.batch["image_sizes"][tokens.picture]]
    tiles = get_anyres_image_grid_shape(size, tokens.config.image_grid_pinpoints, vision.image_size)
    height, width = unpad_image(torch.zeros(1, tiles[0] * side, tiles[1] * side), size).shape[1:]
    base, rest = tokens.columns[: side * side], tokens.columns[side * side :]
    with_newline = grid_of("tiles", rest, height, width + 1)
    # Padding is removed in whole cells, equally on both sides: of an odd number, half a cell stays on each side.
    shown = [min(tiles[0], tiles[1] * size[0] / size[1]) * side, min(tiles[1], tiles[0] * size[1] / size[0]) * side]
    top, left = (shown[0] - height) / (2 * shown[0]), (shown[1] - width) / (2 * shown[1])
    box = (left, top, 1 - left, 1 - top)
    return grid_of("base", base, side, side), PatchGrid("tiles", with_newline.columns[:, :-1], box)


def _thw(tokens: ImageTokens) -> tuple[PatchGrid, ...]:
    """One run; ``image_grid_thw`` counts patches before merging."""
    frames, height, width = (int(n) for n in tokens.batch["image_grid_thw"][tokens.picture])
    merge = tokens.config.vision_config.spatial_merge_size
    if frames != 1:
        raise UserError(f"an image of {frames} frames; only pictures are mapped; give a picture instead of a video")
    return (grid_of("base", tokens.columns, height // merge, width // merge),)


def _tiles(tokens: ImageTokens) -> tuple[PatchGrid, ...]:
    """Square tiles, row by row, then the whole picture. A single tile is the whole picture."""
    runs = _equal_runs(tokens)
    side = isqrt(len(runs[0]))
    if len(runs) == 1:
        return (grid_of("base", runs[0], side, side),)
    rows, columns = _tile_arrangement(tokens, len(runs) - 1)
    squares = torch.stack([grid_of("tiles", run, side, side).columns for run in runs[:-1]])
    whole = squares.reshape(rows, columns, side, side).transpose(1, 2).reshape(rows * side, columns * side)
    return PatchGrid("tiles", whole), grid_of("global", runs[-1], side, side)


def _equal_runs(tokens: ImageTokens) -> list[list[int]]:
    """The image tokens split into tiles of equal length (InternVL has no delimiter tokens between them)."""
    length = getattr(tokens.processor, "image_seq_len", None) or tokens.processor.image_seq_length
    if len(tokens.columns) % length:
        raise UserError(
            f"{len(tokens.columns)} image tokens are no multiple of the {length} of one tile; the processor and the "
            "model disagree; load both from one checkpoint"
        )
    return [tokens.columns[i : i + length] for i in range(0, len(tokens.columns), length)]


def _tile_arrangement(tokens: ImageTokens, tiles: int) -> tuple[int, int]:
    """Rows and columns of tiles, by the image processor's own function for the picture's size.

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
    """InternVL's rows and columns of tiles, by its image processor's own function."""
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import get_optimal_tiled_canvas

    processor = tokens.processor.image_processor
    width, height = tokens.size
    tile = (processor.size["height"], processor.size["width"])
    columns, rows = get_optimal_tiled_canvas((height, width), tile, processor.min_patches, processor.max_patches)
    return rows, columns


def _queries(tokens: ImageTokens) -> tuple[PatchGrid, ...]:
    """No grids: learned queries have no location in the picture."""
    return ()


def _by_grid_or_none(tokens: ImageTokens) -> tuple[PatchGrid, ...]:
    """The grid of ``image_grid_thw`` where the tokens fill it; else no grids."""
    merge = getattr(getattr(tokens.config, "vision_config", None), "spatial_merge_size", None)
    if merge is None or tokens.batch.get("image_grid_thw") is None:
        return ()
    _, height, width = (int(n) // merge for n in tokens.batch["image_grid_thw"][tokens.picture])
    return _thw(tokens) if height * width == len(tokens.columns) else ()


GRIDS: dict[Geometry, Callable[[ImageTokens], tuple[PatchGrid, ...]]] = {
    "patches": _patches,
    "anyres": _anyres,
    "thw": _thw,
    "tiles": _tiles,
    "queries": _queries,
    "cross_attention": _queries,  # never called: there are no columns to lay out
    "measured": _by_grid_or_none,
}


def crop_box(image_processor: Any, size: tuple[int, int]) -> Box:
    """The part of a picture of ``size`` (width, height) that remains after padding to a square and centre cropping."""
    width, height = size
    canvas = (max(size), max(size)) if getattr(image_processor, "do_pad", None) else size
    shown = [float(edge) for edge in canvas]
    if getattr(image_processor, "do_center_crop", None):
        resized = _resized(image_processor, canvas)
        crop = (image_processor.crop_size["width"], image_processor.crop_size["height"])
        shown = [canvas[i] * crop[i] / resized[i] for i in (0, 1)]
    left, top = (width - shown[0]) / 2, (height - shown[1]) / 2
    return left / width, top / height, (left + shown[0]) / width, (top + shown[1]) / height


def _resized(image_processor: Any, size: tuple[int, int]) -> tuple[float, float]:
    """Width and height after the processor's resize and before its crop."""
    target = dict(image_processor.size) if image_processor.do_resize else {"width": size[0], "height": size[1]}
    if "shortest_edge" in target:
        scale = target["shortest_edge"] / min(size)
        return size[0] * scale, size[1] * scale
    return float(target["width"]), float(target["height"])


AGREE = 0.9  # of the tokens, with one grid, by each seed
SEEDS = (0, 1)
_PLACES: "WeakKeyDictionary[VLM, dict[Size, tuple[int, int]]]" = WeakKeyDictionary()


def measure_places(vlm: "VLM", size: Size) -> tuple[int, int]:
    """Rows and columns of the grid that the image tokens of a picture of ``size`` (width, height) fill, row by row.

    Costs about four forwards of the vision tower for each row or column of tokens, once a size; ``segment`` uses what
    was measured from then on.

    Raises:
        UserError: no image tokens in the sequence, or tokens that fill no grid on which two seeds agree.
    """
    vlm.layout.require_image_tokens(vlm.name)
    known = _PLACES.setdefault(vlm, {})
    if size not in known:
        heats = [_heats(vlm, size, seed) for seed in SEEDS]
        known[size] = _grid(heats, len(heats[0][0]), size, vlm.name)
    return known[size]


def measured_grid(vlm: "VLM", size: Size) -> tuple[int, int] | None:
    """What ``measure_places`` found for this size; None if it was not asked."""
    return _PLACES.get(vlm, {}).get(size)


def _heats(vlm: "VLM", size: Size, seed: int) -> tuple[Float[Tensor, "token row"], Float[Tensor, "token column"]]:
    """By row stripe and by column stripe: the share of the stripe's change that each image token has."""
    width, height = size
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    whole = _first_states(vlm, pixels)
    side = (width * height / len(whole)) ** 0.5  # of a token in the picture, if the tokens cover it once
    found = []
    for axis, length in enumerate((height, width)):
        count = max(2, min(length, round(length / side)))
        stripes = []
        for i in range(count):
            changed = pixels.copy()
            stripe = slice(round(i * length / count), round((i + 1) * length / count))
            where = (stripe, slice(None)) if axis == 0 else (slice(None), stripe)
            changed[where] = 255 - changed[where]
            change = (_first_states(vlm, changed) - whole).norm(dim=-1)
            stripes.append(change / change.sum().clamp(min=1e-12))
        found.append(torch.stack(stripes, dim=1))
    return found[0], found[1]


class _Seen(Exception):
    """Ends a forward at the first decoder layer: what comes behind it is not needed."""


def _first_states(vlm: "VLM", pixels: np.ndarray) -> Float[Tensor, "token width"]:
    """The image tokens' states at the first decoder layer's input, without those that no picture reaches."""
    kept: list[Tensor] = []

    def see(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        kept.append((args[0] if args else kwargs["hidden_states"])[0].detach().float().cpu())
        raise _Seen

    encoded = vlm.inputs([Prompt("?", Image.fromarray(pixels))])
    first = vlm.layout.module(vlm.model, "layers")[0]
    handle = first.register_forward_pre_hook(see, with_kwargs=True)
    try:
        with torch.no_grad():
            vlm.model(**encoded, use_cache=False)
    except _Seen:
        pass
    finally:
        handle.remove()
    return kept[0][encoded["input_ids"][0].cpu() == vlm.layout.image_token_id(vlm.model.config)]


def _grid(heats: Any, count: int, size: Size, name: str) -> tuple[int, int]:
    """The grid that fits best by both seeds."""
    shapes = [(rows, count // rows) for rows in range(1, count + 1) if count % rows == 0]
    fits = {shape: min(_agreement(shape, *heat) for heat in heats) for shape in shapes}
    best = max(fits, key=lambda shape: fits[shape])
    if fits[best] < AGREE:
        raise UserError(
            f"the {count} image tokens of {name} for a picture of {size[0]} × {size[1]} fill no grid that was measured "
            f"twice alike (the best is {best[0]} × {best[1]}, with {fits[best]:.0%} of the tokens in place); no maps "
            "over the picture; read the picture's share of attention, or use occlude_image"
        )
    return best


def _agreement(shape: tuple[int, int], by_row: Tensor, by_column: Tensor) -> float:
    """The share of tokens that change most with the stripes that this grid says, both ways."""
    rows, columns = shape
    token = torch.arange(len(by_row))
    right = torch.ones(len(by_row), dtype=torch.bool)
    for heat, place, of in ((by_row, token // columns, rows), (by_column, token % columns, columns)):
        stripes = heat.shape[1]
        middle, found = (place + 0.5) / of, (heat.argmax(1) + 0.5) / stripes
        right &= (middle - found).abs() <= 0.5 / of + 0.5 / stripes - 1e-6
        if of > stripes or 2 * of <= stripes:  # a coarser or finer grid would be in place by chance
            return 0.0
    return float(right.float().mean())
