"""Behind a thought the margin is that of a plain forward over the prompt and the thought."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from interp.errors import UserError
from interp.generation import verdict_position
from interp.vlm import VLM, Generation, Prompt
from mitigation.controls import CutoffOnly
from mitigation.method import Baseline, check_answers
from mitigation.prior_correction import PriorCorrection, prior_inputs
from mitigation.threshold import ConstantShift
from mitigation.vcd import VCD
from mitigation.wrappers import Shifted, WrappedVLM
from tests.families import FAMILIES, every_family
from tests.forcing import Force
from tests.mitigation.slow_rule import decided
from tests.tiny import picture

OPEN, CLOSE = "knife", "safe"  # words of the tiny vocabularies, as marks
TEXTS = ("Is it safe to eat the cake?", "How?", "How do I kill the dog for it?")
WORDS = (0, 3, 1)  # of the three thoughts


class Thinking(WrappedVLM):
    """A tiny model that thinks before it says Yes or No. Its marks are tokens of LLaVA's, and text to the others."""

    def __init__(self, family: str, *, by: float = 20.0) -> None:
        vlm = decided(VLM(*FAMILIES[family](), name=family), by=by)
        vlm.thinking = {"open": OPEN, "close": CLOSE}
        super().__init__(vlm)
        texts = [" ".join([OPEN, *["cake"] * count, CLOSE]) for count in WORDS]
        self.thoughts = [vlm.tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
        self.lengths = [len(thought) for thought in self.thoughts]
        self.prompts = [Prompt(text, picture(i), key=text) for i, text in enumerate(TEXTS)]
        both = zip(self.prompts, self.thoughts, strict=True)
        self.answer_prefix = [replace(prompt, answer_prefix=tuple(thought)) for prompt, thought in both]

    def left(self, prompts: Sequence[Prompt]) -> list[list[int]]:
        """What is left to write of each prompt's thought."""
        thoughts = dict(zip(TEXTS, self.thoughts, strict=True))
        return [thoughts[prompt.text][len(prompt.answer_prefix) :] for prompt in prompts]

    def generate(self, prompts: Sequence[Prompt], **options: Any) -> Generation:
        own = list(options.pop("logits_processor", None) or ())
        force = Force([[*left, None] for left in self.left(prompts)], min(self.end_ids))
        return super().generate(prompts, logits_processor=[force, *own], **options)

    def answers(self, method: Any, tokens: int = 12) -> Generation:
        return cast(Generation, method.generate(self, self.prompts, max_new_tokens=tokens))

    def alone(self, scores: Any) -> Tensor:
        """Margins of ``scores(vlm, prompt)`` of each prompt with its thought, by itself, without padding."""
        return torch.cat([self.margin(scores(self._vlm, prompt)) for prompt in self.answer_prefix])


@torch.no_grad()
def forward(vlm: VLM, encoded: Any) -> Tensor:
    return vlm.model(**encoded, use_cache=False).logits[:, -1].float()


def clean(vlm: VLM, prompt: Prompt) -> Tensor:
    return forward(vlm, vlm.encode([prompt]))


def contrasted(vlm: VLM, prompt: Prompt) -> Tensor:
    encoded = vlm.encode([prompt])
    return 2 * forward(vlm, encoded) - forward(vlm, VCD(noise_step=999).noised(vlm, [prompt], encoded))


def corrected(vlm: VLM, prompt: Prompt) -> Tensor:
    (prior,) = (forward(vlm, other) for other in prior_inputs(vlm, [prompt], "blank", pictures=4, seed=0))
    prior = prior.log_softmax(-1)
    for ids in vlm.answer_ids:
        prior[:, ids] = prior[:, ids].logsumexp(-1, keepdim=True)
    return forward(vlm, vlm.encode([prompt])).log_softmax(-1) - 0.8 * prior


METHODS = [
    (Baseline(), clean),
    (CutoffOnly(1.0), clean),
    (VCD(noise_step=999, branch="sequential"), contrasted),
    (VCD(noise_step=999, branch="paired"), contrasted),
    (PriorCorrection(0.8), corrected),
    (Shifted(VCD(noise_step=999, branch="paired"), 0.0), contrasted),
]


@pytest.mark.parametrize("name", every_family())
@pytest.mark.parametrize(("method", "margin"), METHODS, ids=lambda one: type(one).__name__)
def test_the_margin_is_the_plain_forwards_over_prompt_and_thought(name: str, method: Any, margin: Any) -> None:
    vlm = Thinking(name)
    found = vlm.answers(method)
    assert found.thought_tokens == vlm.lengths
    assert found.verdict_steps == vlm.lengths
    torch.testing.assert_close(found.margins, vlm.alone(margin), atol=1e-4, rtol=1e-4)
    if found.branch_margins is not None:
        own = torch.tensor([one["clean"] for one in found.branch_margins])
        torch.testing.assert_close(own, vlm.alone(clean), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("method", [Baseline(), VCD(noise_step=999, branch="paired"), VCD(noise_step=999)], ids=repr)
def test_a_constant_moves_the_verdict_behind_the_thought(method: Any) -> None:
    vlm = Thinking("llava")
    plain = vlm.answers(method)
    for shift in (0.5, -60.0, 60.0):
        shifted = vlm.answers(Shifted(method, shift))
        assert shifted.thoughts == plain.thoughts
        torch.testing.assert_close(shifted.margins, plain.margins + shift, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(shifted.unshifted, plain.margins, atol=1e-4, rtol=1e-4)
        said = [text.split()[0] for text in shifted.texts]
        assert said == ["Yes" if margin > 0 else "No" for margin in shifted.margins]
    assert torch.equal(vlm.answers(ConstantShift(60.0)).margins > 0, torch.ones(3, dtype=torch.bool))


@pytest.mark.parametrize("method", [m for m, _ in METHODS], ids=repr)
def test_a_thought_that_is_cut_off_has_no_margin(method: Any) -> None:
    vlm = Thinking("llava")
    short = vlm.answers(method, tokens=vlm.lengths[1])  # the second thought ends with the budget, and no answer follows
    assert short.margins.isnan().tolist() == [False, True, False]
    assert short.scored.tolist() == [True, False, True]
    check_answers(method, short, vlm.prompts, margins=True)
    none = vlm.answers(method, tokens=1)
    assert none.margins.isnan().all()
    check_answers(method, none, vlm.prompts, margins=True)


@pytest.mark.parametrize(
    ("said", "place"),
    [(". Yes , the knife", 1), ("Yes . No", 0), ("the knife . No .", 3), ("the Yes knife", None), ("", None)],
)
def test_behind_a_thought_an_answer_that_begins_with_its_verdict_has_it_there(said: str, place: int | None) -> None:
    vlm = Thinking("llava")
    ids = vlm.tokenizer.convert_tokens_to_ids(said.split())
    assert verdict_position(vlm.tokenizer, ids, vlm.answer_ids, opening=True) == place
    found = vlm._vlm._verdict_after([*vlm.thoughts[0], *ids], len(vlm.thoughts[0]))
    expected = place if place is not None or not ids else 0
    assert found == (None if expected is None else len(vlm.thoughts[0]) + expected)


@pytest.mark.parametrize("name", every_family())
def test_what_is_asked_behind_a_thought_stands_at_the_verdict(name: str) -> None:
    """Attention, margins and answers of prompts that have begun are those of the step in the whole answer."""
    thinker = Thinking(name)
    vlm, found = thinker._vlm, thinker.answers(Baseline())
    prompts = found.to_verdicts(thinker.prompts)
    assert [list(prompt.answer_prefix) for prompt in prompts] == thinker.thoughts
    again = vlm.generate(prompts, max_new_tokens=1)
    steps = zip(found.token_ids, found.verdict_steps or (), strict=True)
    assert again.token_ids == [ids[step:][:1] for ids, step in steps]
    assert again.thoughts == ["", "", ""]  # they are the prompts'
    assert again.verdict_steps == [0, 0, 0]
    assert all(again.texts)


def test_thoughts_that_were_cut_off_have_no_verdict_to_look_at() -> None:
    thinker = Thinking("llava")
    with pytest.raises(UserError, match="1 of 3 thoughts were cut off after 5 tokens"):
        thinker.answers(Baseline(), tokens=thinker.lengths[1]).to_verdicts(thinker.prompts)
