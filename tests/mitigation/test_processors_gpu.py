"""Our own code never makes the host wait for the GPU: what surrounds the model's forwards, step after step."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from interp.errors import UserError
from interp.margin import AnswerIds
from interp.vlm import VLM, Prompt
from mitigation.contrastive.corruption import diffuse_images
from mitigation.contrastive.paired import PairedContrastLogitsProcessor
from mitigation.contrastive.processors import VisualContrastiveLogitsProcessor
from mitigation.processors import CaseSampler, ConstantShiftLogitsProcessor
from tests.tiny import picture

pytestmark = pytest.mark.gpu


@pytest.fixture
def cuda(vlm: VLM) -> VLM:
    vlm.model.to("cuda")
    return vlm


@pytest.fixture
def batch(cuda: VLM) -> tuple[Any, Any]:
    prompts = [
        Prompt(text, picture(i), key=str(i)) for i, text in enumerate(("what is red", "Is it safe to eat this?"))
    ]
    inputs = cuda.encode(prompts)
    return inputs, diffuse_images(inputs, ["0", "1"], step=999, seed=0)


@pytest.fixture
def no_waiting(cuda: VLM) -> Iterator[None]:
    """An error wherever the host waits, save inside the model: transformers' own checks of pictures and masks may."""

    def mode(name: str) -> Any:
        return lambda *_: torch.cuda.set_sync_debug_mode(name)

    handles = [
        cuda.model.register_forward_pre_hook(mode("default")),
        cuda.model.register_forward_hook(mode("error")),
    ]
    torch.cuda.synchronize()
    yield
    torch.cuda.set_sync_debug_mode("default")
    for handle in handles:
        handle.remove()


def grown(ids: Tensor, steps: int) -> list[Tensor]:
    """The tokens of a prompt's first steps, made before anybody watches."""
    return [torch.cat([ids, torch.full((len(ids), step), 5, device="cuda")], dim=1) for step in range(steps)]


def test_two_branches_never_wait(cuda: VLM, batch: Any, no_waiting: None) -> None:
    inputs, noised = batch
    copy = inputs["input_ids"].clone()  # not the very tensor, so that contents are compared
    steps, scores = grown(copy, 4), torch.randn(2, cuda.model.config.text_config.vocab_size, device="cuda")
    processor = VisualContrastiveLogitsProcessor(cuda.model, noised, alpha=1.0, beta=0.1)
    torch.cuda.set_sync_debug_mode("error")
    outputs = [processor(ids, scores) for ids in steps]
    torch.cuda.set_sync_debug_mode("default")
    assert all(output.isfinite().any() for output in outputs)


@pytest.mark.parametrize("sample", [False, True])
def test_a_paired_step_never_waits(cuda: VLM, sample: bool, no_waiting: None) -> None:
    prompts = torch.ones(4, 9, dtype=torch.long, device="cuda")
    steps, scores = grown(prompts, 4), torch.randn(4, 1000, device="cuda")
    processor = PairedContrastLogitsProcessor(cuda.model, prompts.clone(), alpha=1.0, beta=0.1)
    if sample:
        processor.after.append(CaseSampler(["a", "b"], temperature=0.7, seed=0))
    torch.cuda.set_sync_debug_mode("error")
    outputs = [processor(ids, scores) for ids in steps]
    torch.cuda.set_sync_debug_mode("default")
    assert all(torch.equal(*output.chunk(2)) for output in outputs)


def test_a_shift_never_waits(cuda: VLM, no_waiting: None) -> None:
    steps, scores = grown(torch.ones(2, 9, dtype=torch.long, device="cuda"), 3), torch.zeros(2, 50, device="cuda")
    processor = ConstantShiftLogitsProcessor(AnswerIds([7], [8]), shift=4.0)
    torch.cuda.set_sync_debug_mode("error")
    first, *later = [processor(ids, scores) for ids in steps]
    torch.cuda.set_sync_debug_mode("default")
    assert first[0, [7, 8]].tolist() == [2.0, -2.0]
    assert not any(scores.any() for scores in later)


def test_other_prompts_are_found_out_a_step_late(cuda: VLM, batch: Any) -> None:
    inputs, noised = batch
    scores = torch.randn(2, cuda.model.config.text_config.vocab_size, device="cuda")
    processor = VisualContrastiveLogitsProcessor(cuda.model, noised, alpha=1.0, beta=0.1)
    first, second = grown(inputs["input_ids"] + 1, 2)
    torch.cuda._sleep(100_000_000)  # the device is busy, so that the answer cannot be there yet
    processor(first, scores)
    torch.cuda.synchronize()
    with pytest.raises(UserError, match="other prompts"):
        processor(second, scores)


def test_answers_are_those_of_the_cpu(vlm: VLM) -> None:
    prompts = [Prompt("what is red", picture(0), key="0"), Prompt("Is it safe to eat this?", picture(1), key="1")]
    answers = []
    for device in ("cpu", "cuda"):
        vlm.model.to(device)
        inputs = vlm.encode(prompts)
        noised = diffuse_images(inputs, ["0", "1"], step=999, seed=0)
        processor = VisualContrastiveLogitsProcessor(vlm.model, noised, alpha=2.0, beta=0.3)
        answers.append(vlm.generate(prompts, max_new_tokens=8, logits_processor=[processor], encoded=inputs).token_ids)
    assert answers[0] == answers[1]
