"""Which of a processor's tensors belong to which prompt of the batch, so that a few prompts can be taken out of it.

Text and most pictures have a row a prompt. Qwen has a row of ``pixel_values`` for every patch, InternVL for every tile:
there the image tokens of the prompts say whose they are. Knows nothing of noise or decoding.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

from torch import Tensor

from interp.errors import UserError
from interp.layout import layout_for

GRIDS = "image_grid_thw"  # Qwen: frames, rows and columns of patches, an image a row


def pixel_rows(inputs: Mapping[str, Any], config: Any) -> list[range]:
    """The rows of ``pixel_values`` that belong to each prompt, in order; ``config`` is the whole model's.

    UserError where the prompts' image tokens cannot be shared out among those rows.
    """
    images, grids = image_rows(inputs, config), inputs.get(GRIDS)
    if grids is None:
        return images
    starts = [0, *accumulate(grids.prod(dim=1).tolist())]
    return [range(starts[own.start], starts[own.stop]) for own in images]


def image_rows(inputs: Mapping[str, Any], config: Any) -> list[range]:
    """The images of each prompt; where no grids tell, a row of ``pixel_values`` counts as one, and all are equal."""
    count = len(inputs[GRIDS] if inputs.get(GRIDS) is not None else inputs["pixel_values"])
    if count == len(inputs["input_ids"]):
        return [range(row, row + 1) for row in range(count)]
    tokens = (inputs["input_ids"] == layout_for(config).image_token_id(config)).sum(dim=1).tolist()
    if inputs.get(GRIDS) is None:
        sizes = [sum(tokens) // count] * count
    else:
        sizes = (inputs[GRIDS].prod(dim=1) // config.vision_config.spatial_merge_size**2).tolist()
    starts = [0, *accumulate(sizes)]
    try:
        edges = [starts.index(taken) for taken in (0, *accumulate(tokens))]
    except ValueError:
        edges = [0]
    if edges[-1] != count:
        raise UserError(
            f"{sum(tokens)} image tokens do not share out among {count} images or tiles; prompts are told apart by "
            f"their image tokens; give every prompt one image"
        )
    return [range(first, last) for first, last in pairwise(edges)]


def select_rows(inputs: Mapping[str, Any], rows: Sequence[int], config: Any) -> dict[str, Any]:
    """The inputs of the prompts ``rows`` alone, in that order, as the processor gave them to the whole batch.

    A tensor's first axis counts the prompts, the rows of ``pixel_values``, or the images.
    """
    by_length = {}
    if inputs.get("pixel_values") is not None:
        for name, owned in ((GRIDS, image_rows(inputs, config)), ("pixel_values", pixel_rows(inputs, config))):
            if inputs.get(name) is not None:
                by_length[len(inputs[name])] = [place for row in rows for place in owned[row]]
    by_length[len(inputs["input_ids"])] = list(rows)
    return {
        name: value[by_length[len(value)]] if isinstance(value, Tensor) else value for name, value in inputs.items()
    }
