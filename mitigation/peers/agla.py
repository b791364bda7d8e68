"""AGLA: adds the scores of the full picture and of its parts that matter to the question.

Importing this module loads neither torch nor transformers; generating does.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from jaxtyping import Bool, Float

from interp.errors import UserError
from mitigation.branches import BranchLogits, BranchMethod, Inputs
from mitigation.method import Work
from mitigation.validation import check_beta, check_number

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

    from interp.image_grid import Box
    from interp.vlm import VLM, Prompt

SIDE = 384
"""The mask is computed on a picture of this width and height, as in the authors' code."""
BLUR = 0.02
"""Standard deviation of the blur of the map, relative to ``SIDE``; also of their code."""


@dataclass(frozen=True)
class AGLA(BranchMethod):
    """AGLA's decoding (An et al., CVPR 2025, arXiv 2406.12718): f + α·f′, f′ with all but the matching parts black.

    In the paper a separate matching model (BLIP's image-text matching, with GradCAM) says which parts of the picture
    match the question. Its score says how much of the picture stays. **That model is not here.** The model's own
    attention replaces it. It is the mean over all layers and heads of the attention of the prompt's last token on the
    image tokens. So this is AGLA's rule with another map, not the published method; do not report it as AGLA's number.

    ``keep`` is the share of the picture's area that stays, where the map is highest. In the code it is 1 minus half of
    the matching score, by case. 0.8 corresponds to a score of 0.4, and is our choice. Like the code, the map is brought
    to 384 × 384, blurred, and the rest made black. α = 2 (``alpha``) and the cutoff β = 0.5 are from the authors'
    scripts for POPE (github.com/Lackel/AGLA). The authors sample; here it is greedy. The paper's equation numbers could
    not be checked.
    """

    alpha: float = 2.0
    beta: float | None = 0.5
    keep: float = 0.8
    work: ClassVar[Work] = Work(prompts=3, branches=2)  # the first forward says which parts match
    pictured: ClassVar[str] = "AGLA shows parts of it"
    other: ClassVar[str] = "matching_parts"

    def __post_init__(self) -> None:
        check_number("alpha", self.alpha, 0.0)
        check_beta(self.beta)
        check_number("keep", self.keep, 0.0, 1.0, hint="0 keeps nothing")

    def branches(self, vlm: "VLM", prompts: "Sequence[Prompt]", encoded: Inputs) -> list[Inputs]:
        """Return the inputs with all but the matching parts black; none at α = 0.

        Raises:
            UserError: the family's image tokens have no position in the picture.
        """
        if not self.alpha:
            return []
        maps = own_attention(vlm, prompts)
        return [
            vlm.encode(
                [prompt.with_images(partial(self._parts, iter(m))) for prompt, m in zip(prompts, maps, strict=True)]
            )
        ]

    def _parts(self, maps: "Iterator[tuple[np.ndarray, Box]]", image: "Image.Image") -> "Image.Image":
        """Return the picture with all but the matching parts black, by the next of its prompt's ``maps``."""
        return masked(image, largest(over_picture(*next(maps)), self.keep))

    def scores(self, logits: BranchLogits, step: int) -> "Tensor":
        """Return f + α·f′."""
        return logits.clean + self.alpha * logits.others[0]


def own_attention(vlm: "VLM", prompts: "Sequence[Prompt]") -> "list[list[tuple[np.ndarray, Box]]]":
    """Return the attention of each prompt's last token on each picture, and what part of the picture it covers.

    It is the mean over layers and heads.

    Raises:
        UserError: image tokens without a position in the picture, or with an unknown position.
    """
    from interp.attention.record import Queries, record_attention
    from interp.attention.tables import patch_map

    vlm.module_map.require_places(vlm.name)
    with record_attention(vlm, queries=Queries.VERDICT, maps=Queries.VERDICT) as record:
        vlm.score(prompts)
    maps = []
    for entry in record.maps:
        weights = entry.weights.mean((0, 1))
        grids = {grid.name.partition(":")[2]: grid for grid in reversed(record.rows[entry.row].grids)}  # the first
        if not grids:
            raise UserError(
                f"agla needs a map over the picture, but the positions of the image tokens of {vlm.name} are unknown; "
                "choose another method"
            )
        ordered = [grids[number] for number in sorted(grids, key=lambda number: int(number or 1))]
        maps.append([(patch_map(weights, grid).double().numpy(), grid.box) for grid in ordered])
    return maps


def over_picture(values: Float[np.ndarray, "height width"], box: "Box") -> Float[np.ndarray, "side side"]:
    """Return the map over the whole picture, ``SIDE`` pixels wide and high, by cubic interpolation; then blurred.

    What the map does not cover gets the value at its nearest edge.
    """
    from scipy.ndimage import gaussian_filter, map_coordinates

    left, top, right, bottom = box
    middles = (np.arange(SIDE) + 0.5) / SIDE
    rows = (middles - top) / (bottom - top) * values.shape[0] - 0.5
    columns = (middles - left) / (right - left) * values.shape[1] - 0.5
    spread = map_coordinates(values.astype(np.float64), np.meshgrid(rows, columns, indexing="ij"), mode="nearest")
    return gaussian_filter(spread, BLUR * SIDE)


def largest(values: Float[np.ndarray, "height width"], keep: float) -> Bool[np.ndarray, "height width"]:
    """Return True at the share ``keep`` of pixels with the highest values; ties with the last one stay too."""
    count = round(keep * values.size)
    if not count:
        return np.zeros(values.shape, dtype=bool)
    return values >= np.partition(values.ravel(), -count)[-count]


def masked(image: "Image.Image", mask: Bool[np.ndarray, "height width"]) -> "Image.Image":
    """Return the picture at its own size, black where the mask, stretched over it, is False."""
    from PIL import Image

    from interp.pictures import as_seen

    stretched = Image.fromarray((mask * np.uint8(255)).astype(np.uint8)).resize(image.size, Image.Resampling.NEAREST)
    return Image.composite(as_seen(image), Image.new("RGB", image.size), stretched)
