"""Thinking as a setting: off, bounded, begun; and a thought by one method with the answer by another."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from experiments.benchmarks.iconworld.benchmark import IconWorld
from experiments.evaluation.attention_log import prompts_of
from interp.loading import load
from interp.vlm import VLM, Generation, Prompt
from mitigation import VCD, Baseline
from mitigation.thinking import Thinking, TwoSteps
from mitigation.wrappers import Shifted

TOKENS = 64
OPEN, CLOSE = "<think>", "</think>"


@pytest.fixture(scope="module")
def vlm() -> VLM:
    return load("organism:thinking", device="cpu")


@pytest.fixture(scope="module")
def prompts() -> list[Prompt]:
    return prompts_of(IconWorld().load().samples[:12])


def answers(vlm: VLM, prompts: list[Prompt], method: Any) -> Generation:
    return method.generate(vlm, prompts, max_new_tokens=TOKENS)


def spoken(vlm: VLM, text: str) -> str:
    return text.replace(OPEN, "").replace(CLOSE, "").strip()


@pytest.mark.long
def test_off_is_an_empty_thought(vlm: VLM, prompts: list[Prompt]) -> None:
    found = answers(vlm, prompts, Thinking("off"))
    assert Thinking("off") == Thinking(0)
    assert [spoken(vlm, thought) for thought in found.thoughts or ()] == [""] * len(prompts)
    assert all(text in ("Yes.", "No.") for text in found.texts)
    template = load("organism:thinking", device="cpu", template={"enable_thinking": False})
    asked = answers(template, prompts, Baseline())  # the template closes an empty thought
    assert asked.texts == found.texts
    torch.testing.assert_close(found.margins, asked.margins, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("budget", [1, 4, 9])
def test_no_thought_is_longer_than_its_budget(vlm: VLM, prompts: list[Prompt], budget: int) -> None:
    """The shorter ones are as they were."""
    free, bound = answers(vlm, prompts, Baseline()), answers(vlm, prompts, Thinking(budget))
    assert free.thought_tokens
    assert bound.thought_tokens
    assert max(free.thought_tokens) > budget + 1
    assert bound.thought_tokens == [min(count, budget + 1) for count in free.thought_tokens]
    for one, other, length in zip(free.token_ids, bound.token_ids, free.thought_tokens, strict=True):
        assert one[:budget] == other[:budget]
        assert length > budget + 1 or one == other
    assert all(text.startswith(("Yes", "No")) for text in bound.texts)


def test_a_bounded_thought_has_the_margin_of_a_plain_forward_behind_it(vlm: VLM, prompts: list[Prompt]) -> None:
    found = answers(vlm, prompts, Thinking(4))
    begun = found.to_verdicts(prompts)
    for row, one in enumerate(begun):  # each by itself
        logits = vlm.model(**vlm.encode([one])).logits[0, -1].float()
        yes, no = vlm.answer_ids
        margin = logits[yes].logsumexp(0) - logits[no].logsumexp(0)
        assert float(found.margins[row]) == pytest.approx(float(margin), abs=1e-4)


def test_a_thought_begins_with_the_given_words(vlm: VLM, prompts: list[Prompt]) -> None:
    for thought in answers(vlm, prompts, Thinking(begins="It is a")).thoughts or ():
        assert spoken(vlm, thought).startswith("It is a")


@pytest.mark.parametrize("method", [Thinking("off"), Thinking(4), Thinking(4, "It is"), Thinking(begins="It is")])
def test_a_constant_moves_the_verdict_after_such_a_thought(vlm: VLM, prompts: list[Prompt], method: Any) -> None:
    plain, shifted = answers(vlm, prompts[:4], method), answers(vlm, prompts[:4], Shifted(method, 0.01))
    assert shifted.token_ids == plain.token_ids
    assert shifted.thoughts == plain.thoughts
    torch.testing.assert_close(shifted.margins, plain.margins + 0.01, atol=1e-4, rtol=1e-4)


@pytest.mark.long
def test_two_parts_alike_are_the_whole(vlm: VLM, prompts: list[Prompt]) -> None:
    whole, parts = answers(vlm, prompts, Baseline()), answers(vlm, prompts, TwoSteps(Baseline(), Baseline()))
    for name in ("texts", "token_ids", "thoughts", "thought_tokens", "verdict_steps", "finished"):
        assert getattr(parts, name) == getattr(whole, name), name
    torch.testing.assert_close(parts.margins, whole.margins, atol=1e-4, rtol=1e-4)


@pytest.mark.long
def test_each_part_is_its_own_method_s(vlm: VLM, prompts: list[Prompt]) -> None:
    vcd = VCD(noise_step=500)
    plain, both = answers(vlm, prompts, Baseline()), answers(vlm, prompts, vcd)
    on_thought = answers(vlm, prompts, TwoSteps(vcd, Baseline()))
    on_verdict = answers(vlm, prompts, TwoSteps(Baseline(), vcd))
    assert on_thought.thoughts == both.thoughts
    assert on_verdict.thoughts == plain.thoughts
    assert not torch.allclose(on_verdict.margins, plain.margins, atol=1e-3)
    told = [row for row, one in enumerate(both.thoughts or ()) if one == (plain.thoughts or ())[row]]
    torch.testing.assert_close(on_verdict.margins[told], both.margins[told], atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(on_thought.margins[told], plain.margins[told], atol=1e-3, rtol=1e-3)


def test_a_thought_that_is_cut_off_has_no_answer_by_the_other_part(vlm: VLM, prompts: list[Prompt]) -> None:
    method = TwoSteps(Baseline(), Baseline())
    found = method.generate(vlm, prompts[:3], max_new_tokens=2)
    assert found.texts == [""] * 3
    assert bool(found.margins.isnan().all())


def test_a_prompt_that_has_begun_keeps_its_beginning(vlm: VLM, prompts: list[Prompt]) -> None:
    words = tuple(vlm.tokenizer("It is a", add_special_tokens=False)["input_ids"])
    begun = [replace(one, answer_prefix=words) for one in prompts[:3]]
    free = answers(vlm, prompts[:3], Thinking(begins="It is a"))
    assert answers(vlm, begun, Baseline()).texts == free.texts
