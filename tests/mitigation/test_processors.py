"""The contrast inside plain ``model.generate``: laws on a tiny LLaVA, and what it refuses."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LogitsProcessor, RepetitionPenaltyLogitsProcessor

from interp.errors import UserError
from interp.vlm import VLM, Prompt
from mitigation.processors import ConstantShiftLogitsProcessor
from tests.mitigation.conftest import answer, contrasting, generate


def test_a_row_that_ended_early_leaves_the_others_alone(
    vlm: VLM, prompts: list[Prompt], inputs: Any, noised: Any
) -> None:
    free = answer(generate(vlm, inputs, contrasting(vlm, noised, alpha=3.0, beta=None)), inputs)
    end = next(int(token) for token in free[0] if all(token not in row for row in free[1:]))
    stopped = generate(vlm, inputs, contrasting(vlm, noised, alpha=3.0, beta=None), eos_token_id=end)
    rows = answer(stopped, inputs)
    assert rows[0].tolist().count(end) == 1
    assert rows[0, -1] == 0
    assert torch.equal(rows[1:], free[1:])


def test_a_call_that_broke_off_does_not_leak(vlm: VLM, inputs: Any, noised: Any) -> None:
    class Interrupt(LogitsProcessor):
        def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
            if input_ids.shape[1] > inputs["input_ids"].shape[1] + 2:
                raise KeyboardInterrupt
            return scores

    processor = contrasting(vlm, noised, alpha=2.0)
    with pytest.raises(KeyboardInterrupt):
        generate(vlm, inputs, processor, Interrupt())
    after = generate(vlm, inputs, processor)
    assert torch.equal(after.sequences, generate(vlm, inputs, contrasting(vlm, noised, alpha=2.0)).sequences)


def test_a_shift_moves_the_first_token_alone(vlm: VLM, inputs: Any) -> None:
    yes, no = vlm.answer_ids
    for shift in (0.0, 3.0, -7.5):
        processor = ConstantShiftLogitsProcessor(vlm.answer_ids, shift=shift)
        output = generate(vlm, inputs, processor, output_logits=True)
        moved = torch.stack(output.scores) - torch.stack(output.logits)
        expected = torch.zeros_like(moved)
        expected[0, :, yes] = shift / 2
        expected[0, :, no] = -shift / 2
        torch.testing.assert_close(moved, expected, atol=1e-5, rtol=0)


def test_a_penalty_of_the_generation_config_is_refused(vlm: VLM, inputs: Any, noised: Any) -> None:
    vlm.model.generation_config.repetition_penalty = 1.3
    with pytest.raises(UserError, match=r"repetition_penalty=1\.0"):
        generate(vlm, inputs, contrasting(vlm, noised))
    generate(vlm, inputs, contrasting(vlm, noised), repetition_penalty=1.0)


def test_a_penalty_after_the_contrast_is_welcome(vlm: VLM, inputs: Any, noised: Any) -> None:
    penalty = RepetitionPenaltyLogitsProcessor(1.3)
    contrasted = generate(vlm, inputs, contrasting(vlm, noised), max_new_tokens=1).scores[0]
    output = generate(vlm, inputs, contrasting(vlm, noised), penalty, max_new_tokens=1)
    assert torch.equal(output.scores[0], penalty(inputs["input_ids"], contrasted.clone()))


def test_whatever_changes_scores_before_the_contrast_is_refused(vlm: VLM, inputs: Any, noised: Any) -> None:
    class Changed(LogitsProcessor):
        def __init__(self, value: float) -> None:
            self.value = value

        def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
            return scores.index_fill(1, torch.tensor([5]), self.value)

    with pytest.raises(UserError, match="scores were changed before contrastive decoding"):
        generate(vlm, inputs, Changed(0.0), contrasting(vlm, noised))
    forbidden = generate(vlm, inputs, Changed(-torch.inf), contrasting(vlm, noised))
    assert 5 not in forbidden.sequences[:, inputs["input_ids"].shape[1] :]


def test_steps_out_of_order_are_refused(vlm: VLM, inputs: Any, noised: Any) -> None:
    processor, ids = contrasting(vlm, noised), inputs["input_ids"]
    scores = torch.zeros(3, vlm.model.config.text_config.vocab_size)
    processor(ids, scores)
    for jump in (torch.cat([ids, ids[:, :2]], dim=1), torch.cat([ids[:, :1] + 1, ids], dim=1), ids[:, :-1]):
        with pytest.raises(UserError, match=r"neither starts from .* nor continues"):
            processor(jump, scores)
    processor(torch.cat([ids, ids[:, :1]], dim=1), scores)
