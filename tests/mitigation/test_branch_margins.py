"""Margins by branch: a verdict's margin at any weight is arithmetic of them."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from interp.vlm import VLM, Prompt
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

Formula = Callable[[Mapping[str, float]], float]
WEIGHT = math.expm1(0.5)  # of M3ID at the first token


def contrast(alpha: float, other: str) -> Formula:
    return lambda margins: (1 + alpha) * margins["clean"] - alpha * margins[other]


CASES: dict[str, tuple[Any, Formula]] = {
    "vcd_sequential": (VCD(alpha=3.0, noise_step=999, branch="sequential"), contrast(3.0, "second_picture")),
    "vcd_paired": (VCD(alpha=3.0, noise_step=999, branch="paired"), contrast(3.0, "second_picture")),
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
    assert answers.branch_margins is not None
    for margin, branches in zip(answers.margins.tolist(), answers.branch_margins, strict=True):
        assert formula(branches) == pytest.approx(margin, abs=1e-4)


def test_margins_at_another_weight_are_those_of_asking(vlm: VLM, prompts: list[Prompt]) -> None:
    method = VCD(alpha=1.0, noise_step=999)
    branches = method.generate(vlm, prompts, max_new_tokens=1).branch_margins
    asked = replace(method, alpha=8.0).generate(vlm, prompts, max_new_tokens=1)
    assert branches is not None
    expected = [contrast(8.0, "second_picture")(one) for one in branches]
    assert asked.margins.tolist() == pytest.approx(expected, abs=1e-4)
    plain = Baseline().generate(vlm, prompts, max_new_tokens=1)
    assert plain.branch_margins is None
    assert [one["clean"] for one in branches] == pytest.approx(plain.margins.tolist(), abs=1e-5)
