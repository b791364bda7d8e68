"""The laws of contrastive decoding (arXiv 2311.16922) on every family that takes pictures."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from interp.errors import UserError
from interp.vlm import Prompt
from mitigation.contrastive.corruption import diffuse_images
from mitigation.contrastive.processors import VisualContrastiveLogitsProcessor, plausible
from mitigation.vcd import VCD
from tests.families import every_family
from tests.mitigation import test_paired
from tests.mitigation.conftest import answer
from tests.mitigation.family_laws import TOKENS, Case, case, cutoff, family, plain
from tests.mitigation.slow_rule import slow_vcd

ALPHAS = st.floats(0.25, 4.0)
BETAS = st.sampled_from([0.3, 0.1, 0.01])
few = settings(max_examples=2, deadline=None, derandomize=True, phases=[Phase.generate])  # each runs the model
NO_TEXT_ALONE = {"instructblip", "paligemma", "paligemma2"}


def contrasting(given: Case, **options: Any) -> VisualContrastiveLogitsProcessor:
    return VisualContrastiveLogitsProcessor(given.vlm.model, given.noised, **options)


def paired(given: Case, **options: Any) -> Any:
    return test_paired.paired(given.vlm, given.inputs, given.noised, max_new_tokens=TOKENS, **options)


@pytest.mark.parametrize("name", every_family())
def test_no_contrast_and_no_cutoff_is_plain_generate(name: str) -> None:
    whole, without = case(name), plain(name)
    output = whole.generate(contrasting(whole, alpha=0.0, beta=None))
    assert torch.equal(output.sequences, without.sequences)
    assert all(torch.equal(x, y) for x, y in zip(output.scores, without.scores, strict=True))
    assert torch.equal(paired(whole, alpha=0.0, beta=None).sequences, without.sequences)
    assert torch.equal(whole.generate().sequences, without.sequences)  # nothing is left behind in the model


@pytest.mark.parametrize("name", every_family())
@settings(few, max_examples=1)
@given(alpha=ALPHAS, beta=BETAS)
def test_identical_pictures_are_the_cutoff_alone(name: str, alpha: float, beta: float) -> None:
    whole = case(name)
    same = replace(whole, noised=whole.inputs)
    output = whole.generate(contrasting(same, alpha=alpha, beta=beta))
    assert torch.equal(output.sequences, plain(name).sequences)  # greedy: the argmax survives the cutoff
    for scores, clean in zip(output.scores, plain(name).scores, strict=True):
        cut = clean.masked_fill(~plausible(clean, beta=beta), -torch.inf)
        torch.testing.assert_close(scores, cut, atol=1e-3, rtol=1e-4)
    assert torch.equal(paired(same, alpha=alpha, beta=beta).sequences, output.sequences)


@pytest.mark.contract
@pytest.mark.parametrize("name", every_family())
@few
@given(alpha=ALPHAS, share=st.sampled_from([0.3, 0.5, 0.7]))
def test_paired_chooses_what_two_branches_choose(name: str, alpha: float, share: float) -> None:
    whole, beta = case(name), cutoff(name, share)
    eager = contrasting(whole, alpha=alpha, beta=beta)
    expected = whole.generate(eager)
    both = paired(whole, alpha=alpha, beta=beta)
    assert torch.equal(both.sequences, expected.sequences)
    torch.testing.assert_close(both.first_scores, eager.first_scores, atol=1e-3, rtol=1e-4)
    kept = [(scores.isfinite().sum(dim=1) > 1).tolist() for scores in expected.scores]
    needed = sum(map(sum, kept))
    assert 0 < needed < len(whole.prompts) * TOKENS, "the law wants steps of both kinds"


@pytest.mark.contract
@pytest.mark.parametrize("name", every_family())
def test_a_padded_cached_batch_equals_one_prompt_at_a_time_without_cache(name: str) -> None:
    whole = case(name)
    output = whole.generate(contrasting(whole, alpha=2.0, beta=0.01))
    for row, prompt in enumerate(whole.prompts):
        inputs = dict(whole.vlm.encode([prompt]))
        noised = diffuse_images(inputs, [prompt.key], step=999, seed=0, model=whole.vlm.model)
        ids, steps = slow_vcd(whole.vlm, inputs, noised, alpha=2.0, beta=0.01, tokens=TOKENS)
        assert answer(output, whole.inputs)[row].tolist() == ids
        scores = torch.stack([scores[row] for scores in output.scores])
        torch.testing.assert_close(scores, steps.float(), atol=1e-2, rtol=1e-3)


@pytest.mark.parametrize("name", every_family())
def test_a_second_call_starts_clean(name: str) -> None:
    whole = case(name)
    processor = contrasting(whole, alpha=2.0, beta=0.1)
    fresh = whole.generate(processor)
    first = processor.first_scores
    short = whole.generate(processor, max_new_tokens=2)
    again = whole.generate(processor)
    assert torch.equal(short.sequences, fresh.sequences[:, : short.sequences.shape[1]])
    assert torch.equal(again.sequences, fresh.sequences)
    assert all(torch.equal(x, y) for x, y in zip(again.scores, fresh.scores, strict=True))
    assert torch.equal(processor.first_scores, first)


@pytest.mark.parametrize("name", every_family())
def test_positions_of_both_branches_are_the_same(name: str) -> None:
    # Rotary attention does not see an offset common to a row, so that scores alone would not tell.
    whole, seen = case(name), []
    decoder = whole.vlm.module_map.module(whole.vlm.model, "language_model")
    shift = 1 if name.startswith("paligemma") else 0  # whose generate() counts from 1
    hook = decoder.register_forward_pre_hook(lambda _, __, has: seen.append(has["position_ids"]), with_kwargs=True)
    try:
        whole.generate(contrasting(whole))
    finally:
        hook.remove()
    assert len(seen) == 2 * TOKENS
    assert all(torch.equal(clean, own + shift) for clean, own in zip(seen[::2], seen[1::2], strict=True))


@pytest.mark.parametrize("name", every_family(but=NO_TEXT_ALONE))
def test_a_text_may_be_contrasted_with_no_picture_at_all(name: str) -> None:
    whole = case(name)
    blind = dict(whole.vlm.encode([Prompt(p.text) for p in whole.prompts]))
    processor = VisualContrastiveLogitsProcessor(
        whole.vlm.model, blind, alpha=1.0, beta=0.01, prompt_ids=whole.inputs["input_ids"]
    )
    output = whole.generate(processor)
    one_batch = partial(paired, replace(whole, noised=blind), alpha=1.0, beta=0.01)
    if name == "mllama":  # leaves its cross-attention layers out for a batch without pictures, and cannot for half
        with pytest.raises(UserError, match="prompts with and without cannot be one batch"):
            one_batch()
    else:
        assert torch.equal(one_batch().sequences, output.sequences)
    for row, prompt in enumerate(whole.prompts[:2]):
        pair = dict(whole.vlm.encode([prompt])), dict(whole.vlm.encode([Prompt(prompt.text)]))
        ids, _ = slow_vcd(whole.vlm, *pair, alpha=1.0, beta=0.01, tokens=TOKENS)
        assert answer(output, whole.inputs)[row].tolist() == ids


@pytest.mark.contract
@pytest.mark.parametrize("name", every_family())
def test_the_method_gives_one_answer_however_it_is_computed(name: str) -> None:
    vlm, prompts = family(name), case(name).prompts
    answers = []
    for branch in ("sequential", "paired"):
        method = VCD(alpha=2.0, beta=0.1, noise_step=999, branch=branch)
        whole = method.generate(vlm, prompts, max_new_tokens=TOKENS)
        if branch != "paired":  # its rows are the sequential ones, as is seen below
            single = method.generate(vlm, prompts[1:2], max_new_tokens=TOKENS)
            assert single.token_ids == whole.token_ids[1:2]
            torch.testing.assert_close(single.margins, whole.margins[1:2], atol=1e-2, rtol=1e-3, equal_nan=True)
        answers.append(whole)
    sequential, both = answers
    assert both.token_ids == sequential.token_ids
    assert both.finished == sequential.finished
    torch.testing.assert_close(both.margins, sequential.margins, atol=1e-2, rtol=1e-3)
