"""VISTA against a slow reference in float64; each part alone; batches; what it refuses."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from interp.errors import UserError
from interp.vlm import VLM, Prompt
from mitigation.peers.vista import VISTA
from tests.families import FAMILIES, every_family
from tests.mitigation.family_laws import answers_as_one_by_one
from tests.mitigation.slow_rule import slow_rule
from tests.tiny import tiny_llava

TOKENS = 4


@torch.no_grad()
def slow(prompt: Prompt, method: VISTA) -> tuple[list[int], float]:
    """Greedy tokens and margin of one prompt: whole forwards in float64, steered by plain hooks."""
    vlm = VLM(*tiny_llava(), name="slow")
    inputs = [dict(vlm.encode([one])) for one in (prompt, replace(prompt, image=None))]
    vlm.model.double()
    inputs[0]["pixel_values"] = inputs[0]["pixel_values"].double()
    text = vlm.model.model.language_model
    states: list[list[Tensor]] = []  # each forward's last column, after each layer
    for which in inputs:
        states.append([])
        hooks = [
            layer.register_forward_hook(lambda m, a, output: states[-1].append(output[0, -1])) for layer in text.layers
        ]
        vlm.model(**which, use_cache=False)
        [hook.remove() for hook in hooks]
    for layer, seen, unseen in zip(text.layers, *states, strict=True):

        def steer(module: Any, arguments: Any, output: Tensor, vector: Tensor = seen - unseen) -> Tensor:
            moved = output + method.strength * vector
            return moved / moved.norm(dim=-1, keepdim=True) * output.norm(dim=-1, keepdim=True)

        layer.register_forward_hook(steer)
    early: list[Tensor] = []
    text.layers[-2].register_forward_hook(lambda m, a, output: early.append(output[0, -1]))

    def rule(clean: Tensor, others: list[Tensor], step: int) -> Tensor:
        return 0.7 * clean + 0.3 * vlm.model.lm_head(early[-1]) if method.gamma else clean

    return slow_rule(vlm, inputs[0], [], rule, beta=None, tokens=TOKENS)


@pytest.mark.parametrize(
    "method",
    [VISTA(window=1), VISTA(0.8, window=1), VISTA(2.0, gamma=0.0), VISTA(0.0, window=1)],
    ids=repr,
)
def test_against_whole_forwards(vlm: VLM, prompts: list[Prompt], method: VISTA) -> None:
    got = method.generate(vlm, prompts, max_new_tokens=TOKENS)
    assert (got.margins - vlm.score(prompts)).abs().max() > 0.01
    for row, prompt in enumerate(prompts):  # one by one, so that it holds for every batch
        ids, margin = slow(prompt, method)
        assert got.token_ids[row] == ids[: len(got.token_ids[row])]
        assert float(got.margins[row]) == pytest.approx(margin, abs=1e-3)


@pytest.mark.parametrize("name", every_family(but={"instructblip", "paligemma", "paligemma2"}))
def test_batches_answer_as_one_by_one(name: str) -> None:
    answers_as_one_by_one(name, VISTA(window=1))


def test_what_cannot_be_asked_is_refused(vlm: VLM, prompts: list[Prompt]) -> None:
    with pytest.raises(UserError, match="window=5; tiny has 1 layers before the last"):
        VISTA().generate(vlm, prompts, max_new_tokens=1)
    with pytest.raises(UserError, match="no image in prompt 'blind'"):
        VISTA().generate(vlm, [Prompt("what is red", key="blind")], max_new_tokens=1)
    other = VLM(*FAMILIES["instructblip"](), name="instructblip")
    with pytest.raises(UserError, match="instructblip cannot answer without an image"):
        VISTA(window=1).generate(other, prompts, max_new_tokens=1)
    assert VISTA(0.0, window=1).generate(other, prompts, max_new_tokens=1).margins.isfinite().all()
