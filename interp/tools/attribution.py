"""Attribute the Yes/No margin, or another metric, to picture and question: integrated gradients (captum), occlusion.

All functions take one prompt and return attributions in logits of the margin, positive favours Yes; or in the unit of
``metric``, a function of the first answer token's logits (``interp.logit_difference``), which takes the margin's place.
A word is occluded by full stops in place of its tokens, so that all other tokens keep their positions. A region is
painted in the mean colour. captum runs our own forward function: its ``LLMAttribution`` (0.9) drops the picture on the
way to ``generate`` and returns zero for every region.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from captum.attr import IntegratedGradients
from einops import rearrange, reduce
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor

from interp.errors import UserError
from interp.generation import pixel_inputs
from interp.image_grid import Box
from interp.prompt import check_numbers
from interp.segments import RowSegments, segment

if TYPE_CHECKING:
    from interp.generation import Metric
    from interp.vlm import VLM, Prompt

FILLER = "."
Region = tuple[int, int, int, int]
"""Left, top, right and bottom in pixels."""


@dataclass(frozen=True)
class GradientAttribution:
    """Integrated gradients of the margin, or the metric asked for, of one prompt.

    ``pixels`` has the shape of the processor's ``pixel_values``; ``tokens`` is 0 at columns outside the question.
    ``baseline_margin`` is the margin of the plain picture with a question of full stops.
    """

    pixels: Float[Tensor, "..."]
    tokens: Float[Tensor, " column"]
    row: RowSegments
    margin: float
    baseline_margin: float

    @property
    def error(self) -> float:
        """The completeness error: how far both sums are from the difference of the margins. More steps reduce it."""
        return float(self.pixels.sum() + self.tokens.sum()) - (self.margin - self.baseline_margin)

    @property
    def words(self) -> pd.DataFrame:
        """``attribution`` of each word of the question, in reading order. A token of two words counts twice."""
        values = [float(self.tokens[list(word.columns)].sum()) for word in self.row.words]
        return pd.DataFrame({"word": [word.text for word in self.row.words], "attribution": values})


def integrated_gradients(
    vlm: "VLM", prompt: "Prompt", *, steps: int = 64, metric: "Metric | None" = None, batch_size: int = 16
) -> GradientAttribution:
    """Return integrated gradients from a plain picture and full stops to the prompt (Sundararajan et al. 2017, eq. 1).

    Pixels and text embeddings are interpolated together, at ``steps`` Gauss-Legendre nodes, ``batch_size`` at a time.
    InstructBLIP's Q-Former reads the question separately; what reaches the margin that way is not counted.

    Raises:
        UserError: the prompt has no image, fewer than one step, or a picture that enters as more than ``pixel_values``.
    """
    vlm.require("score")
    _picture(prompt, 1)
    if steps < 1:
        raise UserError(f"steps={steps}; must be at least 1; leave it out for the default")
    encoded = vlm.encode([prompt])
    if (ways := pixel_inputs(encoded)) != ["pixel_values"]:
        raise UserError(
            f"{vlm.name} takes its picture as {' and '.join(ways) or 'nothing'}; integrated gradients follow "
            "pixel_values alone; use occlude_image"
        )
    plain = vlm.encode([prompt.with_images(lambda image: Image.new("RGB", image.size, mean_colour(vlm)))])
    row = segment(vlm, [prompt], encoded).rows[0]
    embed = vlm.speaker.get_input_embeddings()
    with torch.no_grad():
        text = embed(encoded["input_ids"]).float()
        silent = embed(_filled(vlm, encoded["input_ids"], row.columns("user"))).float()
    # Pixels get an extra leading dimension: what the first one counts differs by family.
    inputs = (encoded["pixel_values"][None].float(), text)
    baselines = (plain["pixel_values"][None].float(), silent)
    forward = _forward(vlm, encoded, embed, metric)
    with torch.enable_grad():
        pixels, embeddings = IntegratedGradients(forward).attribute(
            inputs, baselines, n_steps=steps, internal_batch_size=batch_size
        )
    with torch.no_grad():
        margin, baseline_margin = (float(forward(*each)) for each in (inputs, baselines))
    tokens = reduce(embeddings[0], "column dim -> column", "sum")
    return GradientAttribution(pixels[0].float().cpu(), tokens.float().cpu(), row, margin, baseline_margin)


def _forward(
    vlm: "VLM", encoded: Mapping[str, Any], embed: Any, metric: "Metric | None"
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a function from pixels and embeddings of all columns to margins, for variants of one encoded prompt."""

    def margins(
        pixels: Float[Tensor, "variant ..."], embeddings: Float[Tensor, "variant column dim"]
    ) -> Float[Tensor, " variant"]:
        batch = _repeated(encoded, len(pixels)) | {"pixel_values": pixels.flatten(0, 1).to(vlm.dtype)}
        new = embeddings.to(vlm.dtype)

        def instead(module: Any, arguments: Any, output: Tensor) -> Tensor:
            """Replace the prompt's embeddings; those of an opening's tokens after it stay."""
            asks = output.ndim == 3 and output.shape[1] >= new.shape[1]
            return torch.cat([new, output[:, new.shape[1] :]], dim=1) if asks else output

        handle = embed.register_forward_hook(instead)  # ``input_ids`` still says where the picture goes
        try:
            return vlm.measure(batch, metric)
        finally:
            handle.remove()

    return margins


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

    ids = encoded["input_ids"]
    ids = torch.cat([ids, *(_filled(vlm, ids, list(word.columns)) for word in words)])

    def scored(rows: list[int]) -> Float[Tensor, " variant"]:
        batch = _repeated(encoded, len(rows)) | {"input_ids": ids[rows]}
        return vlm.score([prompt] * len(rows), encoded=batch, metric=metric)

    margins = vlm.batches.measured([prompt] * len(ids), scored, batch_size=batch_size)
    values = (margins[0] - margins[1:]).tolist()
    return pd.DataFrame({"word": [word.text for word in words], "attribution": values})


def grey_out(vlm: "VLM", prompt: "Prompt", boxes: Sequence[Box], *, image: int = 1) -> "Prompt":
    """Return the prompt with these parts of its picture painted in the mean colour, as ``occlude_image`` paints a
    region.

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


def _repeated(encoded: Mapping[str, Any], times: int) -> dict[str, Any]:
    """Return the inputs of one prompt, repeated ``times`` times."""
    return {name: torch.cat([value] * times) if torch.is_tensor(value) else value for name, value in encoded.items()}


def _filled(vlm: "VLM", ids: Int[Tensor, "1 column"], columns: list[int]) -> Int[Tensor, "1 column"]:
    """Return ``ids`` with full stops at ``columns``."""
    filled = ids.clone()
    filled[:, columns] = vlm.tokenizer(FILLER, add_special_tokens=False)["input_ids"][-1]
    return filled


def _painted(picture: Image.Image, regions: Sequence[Region], colour: tuple[int, int, int]) -> Image.Image:
    painted = picture.copy()
    for region in regions:
        painted.paste(colour, region)
    return painted


def mean_colour(vlm: "VLM") -> tuple[int, int, int]:
    """Return the image processor's mean in RGB, or middle grey if it has none."""
    mean = getattr(vlm.processor.image_processor, "image_mean", None) or (0.5, 0.5, 0.5)
    red, green, blue = (round(255 * share) for share in mean)
    return red, green, blue


def _picture(prompt: "Prompt", number: int) -> Image.Image:
    if prompt.image is None:
        raise UserError("this prompt has no image; attribution compares picture and words; give it one")
    check_numbers([number], len(prompt.images), prompt.key or prompt.text)
    return prompt.images[number - 1]
