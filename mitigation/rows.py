"""Which of a processor's tensors belong to which prompt of the batch, so that a few prompts can be taken out of it.

Text and most pictures have a row a prompt. Qwen has a row of ``pixel_values`` for every patch, InternVL for every tile:
there the image tokens of the prompts say whose they are. Knows nothing of noise or decoding.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from interp.errors import UserError
from interp.layout import layout_for

GRIDS = "image_grid_thw"  # Qwen: frames, rows and columns of patches, an image a row


def pixel_rows(inputs: Mapping[str, Any], config: Any) -> list[range]:
    """The rows of ``pixel_values`` that belong to each prompt, in order; ``config`` is the whole model's.

    UserError where the prompts' image tokens cannot be shared out among those rows.
    """
    pixels = len(inputs["pixel_values"])
    if pixels == len(inputs["input_ids"]):
        return [range(row, row + 1) for row in range(pixels)]
    images, grids = _images(inputs, config), inputs.get(GRIDS)
    sizes = [1] * pixels if grids is None else grids.prod(dim=1).tolist()
    starts = [sum(sizes[:image]) for image in range(len(sizes) + 1)]
    return [range(starts[own.start], starts[own.stop]) for own in images]


def select_rows(inputs: Mapping[str, Any], rows: Sequence[int], config: Any) -> dict[str, Any]:
    """The inputs of the prompts ``rows`` alone, in that order, as the processor gave them to the whole batch."""
    index = torch.tensor(rows, device=inputs["input_ids"].device)
    wanted: dict[str, Tensor] = {}
    if inputs.get("pixel_values") is not None:
        owned = pixel_rows(inputs, config)
        wanted["pixel_values"] = _index([owned[row] for row in rows], index)
        if (grids := inputs.get(GRIDS)) is not None and len(grids) != len(inputs["input_ids"]):
            images = _images(inputs, config)
            wanted[GRIDS] = _index([images[row] for row in rows], index)
    return {
        name: value.index_select(0, wanted.get(name, index)) if isinstance(value, Tensor) else value
        for name, value in inputs.items()
    }


def _index(ranges: Sequence[range], like: Tensor) -> Tensor:
    return torch.tensor([row for own in ranges for row in own], device=like.device)


def _images(inputs: Mapping[str, Any], config: Any) -> list[range]:
    """The images of each prompt; where no grids tell, a row of ``pixel_values`` counts as one and all are equal."""
    tokens = (inputs["input_ids"] == layout_for(config).image_token_id(config)).sum(dim=1).tolist()
    grids = inputs.get(GRIDS)
    if grids is None:
        pixels = len(inputs["pixel_values"])
        sizes = [sum(tokens) // pixels if pixels else 0] * pixels
    else:
        sizes = (grids.prod(dim=1) // config.vision_config.spatial_merge_size**2).tolist()
    owned, image = [], 0
    for count in tokens:
        first = image
        while count > 0 and image < len(sizes):
            count, image = count - sizes[image], image + 1
        owned.append(range(first, image))
        if count:
            break
    if len(owned) < len(tokens) or image < len(sizes) or count:
        raise UserError(
            f"{sum(tokens)} image tokens do not share out among {len(inputs['pixel_values'])} rows of pixel_values; "
            f"prompts are told apart by their image tokens; give every prompt one image"
        )
    return owned
