"""Answers that reason before they say Yes or No: where the verdict is, and the margin there.

A method that lets the model reason first hands its answers to ``at_verdicts``::

    answers = vlm.generate(prompts, max_new_tokens=max_new_tokens)
    return at_verdicts(vlm, prompts, answers, Baseline())
"""

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, cast

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import BatchFeature

from interp.families import PER_TOKEN
from interp.generation import Generation
from interp.vlm import VLM, Prompt
from mitigation.method import Method
from mitigation.wrappers import WrappedVLM, unwrapped, with_model

_CLOSING = re.compile(r"[\W_]*(?:yes|no)[\W_]*", re.IGNORECASE)
_OPENING = re.compile(r"[\W_]*(?:yes|no)(?![^\W_])", re.IGNORECASE)


def at_verdicts(vlm: VLM | WrappedVLM, prompts: Sequence[Prompt], answers: Generation, method: Method) -> Generation:
    """``answers`` with the margins that their verdicts were chosen by; NaN for an answer without a verdict.

    Where the verdict is not the first token, ``method``, which gave the answers to ``prompts``, is asked again for one
    token after the answer so far. A constant that it adds to a margin was added to the answer's first token and not to
    a later verdict, so it is left out there.
    """
    plain = unwrapped(vlm)
    places = [verdict_position(plain, ids) for ids in answers.token_ids]
    margins = answers.margins.clone()
    branches = None if answers.branch_margins is None else list(answers.branch_margins)
    unshifted = None if answers.unshifted is None else answers.unshifted.clone()
    later = [row for row, place in enumerate(places) if place]
    if later:
        begun = [answers.token_ids[row][: places[row]] for row in later]
        continued = with_model(cast(VLM, vlm), Continued(plain, begun))
        again = method.generate(continued, [prompts[row] for row in later], max_new_tokens=1)
        margins[later] = again.margins if again.unshifted is None else again.unshifted
        if unshifted is not None:
            unshifted[later] = margins[later]
        if branches is not None and again.branch_margins is not None:
            for row, by_branch in zip(later, again.branch_margins, strict=True):
                branches[row] = by_branch
    none = [row for row, place in enumerate(places) if place is None]
    for found in (margins, unshifted):
        if found is not None:
            found[none] = torch.nan
    if branches is not None:
        for row in none:
            branches[row] = {}
    return replace(answers, margins=margins, unshifted=unshifted, branch_margins=branches)


def verdict_position(vlm: VLM, ids: Sequence[int]) -> int | None:
    """The index in the generated ``ids`` of the token that says Yes or No, or None without a verdict.

    By the evaluation's rule for verdicts: the last such token if no word follows it, else the first token of an answer
    that begins with its verdict.
    """
    answers = {token for spellings in vlm.answer_ids for token in spellings}
    last = next((place for place in reversed(range(len(ids))) if ids[place] in answers), None)
    if last is not None and _CLOSING.fullmatch(_text(vlm, ids[last:])):
        return last
    return 0 if last is not None and ids[0] in answers and _OPENING.match(_text(vlm, ids)) else None


def _text(vlm: VLM, ids: Sequence[int]) -> str:
    return str(vlm.tokenizer.decode(list(ids), skip_special_tokens=True))


class Continued(VLM):
    """A model that continues answers of ``continues``: ``begun`` are each prompt's tokens so far (one list per row).

    Methods work on it unchanged, so margins include their effect.
    """

    begun: Sequence[Sequence[int]]
    continues: VLM

    def __init__(self, vlm: VLM, begun: Sequence[Sequence[int]]) -> None:
        self.__dict__.update(copy.copy(vlm.__dict__))
        self.begun, self.continues = begun, vlm

    def inputs(self, prompts: Sequence[Prompt]) -> BatchFeature:
        """As ``VLM.inputs``, followed by the answers so far."""
        batch = super().inputs(prompts)
        pad = self.tokenizer.pad_token_id
        return BatchFeature(appended(batch, self.begun, pad=pad, side="left", kind=answer_kind(self)))


def appended(
    batch: Mapping[str, Any], tails: Sequence[Sequence[int]], *, pad: int, side: Literal["left", "right"], kind: int = 0
) -> dict[str, Any]:
    """The batch with each row's tokens appended to its prompt, padded again on ``side``.

    ``kind`` is the type of the new tokens if the family has ``token_type_ids``.
    """
    mask = batch["attention_mask"].bool()
    fills = {"input_ids": pad, "attention_mask": 0, "token_type_ids": 0, "mm_token_type_ids": 0}
    added = {"attention_mask": 1, "token_type_ids": kind, "mm_token_type_ids": 0}
    grown = dict(batch)
    for name, fill in fills.items():
        if name not in batch:
            continue
        rows = []
        for row, kept, tail in zip(batch[name], mask, tails, strict=True):
            new = list(tail) if name == "input_ids" else [added[name]] * len(tail)
            rows.append(torch.cat([row[kept], row.new_tensor(new)]))
        grown[name] = _padded(rows, fill, side)
    for name in sorted(PER_TOKEN & batch.keys()):  # new tokens get the cross-attention mask of the prompt's last one
        rows = [
            torch.cat([row[kept], row[-1:].expand(len(tail), *row.shape[1:])])
            for row, kept, tail in zip(batch[name], mask, tails, strict=True)
        ]
        grown[name] = _padded(rows, 0, side)
    return grown


def _padded(rows: list[Tensor], fill: int, side: Literal["left", "right"]) -> Int[Tensor, "row column *_"]:
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=fill, padding_side=side)


def answer_kind(vlm: VLM) -> int:
    """The token type of an answer: 1 for PaliGemma, whose prompt (type 0) has bidirectional attention."""
    return int(vlm.layout.model_type == "paligemma")
