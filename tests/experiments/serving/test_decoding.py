"""Any method can be sampled, stopped and asked for its scores; what it answers greedily stays the same."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from experiments.serving.decoding import Row, answer
from experiments.serving.requests import Decoding
from interp.errors import UserError
from interp.vlm import VLM, Generation, Prompt
from mitigation.attention_steering import AttentionSteering
from mitigation.controls import CutoffOnly
from mitigation.method import Baseline
from mitigation.prior_correction import PriorCorrection
from mitigation.prompting import ContextPrompt
from mitigation.vcd import VCD
from mitigation.wrappers import Sampled, Shifted, unwrapped
from tests.tiny import picture

TOKENS = 6
PROMPTS = [Prompt(text, picture(i), key=str(i)) for i, text in enumerate(["Is this safe?", "what is red", "the dog"])]
METHODS: list[Any] = [
    Baseline(), ContextPrompt(), VCD(), VCD(branch="sequential"), CutoffOnly(0.5),
    PriorCorrection(), AttentionSteering(1.0), Shifted(VCD(), 0.5),
]  # fmt: skip


def rows(**fields: Any) -> list[Row]:
    return [Row(prompt, prompt.key, **fields) for prompt in PROMPTS]


def check(method: Any, vlm: VLM) -> None:
    plain = method.generate(vlm, PROMPTS, max_new_tokens=TOKENS)
    found = answer(method, vlm, rows(), Decoding(TOKENS, alternatives=3))
    assert [one.text for one in found] == plain.texts
    assert [one.tokens for one in found] == [len(ids) for ids in plain.token_ids]
    for one, ids in zip(found, plain.token_ids, strict=True):
        assert len(one.scores) == len(ids)
        for token in one.scores:
            assert token.logprob == pytest.approx(token.alternatives[0][1])  # greedy: none is likelier


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_greedy_is_the_methods_own_and_warm_is_that_of_sampled(vlm: VLM, method: Any) -> None:
    check(method, vlm)
    warm = answer(method, vlm, rows(seed=4), Decoding(TOKENS, temperature=0.7))
    sampled = Sampled(method, temperature=0.7, seed=4).generate(vlm, PROMPTS, max_new_tokens=TOKENS)
    assert [one.text for one in warm] == sampled.texts


@dataclass(frozen=True)
class Twice:
    """Asks the model, then asks it again; the second answer counts."""

    def generate(self, vlm: VLM, prompts: Sequence[Prompt], *, max_new_tokens: int) -> Generation:
        vlm.generate(prompts, max_new_tokens=1)
        return vlm.generate([replace(p, text=f"{p.text} red") for p in prompts], max_new_tokens=max_new_tokens)


@dataclass(frozen=True)
class Written:
    """Writes its answers itself."""

    def generate(self, vlm: VLM, prompts: Sequence[Prompt], *, max_new_tokens: int) -> Generation:
        ids = [vlm.tokenizer("the cat")["input_ids"] for _ in prompts]
        return Generation(["the cat"] * len(prompts), ids, torch.zeros(len(prompts)), [True] * len(prompts))


def test_a_method_that_answers_otherwise_is_served_greedily_alone(vlm: VLM) -> None:
    for method in (Twice(), Written()):
        plain = method.generate(vlm, PROMPTS, max_new_tokens=TOKENS).texts
        assert [one.text for one in answer(method, vlm, rows(), Decoding(TOKENS))] == plain
        with pytest.raises(UserError, match=r"in several steps|its own decoding loop"):
            answer(method, vlm, rows(), Decoding(TOKENS, alternatives=1))
    with pytest.raises(UserError, match=r"in several steps|its own decoding loop"):
        answer(Twice(), vlm, rows(), Decoding(TOKENS, temperature=1.0))
    with pytest.raises(UserError, match="its own decoding loop"):
        answer(Written(), vlm, rows(), Decoding(TOKENS, temperature=1.0))


def test_rows_that_are_given_up_end_and_others_do_not(vlm: VLM) -> None:
    for method in (Baseline(), VCD()):
        plain = method.generate(vlm, PROMPTS, max_new_tokens=TOKENS)
        some = rows()
        some[1].given_up = lambda: True
        found = answer(method, vlm, some, Decoding(TOKENS))
        assert found[1].tokens == 1 < len(plain.token_ids[1])
        assert [found[0].text, found[2].text] == [plain.texts[0], plain.texts[2]]


def test_a_thought_is_served_as_it_is_written(vlm: VLM) -> None:
    whole = vlm.generate(PROMPTS, max_new_tokens=TOKENS).texts
    vlm.thinking = {"open": whole[0].split()[0], "close": "never"}
    assert vlm.generate(PROMPTS, max_new_tokens=TOKENS).texts[0] == ""  # all of it is a thought
    assert [one.text for one in answer(Baseline(), vlm, rows(), Decoding(TOKENS))] == whole


@dataclass(frozen=True)
class OwnLoop:
    """A method that encodes by the model that it is given, and does not answer through it."""

    def generate(self, vlm: VLM, prompts: Sequence[Prompt], *, max_new_tokens: int) -> Generation:
        return unwrapped(vlm).generate(prompts, max_new_tokens=max_new_tokens, encoded=vlm.encode(prompts))


@pytest.mark.long
def test_a_method_with_a_loop_of_its_own_answers_whole_or_not_at_all(vlm: VLM) -> None:
    search = OwnLoop()
    found = answer(search, vlm, rows(), Decoding(TOKENS))
    assert [one.text for one in found] == search.generate(vlm, PROMPTS, max_new_tokens=TOKENS).texts
    for other in ({"temperature": 1.0}, {"stop": ("x",)}, {"alternatives": 0}):
        with pytest.raises(UserError, match="has its own decoding loop"):
            answer(search, vlm, rows(), Decoding(TOKENS, **other))  # type: ignore[arg-type]
