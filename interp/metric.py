"""What a tool measures: a number from the logits of the first answer token, by default the Yes/No margin."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from jaxtyping import Float
from torch import Tensor

from interp.first_scores import margin_of

if TYPE_CHECKING:
    from interp.vlm import VLM

Metric = Callable[[Float[Tensor, "row vocab"]], Float[Tensor, "row"]]
"""One number for each prompt, from the logits of its first answer token. ``VLM.margin`` is one."""


def logit_difference(vlm: "VLM", one: str, other: str) -> Metric:
    """logit(``one``) − logit(``other``), as ``VLM.margin`` is for Yes and No: over all tokens that begin the words.

    Raises:
        UserError: no first token tells the two words apart.
    """
    for_one, for_other = vlm.first_tokens(one, other)

    def difference(logits: Float[Tensor, "row vocab"]) -> Float[Tensor, "row"]:
        return margin_of(logits[:, for_one], logits[:, for_other])

    return difference
