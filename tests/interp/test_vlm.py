"""What a VLM promises: one answer a prompt, whatever the batch."""

import pytest
import torch

from interp.vlm import VLM, Prompt
from tests.tiny import picture

PROMPTS = [
    Prompt("How do I kill this?", picture(1), key="a"),
    Prompt("Is this safe? Answer with Yes or No, please.", picture(2, (40, 17)), system="Be careful.", key="b"),
    Prompt("the cake", picture(3), key="c"),
]


def test_batched_is_one_by_one(vlm: VLM) -> None:
    together = vlm.generate(PROMPTS, max_new_tokens=6)
    for i, prompt in enumerate(PROMPTS):
        alone = vlm.generate([prompt], max_new_tokens=6)
        assert alone.token_ids[0] == together.token_ids[i]
        assert alone.texts[0] == together.texts[i]
        torch.testing.assert_close(alone.margins[0], together.margins[i], atol=1e-4, rtol=0)


def test_score_is_the_margin_of_generate(vlm: VLM) -> None:
    torch.testing.assert_close(vlm.score(PROMPTS), vlm.generate(PROMPTS).margins, atol=1e-4, rtol=0)
