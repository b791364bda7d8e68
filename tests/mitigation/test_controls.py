"""The controls and the prompts: what must change nothing changes nothing, and what moves answers does what it says."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interp.vlm import VLM, Prompt
from mitigation.controls import CutoffOnly, SelfContrast, YesBias
from mitigation.method import Baseline
from mitigation.prompting import CONTEXT_PROMPT, SAFETY_SYSTEM_PROMPT, ContextPrompt, SafetyPrompt
from mitigation.threshold import ConstantShift
from mitigation.vcd import VCD
from mitigation.wrappers import Sampled
from tests.tiny import picture

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


@given(MARGINS, SHARES)
def test_no_constant_comes_nearer_to_the_share(margins: np.ndarray, share: float) -> None:
    shift = YesBias().fit(margins, share).shift
    got = (margins + shift > 0).mean()
    possible = [(margins > threshold).mean() for threshold in [-np.inf, *margins]]
    assert abs(got - share) == pytest.approx(min(abs(p - share) for p in possible), abs=1e-12)


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


def test_the_context_prompt_is_a_line_before_the_question() -> None:
    asked = Prompt("what is red", picture(), system="be safe", key="k")
    changed = ContextPrompt().apply(asked)
    assert changed.text == f"{CONTEXT_PROMPT}\nwhat is red"
    assert (changed.image, changed.system, changed.key) == (asked.image, "be safe", "k")
    assert ContextPrompt("please").apply(asked).text == "please\nwhat is red"
    assert asked.text == "what is red"


def test_the_safety_prompt_is_the_system_prompt_alone() -> None:
    asked = Prompt("what is red", picture(), key="k")
    changed = SafetyPrompt().apply(asked)
    assert changed.system == SAFETY_SYSTEM_PROMPT
    assert (changed.text, changed.image, changed.key) == ("what is red", asked.image, "k")
