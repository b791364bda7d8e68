"""The logit difference of two words at the first answer token, for tools to measure in the margin's place."""

from typing import TYPE_CHECKING

from jaxtyping import Float
from torch import Tensor

from interp.margin import Metric, margin_of

if TYPE_CHECKING:
    from interp.vlm import VLM


def logit_difference(vlm: "VLM", one: str, other: str) -> Metric:
    """logit(``one``) − logit(``other``), as ``VLM.margin`` is for Yes and No: over all tokens that begin the words.

    Raises:
        UserError: no first token tells the two words apart.
    """
    for_one, for_other = vlm.first_tokens(one, other)

    def difference(logits: Float[Tensor, "row vocab"]) -> Float[Tensor, " row"]:
        return margin_of(logits[:, for_one], logits[:, for_other])

    return difference
