"""Margins are read from the scores that the first token was chosen from; by branch they are arithmetic of its parts."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LogitsProcessor, TemperatureLogitsWarper, TopKLogitsWarper

from experiments.benchmarks.iconworld.benchmark import IconWorld
from experiments.evaluation.cases import limited
from experiments.evaluation.fitting import examples
from interp.errors import UserError
from interp.vlm import VLM, Generation, Prompt
from mitigation import (
    M3ID,
    PAI,
    VCD,
    AttentionSteering,
    Baseline,
    InstructionContrast,
    PriorCorrection,
    Sampled,
    SelfContrast,
    Shifted,
    TextOnly,
)
from mitigation.method import abilities
from mitigation.processors import CaseSampler, PlausibilityLogitsProcessor
from mitigation.threshold import ConstantShift
from tests.families import FAMILIES, every_family
from tests.tiny import picture


class Doubtful(LogitsProcessor):
    """Raises " Yes" where the model is unsure, in place: nothing that a constant does."""

    def __init__(self, vlm: VLM, strength: float) -> None:
        self._ids, self._strength = vlm.answer_ids, strength

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        unsure = scores.log_softmax(-1).max(-1, keepdim=True).values
        scores[:, self._ids.yes] += self._strength * (unsure < -1e-3) * (1 - unsure)
        return scores


class Mask(LogitsProcessor):
    """Forbids ``tokens`` in the rows ``rows``."""

    def __init__(self, tokens: Sequence[int], rows: Sequence[int]) -> None:
        self._tokens, self._rows = list(tokens), list(rows)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        scores = scores.clone()
        for row in self._rows:
            scores[row, self._tokens] = -torch.inf
        return scores


@dataclass(frozen=True)
class OnlyAProcessor:
    """A method as a user writes it: nothing in it is about margins."""

    strength: float = 3.0

    def generate(self, vlm: VLM, prompts: Sequence[Prompt], *, max_new_tokens: int) -> Generation:
        return vlm.generate(prompts, max_new_tokens=max_new_tokens, logits_processor=[Doubtful(vlm, self.strength)])


@pytest.fixture(scope="module")
def sixty() -> list[Prompt]:
    scored = [sample for sample in IconWorld().load().samples if sample.subset != "control"]
    return examples(limited(scored, 60))[0]


@pytest.mark.long
def test_a_processor_of_the_users_is_in_the_margins(organism: VLM, sixty: list[Prompt]) -> None:
    """Read before the processor, 56 of the 60 answers here would be Yes with a margin below zero."""
    plain, own = (m.generate(organism, sixty, max_new_tokens=1) for m in (Baseline(), OnlyAProcessor()))
    turned = [i for i, text in enumerate(own.texts) if text.startswith("Yes") and plain.margins[i] < 0]
    assert len(turned) == 56
    assert (own.margins[turned] > 0).all()


@pytest.mark.parametrize("name", every_family())
def test_in_every_family_they_are_those_of_the_scores_that_transformers_chose_from(name: str) -> None:
    vlm = VLM(*FAMILIES[name](), name=name)
    prompts = [Prompt(text, picture(i), key=text) for i, text in enumerate(("Is it safe to eat the cake?", "How?"))]
    options = {"do_sample": False, "num_beams": 1, "repetition_penalty": 1.3, "max_new_tokens": 2}
    for own in ([], [Doubtful(vlm, 2.0)]):
        plain = vlm.model.generate(
            **vlm.encode(prompts), **options, logits_processor=own, return_dict_in_generate=True, output_scores=True
        )
        got = vlm.generate(prompts, logits_processor=own, repetition_penalty=1.3, max_new_tokens=2)
        assert torch.equal(got.margins, vlm.margin(plain.scores[0]).cpu())


def test_samplers_are_left_out(vlm: VLM, prompts: list[Prompt]) -> None:
    plain = vlm.generate(prompts, max_new_tokens=1)
    drawn = vlm.generate(prompts, max_new_tokens=1, do_sample=True, temperature=2.0, top_k=3, top_p=0.5, seed=1)
    assert torch.equal(drawn.margins, plain.margins)
    assert (plain.sampled, drawn.sampled) == (False, True)
    warpers = [TemperatureLogitsWarper(0.5), TopKLogitsWarper(1)]
    assert torch.equal(vlm.generate(prompts, logits_processor=warpers).margins, plain.margins)
    late = [TemperatureLogitsWarper(0.5), Doubtful(vlm, 3.0)]  # not a sampler's place: its scores are chosen from
    warm = vlm.generate(prompts, logits_processor=late[1:]).margins
    assert not torch.allclose(vlm.generate(prompts, logits_processor=late).margins, warm)
    draw = CaseSampler([prompt.key for prompt in prompts], temperature=3.0, seed=0)
    case = vlm.generate(prompts, max_new_tokens=1, logits_processor=[Doubtful(vlm, 3.0), draw])
    assert torch.equal(case.margins, warm)
    assert case.sampled


def test_a_sampled_method_has_the_margins_of_the_method(vlm: VLM, prompts: list[Prompt]) -> None:
    for method in (OnlyAProcessor(), VCD(), ConstantShift(1.0), AttentionSteering(1.0)):
        drawn, plain = (m.generate(vlm, prompts, max_new_tokens=2) for m in (Sampled(method), method))
        assert torch.equal(drawn.margins, plain.margins)
        assert (plain.sampled, drawn.sampled) == (False, True)
    for method in (Sampled(VCD()), AttentionSteering(1.0, method=Sampled(VCD()))):
        assert abilities(method).sampled
    for method in (VCD(), Shifted(VCD(), 1.0), AttentionSteering(1.0)):
        assert not abilities(method).sampled


def test_a_masked_answer_has_no_margin_unless_the_scores_before_are_handed_on(vlm: VLM, prompts: list[Prompt]) -> None:
    plain = vlm.generate(prompts, max_new_tokens=1)
    (yes,), (no,) = vlm.answer_ids
    for token in (yes, no):
        masked = vlm.generate(prompts, max_new_tokens=1, logits_processor=[Mask([token], [1])])
        assert masked.margins.isnan().tolist() == [False, True, False]
        assert torch.equal(masked.margins[[0, 2]], plain.margins[[0, 2]])
    other = next(token for token in range(5, 99) if token not in (yes, no))
    assert torch.equal(vlm.generate(prompts, logits_processor=[Mask([other], [0, 1, 2])]).margins, plain.margins)
    assert vlm.generate(prompts, bad_words_ids=[[yes]]).margins.isnan().all()
    with pytest.raises(UserError, match="declare uncut_scores"):
        Shifted(Masking(token), 1.0).generate(vlm, prompts, max_new_tokens=1)
    cutoff = PlausibilityLogitsProcessor(beta=1.0)  # nothing but the likeliest token is left
    cut = vlm.generate(prompts, max_new_tokens=1, logits_processor=[cutoff])
    assert torch.equal(cut.margins, plain.margins)
    behind = vlm.generate(
        prompts, max_new_tokens=1, logits_processor=[PlausibilityLogitsProcessor(beta=1.0), Doubtful(vlm, 1.0)]
    )
    assert behind.margins.isnan().all()  # what the later one would have made of the masked answer is unknown


@dataclass(frozen=True)
class Masking:
    token: int

    def generate(self, vlm: VLM, prompts: Sequence[Prompt], *, max_new_tokens: int) -> Generation:
        return vlm.generate(prompts, max_new_tokens=max_new_tokens, logits_processor=[Mask([self.token], [0])])


Formula = Callable[[Mapping[str, float]], float]
WEIGHT = math.expm1(0.5)  # of M3ID at the first token


def contrast(alpha: float, other: str) -> Formula:
    return lambda margins: (1 + alpha) * margins["clean"] - alpha * margins[other]


CASES: dict[str, tuple[Any, Formula]] = {
    "vcd_sequential": (VCD(alpha=3.0, noise_step=999, branch="sequential"), contrast(3.0, "second_picture")),
    "vcd_paired": (VCD(alpha=3.0, noise_step=999, branch="paired"), contrast(3.0, "second_picture")),
    "vcd_uncut": (VCD(alpha=3.0, beta=1.0, noise_step=999), contrast(3.0, "second_picture")),
    "vcd_without_contrast": (VCD(alpha=0.0), lambda margins: margins["clean"]),
    "text_only": (TextOnly(alpha=2.0), contrast(2.0, "no_picture")),
    "self_contrast": (SelfContrast(alpha=2.0), contrast(2.0, "same_picture")),
    "prior": (PriorCorrection(weight=0.7), lambda margins: margins["clean"] - 0.7 * margins["prior"]),
    "priors": (
        PriorCorrection(weight=0.7, prior="neutral", pictures=2),
        lambda margins: margins["clean"] - 0.7 * (margins["prior_1"] + margins["prior_2"]) / 2,
    ),
    "icd": (InstructionContrast(disturbance="consider the dog"), contrast(1.0, "disturbed")),
    "m3id": (M3ID(forgetting=0.5, threshold=1.0), contrast(WEIGHT, "no_picture")),
    "pai": (PAI(gamma=3.0, first_layer=0), contrast(2.0, "no_picture")),
    "sampled": (Sampled(VCD(alpha=3.0)), contrast(3.0, "second_picture")),
    "shifted": (Shifted(TextOnly(alpha=2.0), 0.5), lambda margins: contrast(2.0, "no_picture")(margins) + 0.5),
    "steered": (AttentionSteering(1.0, method=VCD(alpha=3.0)), contrast(3.0, "second_picture")),
}


@pytest.mark.parametrize("tokens", [1, 4])
@pytest.mark.parametrize("name", CASES)
def test_a_margin_is_the_formula_of_its_branches_margins(
    vlm: VLM, prompts: list[Prompt], name: str, tokens: int
) -> None:
    method, formula = CASES[name]
    assert [len(ids) for ids in vlm.answer_ids] == [1, 1]  # several spellings are summed, and no formula is linear then
    answers = method.generate(vlm, prompts, max_new_tokens=tokens)
    for margin, branches in zip(answers.margins.tolist(), answers.branch_margins, strict=True):
        assert formula(branches) == pytest.approx(margin, abs=1e-4)


def test_margins_at_another_weight_are_those_of_asking(vlm: VLM, prompts: list[Prompt]) -> None:
    method = VCD(alpha=1.0, noise_step=999)
    branches = method.generate(vlm, prompts, max_new_tokens=1).branch_margins
    asked = replace(method, alpha=8.0).generate(vlm, prompts, max_new_tokens=1)
    expected = [contrast(8.0, "second_picture")(one) for one in branches]
    assert asked.margins.tolist() == pytest.approx(expected, abs=1e-4)
    plain = Baseline().generate(vlm, prompts, max_new_tokens=1)
    assert plain.branch_margins is None
    assert [one["clean"] for one in branches] == pytest.approx(plain.margins.tolist(), abs=1e-5)
