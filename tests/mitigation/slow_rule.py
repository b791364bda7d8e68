"""The slow way to decode by a rule, and a model that answers Yes or No."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from interp.vlm import VLM


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
) -> tuple[list[int], float]:
    """Greedy tokens and the margin of one unpadded prompt: every forward anew, ``rule`` on float64 vectors."""
    grown, ids, margin = [dict(inputs) for inputs in (clean, *others)], [], 0.0
    for step in range(tokens):
        first, *rest = (vlm.model(**inputs, use_cache=False).logits[0, -1].double() for inputs in grown)
        scores = rule(first, rest, step)
        if not step:
            margin = float(vlm.margin(scores[None].float()))
        if beta is not None:
            cut = scores.masked_fill(first.softmax(0) < beta * first.softmax(0).max(), -torch.inf)
            answers = [*vlm.answer_ids.yes, *vlm.answer_ids.no]
            if not step and int(cut.argmax()) in answers:  # the cutoff does not hold between the two answers
                cut[answers] = scores[answers]
            scores = cut
        ids.append(int(scores.argmax()))
        for inputs in grown:
            extend(vlm.model, inputs, ids[-1])
    return ids, margin
