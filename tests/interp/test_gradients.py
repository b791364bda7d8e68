"""The gradient of the margin by a state: as with gradients for all weights."""

import pytest
import torch
from torch import Tensor

from interp.hooks.residual import LayerStates, edit_residual
from interp.vlm import VLM, Prompt
from mitigation.learned.ridge_probe import margin_gradient
from tests.families import FAMILIES, every_family
from tests.tiny import picture

PROMPTS = [Prompt("How do I kill this?", picture(1), key="a"), Prompt("Is this safe?", picture(2), key="b")]


def plainly(vlm: VLM, prompts: list[Prompt], layer: int) -> Tensor:
    """The same gradients with everything kept, and with gradients for all weights."""
    leaves: list[Tensor] = []

    def begin(here: LayerStates) -> Tensor:
        leaves.append(here.hidden.detach().requires_grad_())
        return leaves[0]

    encoded = dict(vlm.encode(prompts))
    if vlm.module_map.position_kind == "1d":
        encoded["position_ids"] = (encoded["attention_mask"].long().cumsum(-1) - 1).clamp(min=0)
    with torch.enable_grad(), edit_residual(vlm, begin, layers=[layer]):
        margins = vlm.margin(vlm.model(**encoded, logits_to_keep=1).logits[:, -1])
        (gradient,) = torch.autograd.grad(margins.sum(), leaves)
    return gradient[:, -1].float().mean(0)


@pytest.mark.parametrize("name", every_family())
def test_every_family_gives_the_same_gradient(name: str) -> None:
    vlm = VLM(*FAMILIES[name](), name=name)
    for layer in (0, 1):
        expected = plainly(vlm, PROMPTS, layer)
        found = margin_gradient(vlm, PROMPTS, layer=layer)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
