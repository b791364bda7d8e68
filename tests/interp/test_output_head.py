"""The head in float32: of every family, with bias, soft cap and scale; and why it cannot be had, in a sentence."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn

from interp import output_head
from interp.output_head import float32_head, native_head
from interp.vlm import VLM, Prompt
from tests.bf16_wide import head_inputs
from tests.families import FAMILIES, every_family
from tests.tiny import picture, tiny_llava


def in_bfloat16(name: str) -> VLM:
    model, processor = FAMILIES[name]()
    return VLM(model.bfloat16(), processor, name=name)


def exact(vlm: VLM, hidden: Tensor) -> Tensor:
    """Float64 logits of the head's own weights, soft-capped where the family does so."""
    head = vlm.module_map.module(vlm.model, "lm_head")
    layers = [head, *filter(None, [getattr(head, "additional_fc", None)])]
    made = [
        nn.functional.linear(hidden.double(), one.weight.double(), None if one.bias is None else one.bias.double())
        for one in layers
    ]
    cap = getattr(vlm.model.config.get_text_config(), "final_logit_softcapping", None)
    found = torch.cat(made, -1).detach()
    return found if cap is None else (found / cap).tanh() * cap


def logits(vlm: VLM, prompts: list[Prompt]) -> tuple[Tensor, Tensor, Tensor]:
    """Float32 and native logits of the last column, and those of a float64 head on the same hidden states."""
    encoded = vlm.encode(prompts)
    states: list[Tensor] = []
    head = vlm.module_map.module(vlm.model, "lm_head")
    with torch.no_grad():
        native = vlm.model(**encoded, logits_to_keep=1).logits[:, -1]
        handle = head.register_forward_pre_hook(lambda module, args: states.append(args[0][:, -1]))
        with float32_head(vlm.model):
            found = vlm.model(**encoded, logits_to_keep=1).logits[:, -1]
        handle.remove()
    return found, native, exact(vlm, states[-1])


@pytest.mark.parametrize("name", every_family())
def test_every_family_in_bfloat16(name: str) -> None:
    vlm = in_bfloat16(name)
    prompts = [Prompt("Is this safe?", picture(0)), Prompt("Is it?", picture(1))]
    assert native_head(vlm.model) == ""
    whole, native, reference = logits(vlm, prompts)
    torch.testing.assert_close(whole.double(), reference, atol=1e-4, rtol=1e-5)
    assert float((native.double() - reference).abs().max()) > 1e-3


@pytest.mark.parametrize("change", ["bias", "cap", "scale"])
def test_what_the_model_does_to_its_logits_is_done_in_float32(change: str) -> None:
    vlm = in_bfloat16("paligemma2")
    prompts = [Prompt("Is this safe?", picture(0))]
    made: Callable[[Tensor], Tensor] = lambda x: x  # noqa: E731
    if change == "bias":
        bias = torch.randn(vlm.model.lm_head.weight.shape[0], generator=torch.Generator().manual_seed(0))
        vlm.model.lm_head.bias = nn.Parameter(bias.bfloat16())
    elif change == "cap":
        vlm.model.config.get_text_config().final_logit_softcapping = 0.5
    else:
        vlm.model.register_forward_hook(_scaled)
        made = lambda x: x / 7  # noqa: E731
    found, native, reference = logits(vlm, prompts)
    torch.testing.assert_close(found.double(), made(reference), atol=1e-5, rtol=1e-5)
    assert float((native.double() - made(reference)).abs().max()) > 1e-4
    with head_inputs(vlm) as states:
        margin = vlm.score(prompts)
    yes, no = vlm.answer_ids
    own = made(exact(vlm, states[-1][:, -1]))
    torch.testing.assert_close(
        margin.double(), own[:, yes].logsumexp(-1) - own[:, no].logsumexp(-1), atol=1e-5, rtol=1e-5
    )


def _scaled(module: Any, arguments: Any, output: Any) -> Any:
    output.logits = output.logits / 7
    return output


def adapted(vlm: VLM) -> None:
    get_peft_model(vlm.model, LoraConfig(r=2, target_modules=["lm_head"]))


def offloaded(vlm: VLM) -> None:
    vlm.model.lm_head.weight = nn.Parameter(vlm.model.lm_head.weight.to("meta"))


class Scaled(nn.Linear):
    """A head that does more than its weights say."""

    def forward(self, input: Tensor) -> Tensor:
        return 0.9 * super().forward(input)


def different(vlm: VLM) -> None:
    vlm.model.lm_head.__class__ = Scaled


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (adapted, "the head is a Linear, no plain linear layer; if an adapter is on it, merge it"),
        (offloaded, "its weights are offloaded; give the head a device that holds them"),
        (different, r"the logits computed again differ from its own by [\d.]+, more than rounding does"),
    ],
)
def test_given_up_in_one_sentence(change: Callable[[VLM], None], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    vlm = in_bfloat16("llava")
    change(vlm)
    rounding = r"which rounds its logits \(to steps of 0.062 from 8 on, of 0.12 from 16 on\): "
    for _ in range(2):
        with float32_head(vlm.model):
            assert not vlm.model.lm_head._forward_hooks
    said = capsys.readouterr().err
    assert said.count("warning") == 1
    assert re.fullmatch(rf"Margins come from the model's own output head, {rounding}{why}\.", native_head(vlm.model))
    assert native_head(vlm.model) in said


@pytest.mark.parametrize("change", [adapted, different])
def test_where_it_is_given_up_everything_works_on_native_logits(change: Callable[[VLM], None]) -> None:
    vlm, prompts = in_bfloat16("llava"), [Prompt("Is this safe?", picture(0))]
    change(vlm)
    with torch.no_grad():
        native = vlm.margin(vlm.model(**vlm.encode(prompts)).logits[:, -1])
    assert torch.equal(vlm.score(prompts), native)
    assert torch.equal(vlm.generate(prompts, max_new_tokens=1).margins, native)


def test_gradients_pass_through_the_exact_head(vlm: VLM, prompts: list[Prompt]) -> None:
    vlm.model.bfloat16()
    hidden = torch.randn(2, 1, 32, dtype=torch.bfloat16, requires_grad=True)
    with float32_head(vlm.model):
        vlm.margin(vlm.model.lm_head(hidden)[:, -1]).sum().backward()
    yes, no = (vlm.model.lm_head.weight[ids].float() for ids in vlm.answer_ids)
    torch.testing.assert_close(hidden.grad[0, 0].float(), (yes - no)[0].detach(), atol=0.01, rtol=0.01)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_on_a_gpu_the_whole_head_is_had_without_a_copy(dtype: torch.dtype) -> None:
    model, processor = tiny_llava()
    vlm = VLM(model.to("cuda", dtype), processor)
    found, _, reference = logits(vlm, [Prompt("Is this safe?", picture(0))])
    torch.testing.assert_close(found.double(), reference, atol=1e-4, rtol=1e-5)
    assert vlm.model.lm_head.weight not in output_head._COPIES
