"""Gradients of activations: the same numbers in the memory of a layer, and nothing left in the model."""

import gc
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlavaForConditionalGeneration

from interp.batching import BatchRule
from interp.hooks.residual import LayerStates, edit_residual
from interp.tools.gradients import activation_gradients
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
    if vlm.layout.position_kind == "1d":
        encoded["position_ids"] = (encoded["attention_mask"].long().cumsum(-1) - 1).clamp(min=0)
    with torch.enable_grad(), edit_residual(vlm, begin, layers=[layer]):
        margins = vlm.margin(vlm.model(**encoded, logits_to_keep=1).logits[:, -1])
        (gradient,) = torch.autograd.grad(margins.sum(), leaves)
    return gradient[:, -1].float().mean(0)


class Peak(TorchDispatchMode):
    """Follows the bytes of storages that live and were made while it is open."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, tuple[StorageWeakRef, int]] = {}
        self.highest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **kwargs or {})
        for tensor in torch.utils._pytree.tree_leaves(found):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                self.live.setdefault(storage._cdata, (StorageWeakRef(storage), storage.nbytes()))
        self.live = {key: one for key, one in self.live.items() if not one[0].expired()}
        self.highest = max(self.highest, sum(size for _, size in self.live.values()))
        return found


def traces(vlm: VLM) -> list[Any]:
    modules = [(m.training, m.__dict__.get("gradient_checkpointing"), "_gradient_checkpointing_func" in m.__dict__,
                len(m._forward_hooks), len(m._forward_pre_hooks)) for m in vlm.model.modules()]  # fmt: skip
    return [*modules, *(weight.requires_grad for weight in vlm.model.parameters())]


@pytest.mark.long
def test_the_peak_of_memory_falls_and_the_gradient_stays() -> None:
    vlm = deep()
    with Peak() as everything:
        expected = plainly(vlm, PROMPTS, 1)
    with Peak() as checkpointed:
        found = margin_gradient(vlm, PROMPTS, layer=1)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)
    assert checkpointed.highest < everything.highest / 2


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


def test_weights_get_no_gradients_inside_and_an_error_leaves_nothing(vlm: VLM) -> None:
    before = traces(vlm)

    def fail() -> None:
        assert not any(weight.requires_grad for weight in vlm.model.parameters())
        raise RuntimeError("out")

    with pytest.raises(RuntimeError, match="out"), activation_gradients(vlm):
        fail()
    assert traces(vlm) == before


def test_gradients_go_on_with_half_where_memory_runs_out(vlm: VLM, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = margin_gradient(vlm, PROMPTS, layer=1)
    monkeypatch.setattr("interp.batching._free", lambda: None)

    def full(prompts: Any, encoded: Any) -> None:
        if len(prompts) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    vlm.on_encode.append(full)
    before = traces(vlm)
    with pytest.warns(UserWarning, match="out of memory; asking 1 prompts"):
        found = margin_gradient(vlm, PROMPTS, layer=1)
    torch.testing.assert_close(found, whole, atol=1e-6, rtol=1e-5)
    assert traces(vlm) == before


@pytest.mark.long
def test_a_batch_leaves_nothing_for_the_next() -> None:
    vlm = deep()
    gc.collect()
    gc.disable()  # what waits for it is held meanwhile, and a GPU's memory does not call it
    try:
        with vlm.batches.by(BatchRule(1, None), on_lowered=print):
            with Peak() as one:
                margin_gradient(vlm, PROMPTS[:1], layer=LAYERS)
            with Peak() as many:
                margin_gradient(vlm, PROMPTS[:1] * 8, layer=LAYERS)
    finally:
        gc.enable()
    assert many.highest < 1.1 * one.highest
