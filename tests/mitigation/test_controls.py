"""The controls: what must change nothing changes nothing, and what moves answers does what it says."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from interp.vlm import VLM, Prompt
from mitigation.contrastive.formulas import contrast
from mitigation.controls import CutoffOnly, SelfContrast, TextOnly, YesBias
from mitigation.method import Baseline
from mitigation.threshold import ConstantShift
from mitigation.vcd import VCD
from mitigation.wrappers import Sampled
from tests.mitigation.conftest import uncached

MARGINS = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20).map(np.array)
SHARES = st.floats(0, 1)


def test_sampled_self_contrast_is_the_cutoff_and_both_are_arms(vlm: VLM, prompts: list[Prompt]) -> None:
    beta = 0.9  # of a random model's nearly even probabilities; a trained one's are cut at 0.1
    plain, cutoff, same, none = (
        Sampled(method, temperature=1.5).generate(vlm, prompts, max_new_tokens=8).token_ids
        for method in (Baseline(), CutoffOnly(beta), SelfContrast(2.0, beta), VCD(alpha=0.0, beta=beta))
    )
    assert cutoff == same == none
    assert cutoff != plain


@pytest.mark.long
def test_text_only_is_the_formula_against_the_text(vlm: VLM, prompts: list[Prompt]) -> None:
    alpha, beta = 2.0, 0.05
    generation = TextOnly(alpha, beta).generate(vlm, prompts, max_new_tokens=8)
    for row, prompt in enumerate(prompts):
        clean, blind = dict(vlm.encode([prompt])), dict(vlm.encode([Prompt(prompt.text)]))
        expected, _ = uncached(vlm.model, clean, blind, alpha=alpha, beta=beta)
        assert generation.token_ids[row] == expected[: len(generation.token_ids[row])]
        first, second = (vlm.model(**inputs).logits[:, -1].detach() for inputs in (clean, blind))
        margin = vlm.margin(contrast(first, second, alpha=alpha))
        torch.testing.assert_close(generation.margins[row : row + 1], margin, atol=1e-3, rtol=1e-4)
    assert generation.token_ids != Baseline().generate(vlm, prompts, max_new_tokens=8).token_ids


@given(MARGINS, SHARES)
def test_no_constant_comes_nearer_to_the_share(margins: np.ndarray, share: float) -> None:
    shift = YesBias().fit(margins, share).shift
    got = (margins + shift > 0).mean()
    possible = [(margins > threshold).mean() for threshold in [-np.inf, *margins]]
    assert abs(got - share) == pytest.approx(min(abs(p - share) for p in possible), abs=1e-12)


@given(st.lists(st.integers(-8, 8).map(float), min_size=1, max_size=12).map(np.array), SHARES, st.integers(-30, 30))
def test_a_constant_on_every_margin_is_undone(margins: np.ndarray, share: float, constant: int) -> None:
    before, after = (YesBias().fit(m, share).shift for m in (margins, margins + constant))
    assert after == before - constant


@pytest.mark.parametrize(
    ("margins", "share", "shift"),
    [
        ([-3.0, -1.0, 2.0, 5.0], 0.75, 2.0),  # the middle between −3 and −1
        ([-3.0, -1.0], 0.0, 0.0),  # one above the highest
        ([-3.0, -1.0], 1.0, 4.0),
        ([1.0, 2.0], 0.25, -3.0),  # 0 and 0.5 are as near: the lower
        ([1.0, 1.0, 4.0], 0.6, -2.5),  # equal margins move together: 1/3 is nearer than 1
    ],
)
def test_worked_examples(margins: list[float], share: float, shift: float) -> None:
    assert YesBias().fit(np.array(margins), share) == ConstantShift(shift)
