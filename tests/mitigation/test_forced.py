"""Log-probabilities of forced beginnings: equal to plain forwards, contrasted for a contrasted method."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from interp.prefill_cache import PrefillCache
from interp.vlm import VLM, Prompt
from mitigation.forced import log_probabilities, reads_trees
from mitigation.method import Baseline
from mitigation.prompting import SafetyPrompt
from mitigation.vcd import VCD
from tests.families import every_family
from tests.mitigation.family_laws import SIZES, TEXTS, family
from tests.tiny import picture

OPENINGS = [(5, 9, 7), (5, 9, 8), (5,), (11,), (6, 12)]
FORCED = {"llava_mistral", "paligemma2", "gemma3", "instructblip", "idefics", "mllama"}  # windows, crossing, nested
PROMPTS = [Prompt(text, picture(i, size), key=str(i)) for i, (text, size) in enumerate(zip(TEXTS, SIZES, strict=True))]


@torch.no_grad()
def by_plain_forwards(vlm: VLM, prompts: list[Prompt], openings: Sequence[Sequence[int]] = OPENINGS) -> Tensor:
    """log P of each opening, a forward for each of its tokens and each prompt without padding."""
    total = torch.zeros(len(prompts), len(openings), dtype=torch.float64)
    for row, prompt in enumerate(prompts):
        for column, opening in enumerate(openings):
            for length, token in enumerate(opening):
                batch = vlm.encode([replace(prompt, answer_prefix=(*prompt.answer_prefix, *opening[:length]))])
                logits = vlm.model(**batch, use_cache=False).logits[0, -1].double()
                total[row, column] += logits.log_softmax(-1)[token]
    return total


@pytest.mark.parametrize("name", every_family())
def test_log_probabilities_equal_plain_forwards_in_a_ragged_batch(name: str) -> None:
    vlm = family(name)
    found = log_probabilities(Baseline(), vlm, PROMPTS, OPENINGS)
    torch.testing.assert_close(found, by_plain_forwards(vlm, PROMPTS).float(), atol=2e-4, rtol=1e-5)


@pytest.mark.parametrize("name", ["llava", "qwen2_5_vl", "gemma3"])  # a tree, a tree with M-RoPE, forced tokens
def test_after_ragged_thoughts_the_openings_are_those_of_the_answer(name: str) -> None:
    vlm = family(name)
    thoughts = [tuple(range(5, 5 + 3 * number)) for number in range(len(PROMPTS))]
    prompts = [replace(prompt, answer_prefix=thought) for prompt, thought in zip(PROMPTS, thoughts, strict=True)]
    exact = by_plain_forwards(vlm, prompts).float()
    torch.testing.assert_close(log_probabilities(Baseline(), vlm, prompts, OPENINGS), exact, atol=1e-5, rtol=1e-6)
    assert not torch.allclose(exact[1:], by_plain_forwards(vlm, PROMPTS).float()[1:], atol=1e-2)


def test_a_shared_prefill_gives_the_same_bits_and_is_read_once(vlm: VLM) -> None:
    prompts = PROMPTS[:1] * 2
    method = VCD(branch="sequential")
    alone, cache = log_probabilities(method, vlm, prompts, OPENINGS), PrefillCache()
    with cache.used_by(vlm):
        shared = log_probabilities(method, vlm, prompts, OPENINGS)
    assert torch.equal(alone, shared)
    assert (cache.computed, cache.reused) == (4, 8)  # two branches, and three stems: none, (5, 9) and (6)


@pytest.mark.parametrize("name", every_family())
def test_a_tree_of_tokens_is_read_like_forced_tokens(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    vlm = family(name)
    batch = vlm.encode(PROMPTS)
    assert reads_trees(vlm, batch) == (name not in FORCED)
    monkeypatch.setattr("mitigation.forced.AT_ONCE", 2)  # several forwards, each after the one before
    tree = log_probabilities(Baseline(), vlm, PROMPTS, OPENINGS)
    monkeypatch.setattr("mitigation.forced.reads_trees", lambda vlm, batch: False)
    forced = log_probabilities(Baseline(), vlm, PROMPTS, OPENINGS)
    torch.testing.assert_close(tree, forced, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("branch", ["sequential", "paired"])
def test_a_contrast_is_asked_for_its_contrasted_scores_before_the_cutoff(vlm: VLM, branch: str) -> None:
    plain = log_probabilities(Baseline(), vlm, PROMPTS, OPENINGS)
    none = log_probabilities(VCD(alpha=0.0, branch=branch), vlm, PROMPTS, OPENINGS)
    torch.testing.assert_close(none, plain, atol=1e-4, rtol=1e-5)
    strict, free = (
        log_probabilities(VCD(alpha=2.0, beta=beta, branch=branch), vlm, PROMPTS, OPENINGS) for beta in (1.0, None)
    )
    assert strict.isfinite().all()
    torch.testing.assert_close(strict, free, atol=1e-4, rtol=1e-5)
    assert not torch.allclose(free, plain, atol=1e-2)


def test_a_prompted_arm_is_asked_with_its_prompt(vlm: VLM) -> None:
    method = SafetyPrompt("Be careful.")
    found = log_probabilities(method, vlm, PROMPTS, OPENINGS)
    expected = by_plain_forwards(vlm, [replace(prompt, system="Be careful.") for prompt in PROMPTS]).float()
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=1e-5)
