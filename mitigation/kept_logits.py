"""Answers with other settings, from the kept logits of a run: the formula of a ``BranchMethod`` scored again.

What is kept of a step: ``mitigation.contrastive.kept_steps``.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from interp.margin import margin_of
from mitigation.branches import BranchLogits, BranchMethod
from mitigation.contrastive.formulas import plausible, uncut_answers

Line = Mapping[str, Any]
"""The logits along one answer, and its tokens: a line of ``KeptSteps.lines``."""


class Replayed(NamedTuple):
    """An answer with other settings: its margin, and its tokens; None where they cannot be known."""

    margin: float
    tokens: tuple[int, ...] | None


def replayed(method: BranchMethod, answers: Sequence[Line]) -> Replayed:
    """What ``method`` answers, by the logits along ``answers``: those of one prompt and of one set of branches.

    The margin is exact. The tokens are None from where they leave all ``answers``, or where a token that was not kept
    may pass the cutoff.
    """
    steps: dict[tuple[int, ...], tuple[Line, Line]] = {}
    for one in sorted(answers, key=lambda one: sum(len(step["ids"]) for step in one["steps"][:1])):
        # With a lower cutoff, more was kept.
        steps |= {tuple(one["tokens"][:at]): (one, step) for at, step in enumerate(one["steps"])}
    complete = {tuple(one["tokens"]) for one in answers}
    taken: tuple[int, ...] = ()
    margin, sure = math.nan, True
    while taken not in complete and sure and taken in steps:
        one, step = steps[taken]
        logits, ids = _restored(one, step)
        ruled = method.scores(logits, len(taken))
        likely = plausible(logits.clean, beta=method.beta)
        if step["below"] is not None:
            floor = -math.inf if method.beta is None else math.log(method.beta) + float(logits.clean.max())
            sure = step["below"] < floor
        likely[:, len(ids) :] = False
        cut = ruled.masked_fill(~likely, -torch.inf)
        if not taken:
            margin = float(margin_of(*(ruled[:, list(some)] for some in logits.answers)))
            if method.uncut:
                cut = uncut_answers(cut, ruled, [at for some in logits.answers for at in some])
        taken = (*taken, ids[int(cut.argmax())])
    return Replayed(margin, taken if sure and taken in complete else None)


def _restored(one: Line, step: Line) -> tuple[BranchLogits, list[int]]:
    """A step's logits [1 token], and the ids of the tokens.

    Behind them are columns that stand for all other tokens: with their logsumexp, none of them above the most likely
    token, so that probabilities and the most likely token are those of the whole vocabulary.
    """
    ids: list[int] = step["ids"]
    kept = torch.tensor([_read(row) for row in step["logits"]])
    rest = torch.tensor(_read(step["rest"]))
    over = float(rest[0] - kept[0].max())
    columns = max(1, math.ceil(math.exp(over))) if math.isfinite(over) else 1
    branches = torch.cat([kept, (rest - math.log(columns))[:, None].expand(-1, columns)], dim=1)[:, None]
    places = {token: at for at, token in enumerate(ids)}
    yes, no = ([places[token] for token in some if token in places] for some in one["answers"])
    return BranchLogits(branches[0], branches[1:], (yes, no), torch.tensor([[one["after_image"]]])), ids


def _read(values: Sequence[float | None]) -> list[float]:
    return [-math.inf if value is None else value for value in values]
