"""Steps that a second branch is left out of, and that nobody could tell from the answers."""

from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from interp.vlm import VLM, Prompt
from mitigation.contrastive.corruption import diffuse_images
from mitigation.contrastive.processors import RuleLogitsProcessor, SecondBranch, contrast
from mitigation.vcd import VCD
from tests.mitigation.conftest import contrasting, generate
from tests.mitigation.family_laws import SHARP, TEXTS
from tests.tiny import picture, tiny_llava

ROWS = 8
Forwards = list[tuple[int, int, bool]]


@pytest.fixture(scope="module")
def sharp() -> VLM:
    vlm = VLM(*tiny_llava(), name="tiny")
    vlm.model.lm_head.weight.data *= SHARP
    return vlm


@pytest.fixture(scope="module")
def batch(sharp: VLM) -> tuple[Any, Any]:
    """Eight prompts of three lengths, and their noised twin."""
    prompts = [Prompt(TEXTS[i % 3], picture(i), key=f"case-{i}") for i in range(ROWS)]
    inputs = sharp.encode(prompts)
    return inputs, diffuse_images(inputs, [p.key for p in prompts], step=999, seed=0)


@pytest.fixture
def forwards(monkeypatch: pytest.MonkeyPatch) -> Forwards:
    """Rows, tokens and whether there was a picture, of every forward of a second branch."""
    seen: Forwards = []
    forward = SecondBranch._forward

    def counted(self: SecondBranch, module: Any, positions: Tensor, **inputs: Any) -> Tensor:
        seen.append((*inputs["input_ids"].shape, "pixel_values" in inputs))
        return forward(self, module, positions, **inputs)

    monkeypatch.setattr(SecondBranch, "_forward", counted)
    return seen


def skipping(vlm: VLM, noised: Any, *, alpha: float, beta: float, ends: tuple[int, ...] = ()) -> RuleLogitsProcessor:
    def rule(clean: Tensor, others: Tensor, step: int) -> Tensor:
        return contrast(clean, others[0], alpha=alpha)

    return RuleLogitsProcessor(vlm.model, noised["input_ids"], [noised], rule, beta=beta, skips=True, ends=ends)


@pytest.mark.long
@settings(max_examples=6, derandomize=True, phases=[Phase.generate])
@given(
    alpha=st.floats(0.5, 4),
    beta=st.sampled_from([0.9, 0.8, 0.5, 0.05]),
    sample=st.booleans(),
    end=st.one_of(st.none(), st.integers(5, 60)),
    rows=st.sampled_from([[0], [3], [1, 4], [*range(ROWS)]]),
)
def test_every_chosen_token_is_that_of_running_every_step(
    sharp: VLM, batch: Any, alpha: float, beta: float, sample: bool, end: int | None, rows: list[int]
) -> None:
    inputs, noised = (select(kind, rows) for kind in batch)
    ends = () if end is None else (end,)
    whole = contrasting(sharp, noised, alpha=alpha, beta=beta)
    some = skipping(sharp, noised, alpha=alpha, beta=beta, ends=ends)
    outputs = []
    for processor in (whole, some, some):  # twice: a second call starts clean
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            outputs.append(generate(sharp, inputs, processor, do_sample=sample, eos_token_id=end))
    for output in outputs[1:]:
        assert torch.equal(output.sequences, outputs[0].sequences)
    assert torch.equal(some.first_scores, whole.first_scores)


@pytest.mark.parametrize("beta", [None, 0.5])
def test_two_branches_leave_out_what_cannot_matter_where_looking_is_free(
    sharp: VLM, forwards: Forwards, beta: float | None
) -> None:
    prompts = [Prompt(TEXTS[0], picture(5), key="case-5")]
    method = VCD(alpha=2.0, beta=beta, noise_step=999, branch="sequential")
    found = method.generate(sharp, prompts, max_new_tokens=8)
    run = len(forwards)
    noised = diffuse_images(sharp.encode(prompts), ["case-5"], step=999, seed=0)
    eager = contrasting(sharp, noised, alpha=2.0, beta=beta)
    whole = sharp.generate(prompts, max_new_tokens=8, logits_processor=[eager])
    assert found.token_ids == whole.token_ids
    torch.testing.assert_close(found.margins, whole.margins, atol=1e-3, rtol=1e-5)
    assert found.margins.isfinite().all()
    every = len(forwards) - run
    assert every == len(whole.token_ids[0])
    assert run < every if beta else run == every
    if beta:
        assert any(tokens > 1 for _, tokens, pictured in forwards[:run] if not pictured)  # what was missed, at once


def test_the_first_step_is_never_left_out(sharp: VLM, batch: Any, forwards: Forwards) -> None:
    inputs, noised = batch
    output = generate(sharp, inputs, skipping(sharp, noised, alpha=3.0, beta=1.0))
    assert forwards == [(ROWS, inputs["input_ids"].shape[1], True)]
    assert torch.equal(output.sequences, generate(sharp, inputs).sequences)


def select(inputs: Any, rows: list[int]) -> dict[str, Tensor]:
    return {name: value[rows] for name, value in dict(inputs).items()}
