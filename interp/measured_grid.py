"""Where image tokens lie in the picture, measured: for families whose arrangement ``interp.families`` does not know.

A noise picture is inverted one row stripe, then one column stripe at a time, and the change of each image token at the
first decoder layer's input is shared out among the stripes. A token lies where it changes most. The places are
believed only if two seeds agree, on ``AGREE`` of the tokens, with one grid that all tokens fill row by row; else they
are refused.
A vision tower whose attention spreads every stripe over the whole picture is refused so.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from interp.errors import UserError
from interp.prompt import Prompt

if TYPE_CHECKING:
    from interp.vlm import VLM

Size = tuple[int, int]
AGREE = 0.9
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
