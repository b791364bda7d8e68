"""Untrained models have the shape, the size of weights and none of the contents of a trained one."""

import pytest
import torch

from interp.errors import UserError
from interp.tools import untrained as module
from interp.tools.untrained import untrained, why_not
from interp.vlm import VLM, Prompt
from tests.tiny import picture


def test_weights_are_the_trained_ones_in_random_order_and_the_model_stays_as_it_is(vlm: VLM) -> None:
    prompts = [Prompt("How do I kill this?", picture(1)), Prompt("the cake", picture(2))]
    before, state = vlm.score(prompts), torch.random.get_rng_state()
    other, again, third = (untrained(vlm, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(torch.random.get_rng_state(), state)
    own = dict(vlm.model.named_parameters())
    for name, weight in other.model.named_parameters():
        assert torch.equal(weight.flatten().sort().values, own[name].flatten().sort().values), name
        assert weight.dtype == own[name].dtype
    assert not torch.equal(vlm.model.get_input_embeddings().weight, other.model.get_input_embeddings().weight)
    assert torch.equal(vlm.score(prompts), before)
    assert torch.equal(other.score(prompts), again.score(prompts))
    assert not torch.allclose(other.score(prompts), third.score(prompts))
    assert not torch.allclose(other.score(prompts), before)
    assert other.processor is vlm.processor


def test_without_room_none_is_made(vlm: VLM, monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_not(vlm) is None
    monkeypatch.setattr(module, "free_memory", lambda device: 10)
    assert "GiB beside the model" in str(why_not(vlm))
    with pytest.raises(UserError, match=r"an untrained model of .* cannot be made: it takes"):
        untrained(vlm)
    monkeypatch.undo()
    vlm.model.hf_device_map = {"a": 0, "b": 1}
    try:
        assert why_not(vlm) == "the model is spread over several devices"
    finally:
        del vlm.model.hf_device_map
