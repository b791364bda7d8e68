"""The slow way to decode by a rule, and a model that answers Yes or No."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from interp.vlm import VLM, Prompt


def decided(vlm: VLM, *, by: float = 20.0) -> VLM:
    """The model, whose every token is Yes or No by its own margin; with a lower ``by`` only some are."""
    answers = [*vlm.answer_ids.yes, *vlm.answer_ids.no]

    def leaning(module: Any, args: Any, output: Tensor) -> Tensor:
        return output.index_add(-1, torch.tensor(answers), output.new_full((*output.shape[:-1], len(answers)), by))

    vlm.model.get_submodule(vlm.module_map.lm_head).register_forward_hook(leaning)
    return vlm


def extend(model: Any, inputs: dict[str, Any], token: int) -> None:
    """Append a token to the inputs of one prompt."""
    causal = int(model.config.model_type == "paligemma")  # its prompt sees both ways and has type 0
    tails = {"input_ids": token, "attention_mask": 1, "token_type_ids": causal, "mm_token_type_ids": 0}
    for key in tails.keys() & inputs.keys():
        inputs[key] = torch.cat([inputs[key], inputs[key].new_full((1, 1), tails[key])], dim=1)
    for key in {"image_attention_mask", "cross_attention_mask"} & inputs.keys():
        inputs[key] = torch.cat([inputs[key], inputs[key][:, -1:]], dim=1)


@torch.no_grad()
def slow_rule(
    vlm: VLM,
    clean: Any,
    others: Sequence[Any],
    rule: Callable[[Tensor, list[Tensor], int], Tensor],
    *,
    beta: float | None,
    tokens: int,
    spares: bool = True,
) -> tuple[list[int], float, Tensor]:
    """Greedy tokens, the margin and all scores of one unpadded prompt: every forward anew, ``rule`` on float64 vectors.

    ``spares``: the cutoff does not hold between the two answers at the first step.
    """
    grown, ids, margin, steps = [dict(inputs) for inputs in (clean, *others)], [], 0.0, []
    for step in range(tokens):
        first, *rest = (vlm.model(**inputs, use_cache=False).logits[0, -1].double() for inputs in grown)
        scores = rule(first, rest, step)
        if not step:
            margin = float(vlm.margin(scores[None].float()))
        if beta is not None:
            cut = scores.masked_fill(first.softmax(0) < beta * first.softmax(0).max(), -torch.inf)
            answers = [*vlm.answer_ids.yes, *vlm.answer_ids.no]
            if spares and not step and int(cut.argmax()) in answers:
                cut[answers] = scores[answers]
            scores = cut
        steps.append(scores)
        ids.append(int(scores.argmax()))
        for inputs in grown:
            extend(vlm.model, inputs, ids[-1])
    return ids, margin, torch.stack(steps)


def slow_vcd(vlm: VLM, clean: Any, noised: Any, *, alpha: float, beta: float, tokens: int) -> tuple[list[int], Tensor]:
    """Greedy tokens and all scores of one unpadded prompt, contrasted."""

    def rule(first: Tensor, others: list[Tensor], step: int) -> Tensor:
        return (1 + alpha) * first - alpha * others[0]

    ids, _, scores = slow_rule(vlm, clean, [noised], rule, beta=beta, tokens=tokens, spares=False)
    return ids, scores


def held(got: Any, prompts: list[Prompt], slow: Callable[[Prompt], tuple[list[int], float, Tensor]]) -> None:
    """Assert that each prompt of a batch has the tokens and the margin that ``slow`` gives it alone."""
    for row, prompt in enumerate(prompts):
        ids, margin, _ = slow(prompt)
        assert got.token_ids[row] == ids[: len(got.token_ids[row])]
        assert float(got.margins[row]) == pytest.approx(margin, abs=1e-3)
