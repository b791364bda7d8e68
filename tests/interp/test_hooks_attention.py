"""Our attention function in transformers' interface: what it leaves alone, what it cuts, what it refuses."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from interp.errors import UserError
from interp.hooks.attention import _TAPS, AttentionCall, intercept
from tests.interp.eager import implementations
from tests.interp.eager import real_logits as logits


def a_call(queries=5, keys=5, *, mask=None, causal=True, softcap=None, heads=4, groups=2):
    draw = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(2, n, length, 8, generator=draw) for n, length in ((heads, queries), (groups, keys), (groups, keys))
    )
    module = torch.nn.Module()
    module.num_key_value_groups = heads // groups
    causal = causal and mask is None and queries > 1
    return AttentionCall(0, query, key, value, mask, causal, 8**-0.5, softcap, module)


def loop(call):
    """Attention weights one query and one key at a time."""
    weights = torch.zeros(2, 4, call.query.shape[2], call.key.shape[2])
    allowed = call.allowed().expand(2, 4, -1, -1)
    for b, h, q in torch.cartesian_prod(*(torch.arange(n) for n in weights.shape[:3])).tolist():
        for k in range(weights.shape[3]):
            score = float(call.query[b, h, q] @ call.key[b, h // 2, k]) * call.scaling
            if call.softcap:
                score = call.softcap * float(torch.tanh(torch.tensor(score / call.softcap)))
            if allowed[b, h, q, k]:
                weights[b, h, q, k] = torch.tensor(score).exp()
    return weights / weights.sum(-1, keepdim=True)


@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("kind", ["causal", "full", "mask", "one query"])
def test_rows_and_weighted_values_equal_a_slow_loop(kind, softcap):
    call = a_call(softcap=softcap, causal=kind == "causal")
    if kind == "mask":
        seen = torch.rand(2, 1, 5, 5, generator=torch.Generator().manual_seed(1)) < 0.5
        call = replace(call, mask=seen | torch.eye(5, dtype=torch.bool))
    if kind == "one query":
        call = a_call(queries=1, softcap=softcap)
    slow = loop(call)
    assert torch.allclose(call.rows(), slow, atol=1e-6)
    assert torch.allclose(call.select(torch.tensor([0])).rows(), slow[:, :, :1], atol=1e-6)
    values = call.value.repeat_interleave(2, dim=1)
    assert torch.allclose(call.weighted(call.value), (slow @ values).transpose(1, 2), atol=1e-6)


def test_no_mask_is_causal_and_not_no_restriction():
    assert torch.equal(a_call().allowed()[0, 0], torch.ones(5, 5).tril().bool())
    assert torch.equal(a_call(2, 5).allowed()[0, 0], torch.ones(2, 5).tril(3).bool())  # lower right
    assert bool(a_call(1, 5).allowed().all())
    assert bool(a_call(causal=False).allowed().all())


def test_blocking_nothing_changes_nothing(family, prompts):
    """Writing out a mask that was None must keep causality (0.6 of a logit otherwise)."""
    encoded = family.encode(prompts[:1])  # unpadded: most families have no mask here
    masks = []
    with intercept(family, observe=lambda call: masks.append(call.mask)):
        before = logits(family, encoded)
    with intercept(family, edit=lambda call: call.without(torch.zeros(1, 1, 1, 1, dtype=torch.bool))):
        after = logits(family, encoded)
    assert torch.allclose(before, after, atol=1e-5)
    if family.module_map.model_type == "llava" and family.name == "llava":
        assert masks == [None, None]


def test_blocking_works_on_an_additive_mask():
    """``mask[...] = False`` on a float mask writes 0 and changes nothing."""
    additive = torch.zeros(1, 1, 5, 5)
    edges = torch.zeros(1, 1, 5, 5, dtype=torch.bool)
    edges[..., 2] = True
    cut = a_call(mask=additive).without(edges)
    assert float(cut.rows()[..., 2].max()) == 0
    assert torch.allclose(cut.weighted(cut.value)[0, 0, 0], (cut.rows() @ cut.value.repeat_interleave(2, 1))[0, 0, 0])
    assert float(additive.abs().max()) == 0  # the model's own mask is left alone


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**25 - 1))
def test_blocked_weights_are_the_others_renormalised(bits):
    edges = torch.tensor([bits >> i & 1 for i in range(25)]).reshape(1, 1, 5, 5).bool() & ~torch.eye(5).bool()
    call = a_call()
    kept = call.rows().masked_fill(edges, 0)
    assert torch.allclose(call.without(edges).rows(), kept / kept.sum(-1, keepdim=True), atol=1e-6)


def test_only_the_language_model_is_switched(family, prompts):
    module_map, before = family.module_map, implementations(family.model)
    seen = []
    with intercept(family, observe=lambda call: seen.append(call.layer)):
        during = {id(config): config._attn_implementation for config, _ in before}
        logits(family, family.encode(prompts))
    text = {id(module.config) for module in module_map.attentions(family.model).values()}
    assert sorted(seen) == list(module_map.attentions(family.model))
    for config, implementation in before:
        if id(config) in text:
            assert during[id(config)] != implementation
        else:
            assert during[id(config)] == implementation
    assert implementations(family.model) == before
    assert not _TAPS


def test_several_may_be_open_and_close_in_any_order(vlm, prompts):
    encoded, seen = vlm.encode(prompts), []
    first = intercept(vlm, observe=lambda call: seen.append("first"))
    second = intercept(vlm, observe=lambda call: seen.append("second"))
    first.__enter__()
    second.__enter__()
    logits(vlm, encoded)
    first.__exit__(None, None, None)
    logits(vlm, encoded)
    second.__exit__(None, None, None)
    logits(vlm, encoded)
    assert seen == ["first", "second"] * 2 + ["second"] * 2
    assert vlm.model.config.text_config._attn_implementation == "sdpa"


def test_a_model_outside_the_interface_is_refused_and_left_alone(vlm, monkeypatch):
    monkeypatch.setattr(type(vlm.model.model.language_model), "_can_set_attn_implementation", lambda self: False)
    with pytest.raises(UserError, match=r"does not take its attention .* attn_implementation='eager'"), intercept(vlm):
        pass
    monkeypatch.undo()
    monkeypatch.setattr(type(vlm.model.model.language_model), "_supports_sdpa", False)
    with pytest.raises(UserError, match="does not take its attention"), intercept(vlm):
        pass
    assert vlm.model.config.text_config._attn_implementation == "sdpa"
    assert not _TAPS
