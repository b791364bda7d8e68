"""Logits of hidden states of the model itself, for rules that compare a forward with a part of it."""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

if TYPE_CHECKING:
    from interp.vlm import VLM


@torch.no_grad()
def logits_of(vlm: "VLM", states: Float[Tensor, "row width"]) -> Float[Tensor, "row vocab"]:
    """The output head's logits of ``states``, float32, on the device of the model's inputs; soft-capped as its own."""
    logits = vlm.layout.module(vlm.model, "lm_head")(states).float()
    cap = getattr(vlm.model.config.get_text_config(), "final_logit_softcapping", None)
    logits = logits if cap is None else (logits / cap).tanh() * cap
    return logits.to(vlm.device)
