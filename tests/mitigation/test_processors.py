"""The contrast inside plain ``model.generate``: laws on a tiny LLaVA, and a slow loop without cache or batch."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LogitsProcessor

from interp.errors import UserError
from interp.vlm import VLM, Prompt
from mitigation.processors import ConstantShiftLogitsProcessor
from tests.mitigation.conftest import TOKENS, answer, contrasting, generate


def test_the_plain_choice_always_survives_the_cutoff(vlm: VLM, inputs: Any, noised: Any) -> None:
    for beta in (1.0, 0.5, 1e-3):
        output = generate(vlm, inputs, contrasting(vlm, noised, alpha=4.0, beta=beta))
        plain = generate(vlm, inputs)
        first = plain.scores[0].argmax(dim=1, keepdim=True)
        assert output.scores[0].gather(1, first).isfinite().all()
        if beta == 1.0:
            assert torch.equal(output.sequences, plain.sequences)


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


def test_nothing_is_shared_with_the_model_or_the_caller(vlm: VLM, inputs: Any, noised: Any) -> None:
    before = {name: value.clone() for name, value in noised.items()}
    plain = generate(vlm, inputs)
    weights = {name: weight.clone() for name, weight in vlm.model.state_dict().items()}
    plain_attributes = {name: dict(module.__dict__) for name, module in vlm.model.named_modules()}

    processor = contrasting(vlm, noised, alpha=2.0)
    output = generate(vlm, inputs, processor)

    assert output.past_key_values.get_seq_length() == inputs["input_ids"].shape[1] + TOKENS - 1
    assert processor.branch._cache is not output.past_key_values
    assert not {id(layer) for layer in processor.branch._cache.layers} & {
        id(layer) for layer in output.past_key_values.layers
    }
    assert noised.keys() == before.keys()
    assert all(torch.equal(noised[name], value) for name, value in before.items())
    assert all(torch.equal(weights[name], weight) for name, weight in vlm.model.state_dict().items())
    for name, module in vlm.model.named_modules():
        assert all(module.__dict__[key] is value for key, value in plain_attributes[name].items())
    assert torch.equal(generate(vlm, inputs).sequences, plain.sequences)


def test_first_scores_are_taken_before_the_cutoff(vlm: VLM, inputs: Any, noised: Any) -> None:
    processor = contrasting(vlm, noised, alpha=2.0, beta=1.0)
    with pytest.raises(UserError, match="no scores yet"):
        _ = processor.first_scores
    output = generate(vlm, inputs, processor)
    kept = output.scores[0].isfinite()
    assert processor.first_scores.isfinite().all()
    assert not kept.all()
    assert torch.equal(processor.first_scores[kept], output.scores[0][kept])


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
