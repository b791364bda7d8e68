"""Logits of hidden states of the model itself, for rules that compare a forward with a part of it."""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.measured_numbers import after_head

if TYPE_CHECKING:
    from interp.vlm import VLM


class OwnBranch:
    """A branch (``mitigation.contrastive.processors.Branch``) that reads the model's own forward and adds none.

    A subclass says in ``_logits`` what they give after the columns that the model has just been fed, float32.
    """

    def start(self) -> Float[Tensor, "row vocab"]:
        """The logits after the prompt."""
        return self._logits()

    def extend(self, tokens: Int[Tensor, "row new"]) -> Float[Tensor, "row vocab"]:
        """The logits after the tokens that the model has just been fed."""
        return self._logits()

    def _logits(self) -> Float[Tensor, "row vocab"]:
        raise NotImplementedError


@torch.no_grad()
def logits_of(vlm: "VLM", states: Float[Tensor, "row width"]) -> Float[Tensor, "row vocab"]:
    """The model's logits of normed ``states``, float32, on the device of its inputs; scaled and capped as its own."""
    logits = vlm.layout.module(vlm.model, "lm_head")(states).float()
    return after_head(vlm.model, vlm.layout)(logits).to(vlm.device)
