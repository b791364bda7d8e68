"""Attributes the Yes/No margin, or another metric, to picture and question by occlusion.

All functions take one prompt and return attributions in logits of the margin, positive favours Yes; or in the unit of
``metric``, a function of the first answer token's logits (``interp.logit_difference``), which takes the margin's place.
A word is occluded by full stops in place of its tokens, so that all other tokens keep their positions. A region is
painted in the mean colour.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import pandas as pd
import torch
from einops import rearrange
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from interp.errors import UserError
from interp.image_grid import Box
from interp.prompt import check_numbers
from interp.segments import segment

if TYPE_CHECKING:
    from interp.margin import Metric
    from interp.vlm import VLM, Prompt

FILLER = "."
Region = tuple[int, int, int, int]
"""Left, top, right and bottom in pixels."""


def occlude_image(
    vlm: "VLM",
    prompt: "Prompt",
    *,
    rows: int = 6,
    columns: int = 6,
    metric: "Metric | None" = None,
    image: int = 1,
    batch_size: int = 16,
) -> Float[Tensor, "row column"]:
    """For each region: the margin minus the margin with that region painted in the mean colour.

    Regions are the cells of a ``rows`` × ``columns`` grid over the original picture, before any preprocessing.
    ``image`` is the number of the picture, from 1.

    Raises:
        UserError: the prompt has no such image, or the picture has fewer pixels than regions along a side.
    """
    picture, colour = _picture(prompt, image), mean_colour(vlm)
    if not (1 <= columns <= picture.width and 1 <= rows <= picture.height):
        raise UserError(
            f"rows={rows}, columns={columns} of a picture of {picture.width} × {picture.height} px; choose 1 to "
            f"{picture.height} rows and 1 to {picture.width} columns"
        )
    across, down = ([round(side * at / count) for at in range(count + 1)]
                    for side, count in ((picture.width, columns), (picture.height, rows)))  # fmt: skip
    regions = [(left, top, right, bottom) for top, bottom in pairwise(down) for left, right in pairwise(across)]
    painted = (_painted(picture, [region], colour) for region in regions)
    variants = [prompt, *(prompt.with_images(lambda _, new=new: new, [image]) for new in painted)]  # type: ignore[misc]
    margins = vlm.batches.scores(variants, metric=metric, batch_size=batch_size)
    return rearrange(margins[0] - margins[1:], "(row column) -> row column", row=rows)


def occlude_words(
    vlm: "VLM", prompt: "Prompt", *, metric: "Metric | None" = None, batch_size: int = 16
) -> pd.DataFrame:
    """``attribution`` of each word: the margin minus the margin with that word's tokens replaced by full stops.

    Raises:
        UserError: the question has no words.
    """
    encoded = dict(vlm.encode([prompt]))
    words = segment(vlm, [prompt], encoded).rows[0].words
    if not words:
        raise UserError(f"no word in the question {prompt.text!r}; occlusion removes one at a time; ask in words")

    stop = vlm.tokenizer(FILLER, add_special_tokens=False)["input_ids"][-1]
    ids = encoded["input_ids"].repeat(1 + len(words), 1)
    for row, word in enumerate(words):
        ids[1 + row, list(word.columns)] = stop

    def scored(rows: list[int]) -> Float[Tensor, " variant"]:
        batch = {name: torch.cat([value] * len(rows)) if torch.is_tensor(value) else value
                 for name, value in encoded.items()}  # fmt: skip
        return vlm.score([prompt] * len(rows), encoded=batch | {"input_ids": ids[rows]}, metric=metric)

    margins = vlm.batches.measured([prompt] * len(ids), scored, batch_size=batch_size)
    values = (margins[0] - margins[1:]).tolist()
    return pd.DataFrame({"word": [word.text for word in words], "attribution": values})


def grey_out(vlm: "VLM", prompt: "Prompt", boxes: Sequence[Box], *, image: int = 1) -> "Prompt":
    """The prompt with these parts of its picture painted in the mean colour, as ``occlude_image`` paints a region.

    A box has left, top, right and bottom as shares of the picture's width and height, 0 to 1. ``image`` is the number
    of the picture, from 1.

    Raises:
        UserError: the prompt has no image, or a box that does not lie in the picture.
    """
    picture, regions = _picture(prompt, image), []
    for left, top, right, bottom in boxes:
        if not (0 <= left < right <= 1 and 0 <= top < bottom <= 1):
            raise UserError(
                f"a box of {(left, top, right, bottom)}; left, top, right and bottom are shares of the picture, 0 to "
                "1, and the first two smaller than the last two"
            )
        width, height = picture.size
        regions.append((round(left * width), round(top * height), round(right * width), round(bottom * height)))
    return prompt.with_images(lambda _: _painted(picture, regions, mean_colour(vlm)), [image])


def _painted(picture: Image.Image, regions: Sequence[Region], colour: tuple[int, int, int]) -> Image.Image:
    painted = picture.copy()
    for region in regions:
        painted.paste(colour, region)
    return painted


def mean_colour(vlm: "VLM") -> tuple[int, int, int]:
    """The image processor's mean in RGB, or middle grey if it has none."""
    mean = getattr(vlm.processor.image_processor, "image_mean", None) or (0.5, 0.5, 0.5)
    red, green, blue = (round(255 * share) for share in mean)
    return red, green, blue


def _picture(prompt: "Prompt", number: int) -> Image.Image:
    if prompt.image is None:
        raise UserError("this prompt has no image; attribution compares picture and words; give it one")
    check_numbers([number], len(prompt.images), prompt.key or prompt.text)
    return prompt.images[number - 1]
