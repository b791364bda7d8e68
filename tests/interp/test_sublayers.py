"""What attention, MLPs and heads compute is as hooks by hand find it, and edits are edits by hand, in every family."""

from typing import Any

import torch
from torch import Tensor

from interp.hooks.residual import activations, edit_activations
from interp.vlm import VLM, Prompt

WHAT = ("residual", "attention", "mlp", "head")


def by_hand(vlm: VLM, prompt: Prompt) -> dict[str, Tensor]:
    """The last column of layer 0: the state that enters it, what its sublayers add, and its heads' outputs."""
    layer = vlm.module_map.module(vlm.model, "layers")[0]
    post = type(layer).__name__.startswith(("Gemma2", "Gemma3"))
    kept: dict[str, Tensor] = {}

    def keep(name: str, found: Any) -> None:
        kept[name] = (found[0] if isinstance(found, tuple) else found)[0, -1].detach()

    after = layer.post_attention_layernorm if post else layer.self_attn
    added = layer.post_feedforward_layernorm if post else layer.mlp
    hooks = [
        layer.register_forward_pre_hook(lambda m, args: keep("residual", args)),
        layer.register_forward_hook(lambda m, args, out: keep("out", out)),
        after.register_forward_hook(lambda m, args, out: keep("attention", out)),
        added.register_forward_hook(lambda m, args, out: keep("mlp", out)),
        layer.self_attn.o_proj.register_forward_pre_hook(lambda m, args: keep("head", args)),
    ]
    vlm.score([prompt])
    for hook in hooks:
        hook.remove()
    return kept


def test_what_is_read_is_what_hooks_find(family: VLM, prompts: list[Prompt]) -> None:
    for prompt in prompts:
        expected = by_hand(family, prompt)
        found = {what: activations(family, prompt, what=what, layers=[0]).select("verdict", 0)[0] for what in WHAT}
        for what in ("residual", "attention", "mlp"):
            torch.testing.assert_close(found[what], expected[what], atol=1e-6, rtol=1e-6)
        assert found["head"].shape[0] == 4
        torch.testing.assert_close(found["head"].flatten(), expected["head"], atol=1e-6, rtol=1e-6)
        added = expected["residual"] + expected["attention"] + expected["mlp"]
        torch.testing.assert_close(added, expected["out"], atol=1e-5, rtol=1e-5)


def test_an_edit_is_an_edit_by_hand(family: VLM, prompts: list[Prompt]) -> None:
    """Heads 1 and 2 of layer 0 are switched off; then its MLP."""
    layer = family.module_map.module(family.model, "layers")[0]
    size = layer.self_attn.o_proj.in_features // 4

    def silence(module: Any, args: Any) -> Any:
        states = args[0].clone()
        states[..., size : 3 * size] = 0
        return (states,)

    hook = layer.self_attn.o_proj.register_forward_pre_hook(silence)
    expected = family.score(prompts)
    hook.remove()
    keep = torch.tensor([1.0, 0.0, 0.0, 1.0])
    with edit_activations(family, lambda here: here.hidden * keep[:, None], what="head", layers=[0]):
        torch.testing.assert_close(family.score(prompts), expected, atol=1e-6, rtol=0)
    assert not torch.allclose(family.score(prompts), expected, atol=1e-4)

    hook = layer.mlp.register_forward_hook(lambda module, args, output: output * 0)
    expected = family.score(prompts)
    hook.remove()
    with edit_activations(family, lambda here: here.hidden * 0, what="mlp", layers=[0]):
        torch.testing.assert_close(family.score(prompts), expected, atol=1e-6, rtol=0)
