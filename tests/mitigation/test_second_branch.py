"""The second branch on its own: chunks, parts of a batch, positions, and what it leaves alone."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor

from interp.errors import UserError
from interp.vlm import VLM, Prompt
from mitigation.contrastive.processors import SecondBranch
from tests.families import FAMILIES, every_family
from tests.mitigation.family_laws import case
from tests.tiny import picture


def tokens(rows: int, count: int) -> Tensor:
    """Ordinary words of every vocabulary."""
    return torch.randint(300, 340, (rows, count), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", every_family(but={"llava", "llava_mistral"}))
def test_tokens_fed_in_a_chunk_are_those_fed_step_by_step(name: str) -> None:
    whole = case(name)
    branch, said = SecondBranch(whole.vlm.model, whole.noised), tokens(3, 4)
    steps = [branch.start(), *(branch.extend(said[:, i : i + 1]) for i in range(4))]
    torch.testing.assert_close(branch.start(), steps[0], atol=1e-3, rtol=1e-3)
    branch.extend(said[:, :1])
    torch.testing.assert_close(branch.extend(said[:, 1:]), steps[-1], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_the_positions_kept_in_the_model_are_left_alone(name: str) -> None:
    whole, kept = case(name), torch.full((3, 1), 12345)
    base = whole.vlm.model.model
    before, base.rope_deltas = base.rope_deltas, kept
    try:
        branch = SecondBranch(whole.vlm.model, whole.noised)
        branch.start()
        first = branch.extend(tokens(3, 1))
        assert base.rope_deltas is kept
        base.rope_deltas = None
        branch.start()
        assert torch.equal(branch.extend(tokens(3, 1)), first)
    finally:
        base.rope_deltas = before


def test_right_padding_is_refused_and_padding_after_the_picture_is_not() -> None:
    whole = case("instructblip")
    mask = whole.inputs["attention_mask"]
    assert (mask[:, 1:] < mask[:, :-1]).any(), "queries, then padding, then the text"
    SecondBranch(whole.vlm.model, whole.inputs)
    right = mask.clone()
    right[1, -1] = 0
    with pytest.raises(UserError, match="padded on the right"):
        SecondBranch(whole.vlm.model, whole.inputs | {"attention_mask": right})


def test_without_pictures_it_is_blind_if_asked_to_be(vlm: VLM) -> None:
    blind = dict(vlm.encode([Prompt("what is red")]))
    logits = SecondBranch(vlm.model, blind, blind=True).start()
    torch.testing.assert_close(logits, vlm.model(**blind).logits[:, -1], atol=1e-5, rtol=1e-5)
    seeing = dict(vlm.encode([Prompt("what is red", picture(1))]))
    assert (SecondBranch(vlm.model, seeing).start() - logits).abs().max() > 0.01


def test_an_adapter_is_part_of_the_branch() -> None:
    noised, model = case("qwen2_vl").noised, FAMILIES["qwen2_vl"]().model
    plain = SecondBranch(model, noised).start()
    with torch.random.fork_rng(devices=[]):
        adapted = get_peft_model(model, LoraConfig(target_modules=["q_proj"], init_lora_weights=False))
    assert (SecondBranch(adapted, noised).start() - plain).abs().max() > 1e-3
