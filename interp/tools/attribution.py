"""Attributes the Yes/No margin, or another metric, to picture and question: integrated gradients (captum), occlusion.

captum runs our own forward function, which scores the first answer token. Its ``LLMAttribution`` (0.9) drops the image
on the way to ``generate`` and returns zero for every region. All functions take one prompt and return attributions in
logits of the margin, positive favours Yes; or in the unit of ``metric``, a function of the first answer token's logits
(``interp.logit_difference``), which takes the margin's place. The baseline of a word replaces each of its tokens with
a full stop, so that all other tokens keep their positions. The baseline of a picture is a plain one of the mean colour.
InstructBLIP's Q-Former reads the question separately; what reaches the margin that way is not counted.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from interp.tools.gradients import activation_gradients

if TYPE_CHECKING:
    from interp.margin import Metric
    from interp.vlm import VLM, Prompt

FILLER = "."
Region = tuple[int, int, int, int]
"""Left, top, right and bottom in pixels."""

SPATIAL = ("patches", "queries")  # geometries that do not cut the picture into tiles


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
    def image(self) -> float:
        """The picture's share of ``margin − baseline_margin``, in logits."""
        return float(self.pixels.sum())

    @property
    def text(self) -> float:
        """The question's share of ``margin − baseline_margin``, in logits."""
        return float(self.tokens.sum())

    @property
    def error(self) -> float:
        """The completeness error: how far the two shares are from adding up. More steps make it smaller."""
        return self.image + self.text - (self.margin - self.baseline_margin)

    @property
    def words(self) -> pd.DataFrame:
        """``attribution`` of each word of the question, in reading order. A token shared by two words counts twice."""
        values = [float(self.tokens[list(word.columns)].sum()) for word in self.row.words]
        return pd.DataFrame({"word": [word.text for word in self.row.words], "attribution": values})


def integrated_gradients(
    vlm: "VLM", prompt: "Prompt", *, steps: int = 64, metric: "Metric | None" = None, batch_size: int = 16
) -> GradientAttribution:
    """Integrated gradients from a plain picture and full stops to the prompt (Sundararajan et al. 2017, equation 1).

    Pixels and text embeddings are interpolated together, at ``steps`` Gauss-Legendre nodes. ``batch_size`` nodes are
    run at a time, fewer where ``vlm.batches`` allows fewer tokens or memory runs out (``interp.batching``).

    Raises:
        UserError: the prompt has no image, or fewer than one step.
    """
    vlm.require("attribution")
    _picture(prompt, 1)
    _at_least_one("steps", steps)
    encoded = vlm.encode([prompt])
    _check_pixels(vlm, encoded)
    plain = vlm.encode([prompt.with_images(lambda image: Image.new("RGB", image.size, mean_colour(vlm)))])
    row = segment(vlm, [prompt], encoded).rows[0]
    embed = vlm.speaker.get_input_embeddings()
    with torch.no_grad():
        text = embed(encoded["input_ids"]).float()
        silent = embed(_filled(vlm, encoded["input_ids"], row.columns("user"))).float()
    # Pixels get an extra leading dimension: what the first one counts differs by family.
    inputs = (encoded["pixel_values"][None].float(), text)
    baselines = (plain["pixel_values"][None].float(), silent)
    forward = _forward(vlm, dict(encoded), embed, metric)

    rule = vlm.batches.rule
    fits = batch_size if rule.tokens is None else max(1, rule.tokens // text.shape[1])
    size = min(batch_size, rule.rows, fits, vlm.batches.limit.rows)
    with activation_gradients(vlm):
        pixels, embeddings = IntegratedGradients(forward).attribute(
            inputs, baselines, n_steps=steps, internal_batch_size=size
        )
    with torch.no_grad():
        margin, baseline_margin = (float(forward(*some)) for some in (inputs, baselines))
    tokens = reduce(embeddings[0], "column dim -> column", "sum")
    return GradientAttribution(pixels[0].float().cpu(), tokens.float().cpu(), row, margin, baseline_margin)


def pixel_map(vlm: "VLM", attribution: GradientAttribution) -> Float[Tensor, "height width"]:
    """Sums pixel attributions by image token. The map covers the part of the picture that the model sees (grid box).

    For InstructBLIP, whose image tokens have no location in the picture, the map is by pixel.

    Raises:
        UserError: the family cuts its pictures into tiles, or has no image tokens.
    """
    geometry, pixels, grids = vlm.module_map.geometry, attribution.pixels, attribution.row.grids
    if geometry == "thw":
        # Patches are flattened, in the order in which they are merged into tokens.
        rows, columns = grids[0].columns.shape
        return reduce(pixels, "(row column patch) value -> row column", "sum", row=rows, column=columns)
    vlm.module_map.require_image_tokens(vlm.name)
    if geometry not in SPATIAL:
        raise UserError(
            f"the pixels of {vlm.name} are cut into tiles that overlap in the picture; only whole pictures can be "
            "summed by token; use occlude_image, which works on the picture itself"
        )
    heat = reduce(pixels, "1 channel height width -> height width", "sum")
    if not grids:
        return heat
    rows, columns = grids[0].columns.shape
    side = heat.shape[0] // rows, heat.shape[1] // columns
    used = heat[: rows * side[0], : columns * side[1]]  # the patch embedding drops pixels that do not fill a patch
    return reduce(used, "(row y) (column x) -> row column", "sum", row=rows, column=columns)


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
    _at_least_one("rows", rows)
    _at_least_one("columns", columns)
    if columns > picture.width or rows > picture.height:
        raise UserError(
            f"{rows} × {columns} regions in a picture of {picture.width} × {picture.height} px; a region has at least "
            "one pixel; ask for fewer"
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

    ids = [encoded["input_ids"], *(_filled(vlm, encoded["input_ids"], list(word.columns)) for word in words)]

    def scored(places: list[int]) -> Float[Tensor, " variant"]:
        batch = _repeated(encoded, len(places)) | {"input_ids": torch.cat([ids[place] for place in places])}
        return vlm.score([prompt] * len(places), encoded=batch, metric=metric)

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


def _forward(
    vlm: "VLM", encoded: dict[str, Any], embed: Any, metric: "Metric | None"
) -> Callable[[Tensor, Tensor], Tensor]:
    """A function from (pixels, embeddings of all columns) to margins, for several variants of one encoded prompt."""
    measure = metric or vlm.margin

    def margins(
        pixels: Float[Tensor, "variant ..."], embeddings: Float[Tensor, "variant column dim"]
    ) -> Float[Tensor, " variant"]:
        vlm.batches.go_on()
        batch = _repeated(encoded, len(pixels))
        batch["pixel_values"] = pixels.flatten(0, 1).to(vlm.dtype)
        with _embedded(embed, embeddings.to(vlm.dtype)), vlm.float32_logits(metric):
            return measure(vlm.model(**batch, logits_to_keep=1, use_cache=False).logits[:, -1])

    return margins


@contextmanager
def _embedded(embed: Any, embeddings: Float[Tensor, "variant column dim"]) -> Iterator[None]:
    """Makes the embedding layer return ``embeddings``. ``input_ids`` still tells the model where the image goes."""

    def instead(module: Any, arguments: Any, output: Tensor) -> Tensor:
        return embeddings if output.shape == embeddings.shape else output

    handle = embed.register_forward_hook(instead)
    try:
        yield
    finally:
        handle.remove()


def _repeated(encoded: dict[str, Any], times: int) -> dict[str, Any]:
    """The inputs of one prompt, repeated ``times`` times."""
    return {name: torch.cat([value] * times) if torch.is_tensor(value) else value for name, value in encoded.items()}


def _filled(vlm: "VLM", ids: Int[Tensor, "1 column"], columns: list[int]) -> Int[Tensor, "1 column"]:
    """``ids`` with full stops at ``columns``."""
    filled = ids.clone()
    filled[:, columns] = vlm.tokenizer(FILLER, add_special_tokens=False)["input_ids"][-1]
    return filled


def _check_pixels(vlm: "VLM", encoded: Mapping[str, Any]) -> None:
    """A picture that enters a second way would stay whole in the baseline."""
    ways = pixel_inputs(encoded)
    if ways != ["pixel_values"]:
        raise UserError(
            f"{vlm.name} takes its picture as {' and '.join(ways) or 'nothing'}; integrated gradients follow "
            "pixel_values alone; use occlude_image"
        )


def _picture(prompt: "Prompt", number: int) -> Image.Image:
    if prompt.image is None:
        raise UserError("this prompt has no image; attribution compares picture and words; give it one")
    check_numbers([number], len(prompt.images), prompt.key or prompt.text)
    return prompt.images[number - 1]


def _at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise UserError(f"{name}={value}; must be at least 1; leave it out for the default")
