"""The contrast inside plain ``model.generate``: laws on a tiny LLaVA, and a slow loop without cache or batch."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LogitsProcessor

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
