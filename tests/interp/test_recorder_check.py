"""The self-test passes on a sound model, and says with numbers what is wrong with an unsound one."""

from contextlib import nullcontext

import pytest
import torch

from interp.attention import check
from interp.attention import record as attention
from interp.attention.check import TOLERANCE, check_recorder
from interp.errors import UserError
from interp.hooks.attention import AttentionCall
from interp.vlm import VLM, Prompt
from tests.families import FAMILIES
from tests.tiny import picture

_honest = check._verdict_logits
LONG = "is it safe to do this for a toy dog in that red circle and what could it cause"


@pytest.fixture
def long_prompts():
    """Longer than the few queries that are computed by rows."""
    return [Prompt(LONG, picture(0)), Prompt(LONG + " " + LONG, picture(1))]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_tolerances_follow_the_type(dtype):
    model, processor = FAMILIES["qwen2_5_vl"]()
    result = check_recorder(VLM(model.to(dtype), processor))
    assert 1e-5 < result.mass_error < result.tolerance == TOLERANCE[dtype]


@pytest.mark.parametrize("passes", [False, True])
def test_logits_may_be_off_by_what_another_batch_size_changes(vlm, long_prompts, monkeypatch, passes):
    """Each forward is off by more: the batch, twice under a recorder, and the two prompts."""
    forwards = iter([0.0, 0.06, 0.0, *([0.04] * 2 if passes else [0.02] * 2)])
    monkeypatch.setattr(check, "_verdict_logits", lambda *inputs: _honest(*inputs) + next(forwards))
    with nullcontext() if passes else pytest.raises(UserError, match="the recorder changes the logits"):
        check_recorder(vlm, long_prompts)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_passes_on_a_gpu_in_every_type(dtype):
    model, processor = FAMILIES["llava_next"]()
    result = check_recorder(VLM(model.to("cuda", dtype), processor))
    assert result.mass_error <= TOLERANCE[dtype]


def test_a_wrong_mass_is_caught(vlm, long_prompts, monkeypatch):
    honest = attention._kernel_mass
    monkeypatch.setattr(attention, "_kernel_mass", lambda *inputs: honest(*inputs) * 0.999)
    with pytest.raises(UserError, match=r"masses differ from eager attention \(mass_error 0\.000\d+, logit"):
        check_recorder(vlm, long_prompts)


def test_rows_without_their_mask_are_caught(vlm, long_prompts, monkeypatch):
    monkeypatch.setattr(AttentionCall, "bias", lambda call, where: None)
    with pytest.raises(UserError, match="masses differ from eager attention"):
        check_recorder(vlm, long_prompts)


def test_a_lost_mask_function_is_caught(vlm, long_prompts, monkeypatch):
    from transformers import AttentionMaskInterface

    from interp.hooks.attention import NAME

    monkeypatch.delitem(AttentionMaskInterface._global_mapping, NAME)
    with pytest.raises(UserError, match="the recorder changes the logits"):
        check_recorder(vlm, long_prompts)
