"""Direct attribution: its parts add up to the margin in every family, and are what hooks by hand find."""

import pytest
import torch
from torch import Tensor

from interp.errors import UserError
from interp.tools.logit_attribution import direct_logit_attribution
from interp.vlm import VLM, Prompt
from tests.families import FAMILIES, every_family
from tests.planted import MARGIN, Plan, coloured, planted

GATED = ("idefics", "mllama")


def biased(vlm: VLM) -> VLM:
    """The same with a bias on every map that adds up heads, as some checkpoints have."""
    for i, module in enumerate(vlm.module_map.head_sums(vlm.model).values()):
        bias = torch.randn(module.weight.shape[0], generator=torch.Generator().manual_seed(i))
        module.bias = torch.nn.Parameter(bias)
    return vlm


def uncapped(vlm: VLM, prompts: list[Prompt]) -> Tensor:
    """The margins before a soft cap, by a hook on the output head."""
    kept: list[Tensor] = []
    hook = vlm.module_map.module(vlm.model, "lm_head").register_forward_hook(lambda m, a, out: kept.append(out[:, -1]))
    vlm.score(prompts)
    hook.remove()
    return vlm.margin(kept[0]).detach()


@pytest.mark.parametrize("name", every_family())
def test_the_parts_add_up_to_the_margin(name: str, prompts: list[Prompt]) -> None:
    vlm = biased(VLM(*FAMILIES[name](), name=name))
    if name in GATED:
        with pytest.raises(UserError, match="by cross-attention"):
            direct_logit_attribution(vlm, prompts)
        return
    found = direct_logit_attribution(vlm, prompts)
    torch.testing.assert_close(found.total, uncapped(vlm, prompts), atol=1e-4, rtol=0)
    torch.testing.assert_close(found.metric, found.total, atol=1e-4, rtol=0)
    if getattr(vlm.model.config.get_text_config(), "final_logit_softcapping", None) is None:
        torch.testing.assert_close(found.total, vlm.score(prompts), atol=1e-4, rtol=0)
    assert found.heads.shape[:2] == (len(found.layers), 4)
    for part in (found.heads, found.mlps):
        assert (part.abs().amax(-1) > 1e-5).all()


@pytest.mark.parametrize("name", every_family(but=GATED))
def test_a_head_is_what_taking_it_out_of_the_sum_changes(name: str, prompts: list[Prompt]) -> None:
    """By hand: the final norm's input less one head's part, under the scale that the norm had with it."""
    vlm = VLM(*FAMILIES[name](), name=name)
    found = direct_logit_attribution(vlm, prompts[:1])
    layer, head = found.layers[-1], 2
    kept: dict[str, Tensor] = {}
    sums, norm = vlm.module_map.head_sums(vlm.model)[layer], vlm.module_map.module(vlm.model, "final_norm")
    hooks = [
        sums.register_forward_pre_hook(lambda module, args: kept.update(heads=args[0])),
        norm.register_forward_pre_hook(lambda module, args: kept.update(final=args[0])),
    ]
    vlm.score(prompts[:1])
    for hook in hooks:
        hook.remove()
    with torch.no_grad():
        final, size = kept["final"][0, -1], kept["heads"].shape[-1] // 4
        own = slice(head * size, (head + 1) * size)
        part = sums.weight[:, own] @ kept["heads"][0, -1, own]
        after = vlm.module_map.sublayers(vlm.model, "attention")[layer]
        if after is not vlm.module_map.attentions(vlm.model)[layer]:
            whole = sums(kept["heads"][0, -1])
            part = part * (after(whole) / whole)
        scale = norm(final) / final  # what the norm multiplies each dimension by
        out = vlm.module_map.module(vlm.model, "lm_head")
        (yes,), (no,) = ([ids[0]] for ids in vlm.answer_ids)
        one = logits_of(out, part * scale)[yes] - logits_of(out, part * scale)[no]
    single = direct_logit_attribution(vlm, prompts[0], metric=lambda logits: logits[:, yes] - logits[:, no])
    torch.testing.assert_close(single.heads[-1, head, 0], one, atol=1e-4, rtol=1e-4)


def logits_of(head: torch.nn.Module, state: Tensor) -> Tensor:
    return head(state[None, None])[0, 0]


def test_a_planted_verdict_is_written_by_the_mlp_that_writes_it() -> None:
    vlm = planted(Plan(reads=1, writes=2))
    redness = torch.tensor([1.0, -0.6])
    found = direct_logit_attribution(vlm, [Prompt("Is this safe?", coloured(r)) for r in redness.tolist()])
    expected = torch.zeros(4, 2)
    expected[2] = MARGIN * redness
    torch.testing.assert_close(found.mlps, expected, atol=0.05, rtol=0)
    for nothing in (found.heads, found.rest):
        assert nothing.abs().max() < 1e-3


def test_a_decoder_that_adds_something_else_is_refused(vlm: VLM, prompts: list[Prompt]) -> None:
    layer = vlm.module_map.module(vlm.model, "layers")[0]
    layer.register_forward_hook(lambda module, args, output: output * 0.5)
    with pytest.raises(UserError, match="adds or scales something else"):
        direct_logit_attribution(vlm, prompts)
