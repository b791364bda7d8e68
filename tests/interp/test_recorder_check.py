"""The self-test passes on a sound model, and says with numbers what is wrong with an unsound one."""

from contextlib import nullcontext

import pytest
import torch

from interp.attention import record as attention
from interp.attention.check import TOLERANCE, RecorderCheck, _judge, check_recorder
from interp.errors import UserError
from interp.hooks.attention import AttentionCall
from interp.vlm import VLM, Prompt
from tests.families import FAMILIES
from tests.interp.eager import implementations
from tests.tiny import picture

LONG = "is it safe to do this for a toy dog in that red circle and what could it cause"


@pytest.fixture
def long_prompts():
    """Longer than the few queries that are computed by rows."""
    return [Prompt(LONG, picture(0)), Prompt(LONG + " " + LONG, picture(1))]


def test_passes_on_every_family(family, long_prompts):
    before = implementations(family.model)
    result = check_recorder(family, long_prompts)
    assert result.kernel_error < 1e-5
    assert result.rows_error < 1e-5
    assert result.logit_error < 1e-5 < 1e-3 < result.image_effect
    assert (result.tolerance, result.dtype) == (1e-5, "float32")
    assert implementations(family.model) == before


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_tolerances_follow_the_type(dtype):
    model, processor = FAMILIES["qwen2_5_vl"]()
    result = check_recorder(VLM(model.to(dtype), processor))
    assert result.tolerance == TOLERANCE[dtype]
    assert result.rows_error < 1e-5 < result.kernel_error < result.tolerance


@pytest.mark.parametrize(("noise", "passes"), [(0.0, False), (0.02, False), (0.04, True)])
def test_logits_may_be_off_by_what_another_batch_size_changes(noise, passes):
    found = RecorderCheck(0.0, 0.0, 0.06, 1.0, TOLERANCE[torch.bfloat16], "bfloat16", noise)
    with nullcontext() if passes else pytest.raises(UserError, match="the recorder changes the logits"):
        _judge(found, "a model")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_passes_on_a_gpu_in_every_type(dtype):
    model, processor = FAMILIES["llava_next"]()
    result = check_recorder(VLM(model.to("cuda", dtype), processor))
    assert result.kernel_error <= TOLERANCE[dtype]


def test_a_wrong_mass_is_caught(vlm, long_prompts, monkeypatch):
    honest = attention._kernel_mass
    monkeypatch.setattr(attention, "_kernel_mass", lambda *inputs: honest(*inputs) * 0.999)
    with pytest.raises(UserError, match=r"masses by the kernel differ .*\(kernel_error 0\.000\d+, rows_error \d"):
        check_recorder(vlm, long_prompts)


def test_rows_without_their_mask_are_caught(vlm, long_prompts, monkeypatch):
    monkeypatch.setattr(AttentionCall, "bias", lambda call, where: None)
    with pytest.raises(UserError, match="masses by rows differ from eager attention"):
        check_recorder(vlm, long_prompts)


def test_a_lost_mask_function_is_caught(vlm, long_prompts, monkeypatch):
    from transformers import AttentionMaskInterface

    from interp.hooks.attention import NAME

    monkeypatch.delitem(AttentionMaskInterface._global_mapping, NAME)
    with pytest.raises(UserError, match="the recorder changes the logits"):
        check_recorder(vlm, long_prompts)


def test_a_model_that_drops_the_image_is_caught(vlm, long_prompts):
    for parameter in vlm.model.model.multi_modal_projector.parameters():
        parameter.data.zero_()
    with pytest.raises(UserError, match=r"another image changes no logit \(.*image_effect 0\.0"):
        check_recorder(vlm, long_prompts)
