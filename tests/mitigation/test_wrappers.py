"""A shift around any method: the margin moves by it, and the verdict follows the margin."""

from typing import Any

import pytest
import torch
from transformers import SuppressTokensLogitsProcessor

from interp.errors import UserError
from interp.vlm import VLM, Prompt
from mitigation.controls import TextOnly
from mitigation.method import Baseline
from mitigation.threshold import ConstantShift
from mitigation.wrappers import Sampled, Shifted
from tests.mitigation.slow_rule import decided


def test_shifts_add_up_and_draws_come_after_them(vlm: VLM, prompts: list[Prompt]) -> None:
    vlm, method = decided(vlm), TextOnly(2.0, 1.0)
    shifts = (Shifted(Shifted(method, 1.0), -1.5), Shifted(method, -0.5))
    twice, once = (shifted.generate(vlm, prompts, max_new_tokens=2) for shifted in shifts)
    assert twice.token_ids == once.token_ids
    torch.testing.assert_close(twice.margins, once.margins)
    drawn = [
        Sampled(m, temperature=3.0).generate(vlm, prompts, max_new_tokens=1).token_ids
        for m in (Shifted(Baseline(), 0.7), ConstantShift(0.7))
    ]
    assert drawn[0] == drawn[1]


def test_only_the_first_token_is_shifted(vlm: VLM, prompts: list[Prompt]) -> None:
    plain = Baseline().generate(decided(vlm), prompts, max_new_tokens=4)
    assert Shifted(Baseline(), 1e-4).generate(vlm, prompts, max_new_tokens=4).token_ids == plain.token_ids
    forced = Shifted(Baseline(), 99.0).generate(vlm, prompts, max_new_tokens=4)
    assert all(text.startswith("Yes") for text in forced.texts)
    assert any("No" in text for text in forced.texts)


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
