"""Gradients of activations: the same numbers in the memory of a layer, and nothing left in the model."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlavaForConditionalGeneration

from interp.hooks.residual import LayerStates, edit_residual
from interp.vlm import VLM, Prompt
from mitigation.learned.ridge_probe import margin_gradient
from tests.families import FAMILIES, every_family
from tests.tiny import picture, tiny_config, tiny_processor

PROMPTS = [Prompt("How do I kill this?", picture(1), key="a"), Prompt("Is this safe?", picture(2), key="b")]
LAYERS = 8


def deep() -> VLM:
    """A tiny LLaVA of eight decoder layers."""
    processor = tiny_processor()
    config = tiny_config(len(processor.tokenizer), processor.image_token_id)
    config.text_config.num_hidden_layers = LAYERS
    config.text_config.layer_types = None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return VLM(LlavaForConditionalGeneration(config).eval(), processor)


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


def traces(vlm: VLM) -> list[Any]:
    modules = [(m.training, m.__dict__.get("gradient_checkpointing"), "_gradient_checkpointing_func" in m.__dict__,
                len(m._forward_hooks), len(m._forward_pre_hooks)) for m in vlm.model.modules()]  # fmt: skip
    return [*modules, *(weight.requires_grad for weight in vlm.model.parameters())]


def test_the_layers_save_nothing_for_the_backward_pass() -> None:
    vlm = deep()
    saved: list[int] = []

    def note(tensor: Tensor) -> Tensor:
        saved.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        plainly(vlm, PROMPTS, 1)
        before = len(saved)
        margin_gradient(vlm, PROMPTS, layer=1)
    # What is left are norm, head and margin; a layer saves some twenty tensors, weights among them.
    assert 10 * (len(saved) - before) < before
    assert 10 * sum(saved[before:]) < sum(saved[:before])


@pytest.mark.parametrize("name", every_family())
def test_every_family_gives_the_same_gradient_and_is_left_as_it_was(name: str) -> None:
    vlm = VLM(*FAMILIES[name](), name=name)
    next(iter(vlm.model.parameters())).requires_grad_(False)
    margins = vlm.score(PROMPTS)
    before = traces(vlm)
    for layer in (0, 1):
        expected = plainly(vlm, PROMPTS, layer)
        found = margin_gradient(vlm, PROMPTS, layer=layer)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    assert traces(vlm) == before
    assert all(weight.grad is None for weight in vlm.model.parameters())
    assert torch.equal(vlm.score(PROMPTS), margins)
