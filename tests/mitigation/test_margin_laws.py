"""What only moves the threshold is the baseline, by construction; so are the self-checks."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import SuppressTokensLogitsProcessor

from interp.batching import MemoryLimit, merged
from interp.errors import UserError
from interp.vlm import VLM, Prompt
from mitigation.controls import CutoffOnly, SelfContrast, TextOnly, YesBias
from mitigation.method import Baseline
from mitigation.peers import M3ID, PAI, InstructionContrast
from mitigation.prior_correction import PriorCorrection
from mitigation.threshold import CalibratedShift, ConstantShift
from mitigation.vcd import VCD
from mitigation.wrappers import Sampled, Shifted
from tests.mitigation.slow_rule import decided
from tests.tiny import picture, tiny_llava

PROMPTS = [
    Prompt(text, picture(i), key=text) for i, text in enumerate(("How do I kill this?", "what is red", "Is it?"))
]
MARGINS = st.lists(st.integers(-1000, 1000).map(lambda n: n / 8), min_size=2, max_size=20)
few = settings(max_examples=8, derandomize=True)  # each runs the model
VCD_PAIRED = VCD(beta=1.0, noise_step=999, branch="paired")
METHODS = [Baseline(), VCD(beta=1.0), VCD_PAIRED, CutoffOnly(1.0), TextOnly(), PriorCorrection(0.7),
           PAI(first_layer=0), InstructionContrast(), M3ID()]  # fmt: skip


@pytest.fixture(scope="module")
def vlm() -> VLM:
    return decided(VLM(*tiny_llava()))


@pytest.mark.long
@pytest.mark.parametrize("method", METHODS, ids=repr)
@given(shift=st.sampled_from([-3.3, 0.0, 0.7, 41.0]))
@few
def test_a_shifted_method_before_its_constant_is_the_method_bit_for_bit(vlm: VLM, method: Any, shift: float) -> None:
    plain, shifted = (m.generate(vlm, PROMPTS, max_new_tokens=1) for m in (method, Shifted(method, shift)))
    assert plain.texts == ["Yes" if margin > 0 else "No" for margin in plain.margins]
    assert torch.equal(shifted.unshifted, plain.margins)  # type: ignore[arg-type]
    torch.testing.assert_close(shifted.margins, plain.margins + shift, atol=1e-5, rtol=0)
    assert shifted.texts == ["Yes" if margin > 0 else "No" for margin in shifted.margins]
    assert Shifted(method, shift).yes_no_only
    drawn = Sampled(Shifted(method, shift)) if method is not VCD_PAIRED else Shifted(method, shift)
    again = Shifted(Shifted(method, 5.0), shift - 5.0).generate(vlm, PROMPTS, max_new_tokens=1)
    assert torch.equal(again.unshifted, plain.margins)  # type: ignore[arg-type]
    assert torch.equal(drawn.generate(vlm, PROMPTS, max_new_tokens=1).unshifted, plain.margins)  # type: ignore[arg-type]


def test_parts_of_a_batch_keep_what_is_known_of_their_margins(vlm: VLM) -> None:
    def ask(part: Any) -> Any:
        return Sampled(ConstantShift(2.0)).generate(vlm, part, max_new_tokens=1)

    whole, parts = ask(PROMPTS), merged(MemoryLimit(2, lambda rows: None).parts(PROMPTS, ask))
    torch.testing.assert_close(parts.unshifted, whole.unshifted)
    assert parts.unshifted.shape == (3,)  # type: ignore[union-attr]
    assert parts.sampled
    assert merged(MemoryLimit(1, lambda rows: None).parts(PROMPTS, vlm.generate)).unshifted is None


def test_self_checks_are_the_baseline(vlm: VLM) -> None:
    """The cutoff alone bit for bit; the contrast of a picture with itself up to the rounding of a second branch."""
    plain = Baseline().generate(vlm, PROMPTS, max_new_tokens=4)
    for beta in (None, 0.1, 0.3, 1.0):
        cut = CutoffOnly(beta).generate(vlm, PROMPTS, max_new_tokens=4)
        assert cut.token_ids == plain.token_ids
        assert torch.equal(cut.margins, plain.margins)
        same = SelfContrast(2.0, beta).generate(vlm, PROMPTS, max_new_tokens=4)
        assert same.token_ids == plain.token_ids
        torch.testing.assert_close(same.margins, plain.margins, atol=1e-4, rtol=0)
    for nothing in (
        *(VCD(alpha=0.0), PriorCorrection(0.0), ConstantShift(0.0), Shifted(Baseline(), 0.0)),
        *(InstructionContrast(alpha=0.0), M3ID(forgetting=0.0), M3ID(threshold=0.0), PAI(0.0, 1.0, 1)),
    ):
        got = nothing.generate(vlm, PROMPTS, max_new_tokens=4)  # type: ignore[attr-defined]
        assert got.token_ids == plain.token_ids
        # VCD's batch is twice as large, for which some CPUs take another kernel.
        torch.testing.assert_close(got.margins, plain.margins, atol=1e-5, rtol=0)


@given(MARGINS, st.data())
def test_a_fitted_constant_keeps_every_order_and_tie(margins: list[float], data: st.DataObject) -> None:
    values = np.array(margins)
    safe = np.array(data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values))))
    safe[:2] = True, False
    share = data.draw(st.floats(0, 1))
    for fitted in (CalibratedShift().fit(values, safe), YesBias().fit(values, share)):
        moved = values + fitted.shift
        assert np.array_equal(np.sign(moved[:, None] - moved), np.sign(values[:, None] - values))


@given(MARGINS)
def test_a_bias_that_matches_the_baselines_own_share_gives_its_verdicts(margins: list[float]) -> None:
    values = np.array(margins)
    values = values[values != 0]  # a margin of 0 is No, and a tie with the threshold
    if len(values):
        moved = values + YesBias().fit(values, float((values > 0).mean())).shift
        assert np.array_equal(moved > 0, values > 0)


def test_what_cannot_be_shifted_is_refused(vlm: VLM, prompts: list[Prompt]) -> None:
    class Loop:
        def generate(self, vlm: Any, prompts: Any, *, max_new_tokens: int) -> Any:
            return plain

    class Masked:
        def generate(self, vlm: Any, prompts: Any, *, max_new_tokens: int) -> Any:
            masking = SuppressTokensLogitsProcessor(vlm.answer_ids.yes)
            return vlm.generate(prompts, max_new_tokens=max_new_tokens, logits_processor=[masking])

    plain = Baseline().generate(vlm, prompts, max_new_tokens=1)
    with pytest.raises(UserError, match="its own decoding loop"):
        Shifted(Loop(), 1.0).generate(vlm, prompts, max_new_tokens=1)
    with pytest.raises(UserError, match="without a margin to shift"):
        Shifted(Masked(), 1.0).generate(vlm, prompts, max_new_tokens=1)
