"""The peers' rules against slow loops at their published settings; weights of 0; what does nothing at a verdict."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from interp.vlm import VLM, Prompt
from mitigation.attention_edit import steer_attention
from mitigation.branches import BranchLogits
from mitigation.peers import M3ID, PAI, InstructionContrast
from tests.mitigation.slow_rule import held, slow_rule

TOKENS = 3


def blind(vlm: VLM, prompt: Prompt) -> Any:
    return vlm.encode([replace(prompt, image=None)])


def test_instruction_contrast(vlm: VLM, prompts: list[Prompt]) -> None:
    method = InstructionContrast(disturbance="consider the dog")

    def slow(prompt: Prompt) -> Any:
        other = vlm.encode([replace(prompt, system="consider the dog")])
        rule = lambda clean, others, step: 2 * clean - others[0]  # noqa: E731
        return slow_rule(vlm, vlm.encode([prompt]), [other], rule, beta=0.1, tokens=TOKENS)

    got = method.generate(vlm, prompts, max_new_tokens=TOKENS)
    held(got, prompts, slow)
    assert (got.margins - vlm.score(prompts)).abs().max() > 0.01


def test_m3id(vlm: VLM, prompts: list[Prompt]) -> None:
    method = M3ID(forgetting=0.3, threshold=0.5)

    def slow(prompt: Prompt) -> Any:
        def rule(clean: Tensor, others: list[Tensor], step: int) -> Tensor:
            if clean.softmax(0).max() >= 0.5:
                return clean.log_softmax(0)
            gamma = torch.tensor(-0.3 * (step + 1), dtype=torch.float64).exp()
            seen, unseen = clean.log_softmax(0), others[0].log_softmax(0)
            return seen + (1 - gamma) / gamma * (seen - unseen)

        return slow_rule(vlm, vlm.encode([prompt]), [blind(vlm, prompt)], rule, beta=None, tokens=TOKENS)

    held(method.generate(vlm, prompts, max_new_tokens=TOKENS), prompts, slow)


def test_the_gate_is_a_rows_own() -> None:
    clean = torch.tensor([[5.0, 0.0, 0.0], [0.1, 0.0, 0.0]])
    logits = BranchLogits(clean, clean.flip(1)[None], ([], []))
    scores = M3ID(forgetting=1.0, threshold=0.5).scores(logits, 0)
    assert torch.equal(scores[0], clean[0].log_softmax(-1))
    assert (scores[1] - clean[1].log_softmax(-1)).abs().max() > 0.1


def test_pai(vlm: VLM, prompts: list[Prompt]) -> None:
    method = PAI(alpha=0.5, gamma=1.8, first_layer=1, beta=0.05)
    got = method.generate(vlm, prompts, max_new_tokens=TOKENS)
    with steer_attention(vlm, 0.5, layers=[1], relative=True):
        steered = vlm.score(prompts)
    text = torch.cat([vlm.score([p], encoded=blind(vlm, p)) for p in prompts])
    torch.testing.assert_close(got.margins, 1.8 * steered - 0.8 * text, atol=1e-4, rtol=1e-4)
    unsteered = PAI(alpha=0.0, gamma=1.8, first_layer=1, beta=0.05)

    def slow(prompt: Prompt) -> Any:
        rule = lambda clean, others, step: 1.8 * clean.log_softmax(0) - 0.8 * others[0].log_softmax(0)  # noqa: E731
        return slow_rule(vlm, vlm.encode([prompt]), [blind(vlm, prompt)], rule, beta=0.05, tokens=TOKENS)

    held(unsteered.generate(vlm, prompts, max_new_tokens=TOKENS), prompts, slow)
