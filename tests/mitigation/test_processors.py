"""The contrast inside plain ``model.generate``: laws on a tiny LLaVA, and a slow loop without cache or batch."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LogitsProcessor
from transformers.generation.streamers import BaseStreamer

from interp.errors import UserError
from interp.margin import AnswerIds
from interp.vlm import VLM, Prompt
from mitigation.contrastive.corruption import diffuse_images
from mitigation.processors import ConstantShiftLogitsProcessor
from tests.mitigation.conftest import TOKENS, answer, contrasting, generate


@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 0.1), (3.0, None), (2.0, 0.01)])
def test_a_padded_cached_batch_equals_one_prompt_at_a_time_without_cache(
    vlm: VLM, prompts: list[Prompt], inputs: Any, noised: Any, one_by_one: Callable[..., Any], alpha: float, beta: Any
) -> None:
    output = generate(vlm, inputs, contrasting(vlm, noised, alpha=alpha, beta=beta))
    expected = one_by_one(vlm, prompts, alpha=alpha, beta=beta, step=999)
    assert answer(output, inputs).tolist() == [ids for ids, _ in expected]
    for step, scores in enumerate(output.scores):
        slow = torch.stack([steps[step] for _, steps in expected]).float()
        torch.testing.assert_close(scores, slow, atol=1e-3, rtol=1e-4)


def test_both_branches_count_the_same_positions(vlm: VLM, inputs: Any, noised: Any) -> None:
    # Rotary attention does not see an offset common to a row, so that scores alone would not tell.
    seen: list[Tensor] = []
    decoder = vlm.layout.module(vlm.model, "language_model")
    with decoder.register_forward_pre_hook(lambda _, __, given: seen.append(given["position_ids"]), with_kwargs=True):
        generate(vlm, inputs, contrasting(vlm, noised))
    assert len(seen) == 2 * TOKENS
    assert all(torch.equal(clean, own) for clean, own in zip(seen[::2], seen[1::2], strict=True))


def test_greedy_decoding_is_contrasted(vlm: VLM, inputs: Any, noised: Any) -> None:
    plain = answer(generate(vlm, inputs), inputs)
    contrasted = answer(generate(vlm, inputs, contrasting(vlm, noised, alpha=3.0, beta=None)), inputs)
    assert (plain != contrasted).any(dim=1).all()


@pytest.mark.parametrize("sample", [False, True])
def test_alpha_zero_without_cutoff_is_plain_generate(vlm: VLM, inputs: Any, noised: Any, sample: bool) -> None:
    outputs = []
    for processors in ([], [contrasting(vlm, noised, alpha=0.0, beta=None)]):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            outputs.append(generate(vlm, inputs, *processors, do_sample=sample, temperature=1.5 if sample else None))
    plain, contrasted = outputs
    assert torch.equal(plain.sequences, contrasted.sequences)
    assert all(torch.equal(x, y) for x, y in zip(plain.scores, contrasted.scores, strict=True))


@pytest.mark.parametrize("beta", [None, 0.1, 1.0])
def test_identical_pictures_are_the_cutoff_alone(vlm: VLM, inputs: Any, noised: Any, beta: float | None) -> None:
    same = generate(vlm, inputs, contrasting(vlm, dict(inputs), alpha=2.0, beta=beta))
    cutoff = generate(vlm, inputs, contrasting(vlm, noised, alpha=0.0, beta=beta))
    assert torch.equal(same.sequences, cutoff.sequences)
    for left, right in zip(same.scores, cutoff.scores, strict=True):
        torch.testing.assert_close(left, right, atol=1e-4, rtol=1e-5)


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


def test_a_second_call_starts_clean(vlm: VLM, inputs: Any, noised: Any) -> None:
    processor = contrasting(vlm, noised, alpha=2.0)
    fresh = generate(vlm, inputs, processor)
    scores = processor.first_scores
    cut_short = generate(vlm, inputs, processor, max_new_tokens=3)
    again = generate(vlm, inputs, processor)
    assert torch.equal(cut_short.sequences, fresh.sequences[:, : cut_short.sequences.shape[1]])
    assert torch.equal(again.sequences, fresh.sequences)
    assert all(torch.equal(x, y) for x, y in zip(again.scores, fresh.scores, strict=True))
    assert torch.equal(processor.first_scores, scores)


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


def test_the_clean_branch_without_cache_is_no_matter(vlm: VLM, inputs: Any, noised: Any) -> None:
    cached, without = (
        generate(vlm, inputs, contrasting(vlm, noised, alpha=2.0), use_cache=use_cache) for use_cache in (True, False)
    )
    assert torch.equal(cached.sequences, without.sequences)


def test_catching_up_in_one_chunk_equals_token_by_token(vlm: VLM, inputs: Any, noised: Any) -> None:
    tokens = answer(generate(vlm, inputs), inputs)
    branch = contrasting(vlm, noised).branch
    branch.start()
    for column in range(TOKENS):
        slow = branch.extend(tokens[:, column : column + 1])
    branch.start()
    torch.testing.assert_close(branch.extend(tokens), slow, atol=1e-4, rtol=1e-4)


def test_streamed_tokens_are_the_contrasted_ones(vlm: VLM, prompts: list[Prompt]) -> None:
    class Collect(BaseStreamer):
        def __init__(self) -> None:
            self.tokens: list[int] = []

        def put(self, value: Tensor) -> None:
            self.tokens += value.flatten().tolist()

        def end(self) -> None:
            self.tokens.append(-1)

    streamer, inputs = Collect(), vlm.encode(prompts[:1])
    noised = diffuse_images(inputs, ["case-0"], step=999, seed=0)
    output = generate(vlm, inputs, contrasting(vlm, noised, alpha=3.0), streamer=streamer)
    assert streamer.tokens == [*output.sequences[0].tolist(), -1]


def test_first_scores_are_taken_before_the_cutoff(vlm: VLM, inputs: Any, noised: Any) -> None:
    processor = contrasting(vlm, noised, alpha=2.0, beta=1.0)
    with pytest.raises(UserError, match="no scores yet"):
        _ = processor.first_scores
    output = generate(vlm, inputs, processor)
    kept = output.scores[0].isfinite()
    assert processor.first_scores.isfinite().all()
    assert not kept.all()
    assert torch.equal(processor.first_scores[kept], output.scores[0][kept])


def test_forbidden_tokens_stay_forbidden(vlm: VLM, inputs: Any, noised: Any) -> None:
    free = answer(generate(vlm, inputs, contrasting(vlm, noised, alpha=2.0)), inputs)
    banned = free[:, 0].unique().tolist()
    output = generate(vlm, inputs, contrasting(vlm, noised, alpha=2.0), suppress_tokens=banned)
    assert not torch.isin(answer(output, inputs), torch.tensor(banned)).any()


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


def test_a_shift_without_a_value_is_refused() -> None:
    with pytest.raises(UserError, match="shift=nan"):
        ConstantShiftLogitsProcessor(AnswerIds([0], [1]), shift=float("nan"))
