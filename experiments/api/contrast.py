"""Contrasts of branches from replies: their margins, and whole greedy answers by drafting and verifying.

A margin needs only differences of log-probabilities, in which the constants of a softmax cancel. A method's formula
(``mitigation.branches.BranchMethod.scores``) gets the listed tokens as its vocabulary. Further columns hold the rest of
the probability. For whole answers the clean branch drafts, and the other branches read prompt and draft once. Every
step is checked; at the first step with another best token the answer continues from there. This is speculative decoding
with two ordinary requests a round (compare Yuan et al. 2023, arXiv 2311.08981). Exact where the plausibility cutoff
lies inside the clean list; what is not exact is said to be so.
"""

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from experiments.api.reply import word_of
from mitigation.branches import BranchLogits, BranchMethod

if TYPE_CHECKING:
    from torch import Tensor

    from experiments.api.client import Content
    from experiments.api.engine import Engine

Listed = Mapping[Any, float]  # log-probabilities by token
ABSENT = -1e4  # a log-probability that stands for none
BEYOND = 1e3  # margins that only such a one can give


@dataclass(frozen=True)
class AsItIs(BranchMethod):
    """The plain model, as a method of no further branch: its tokens and margins by their ids."""

    def scores(self, logits: Any, step: int) -> Any:
        """Return those of the model."""
        return logits.clean


@dataclass(frozen=True)
class Margin:
    """A margin that lies between ``low`` and ``high``, and the branches' own (clean first), NaN where not listed."""

    low: float
    high: float
    branches: list[float] = field(default_factory=list)

    @property
    def value(self) -> float:
        """The bound that is nearer to 0, the margin itself where both are one; NaN where 0 lies between them."""
        return self.low if self.low >= 0 or self.low == self.high else self.high if self.high <= 0 else math.nan


def margin_of_lists(method: BranchMethod, lists: Sequence[Listed], yes: Sequence[Any], no: Sequence[Any]) -> Margin:
    """The margin that ``method`` makes of the branches' first tokens; ``lists`` of the clean one first.

    If a branch does not list a token of ``yes`` or ``no``, its probability is at most that of the least likely listed
    token. The margin then lies between bounds.
    """
    from interp.margin import margin_of

    answers = [*yes, *no]
    gaps = [(at, side) for at, one in enumerate(lists) for side in (yes, no) if not set(side) <= set(one)]
    found, own = [], []
    for filled in itertools.product((False, True), repeat=len(gaps)):
        complete = [dict(one) for one in lists]
        for (at, side), at_most in zip(gaps, filled, strict=True):
            value = min(lists[at].values()) if at_most else ABSENT
            complete[at] |= {token: value for token in side if token not in lists[at]}
        columns, logits = _logits(complete, answers)
        ids = [[columns.index(token) for token in side] for side in (yes, no)]
        scores = method.scores(_branch_logits(logits, ids), 0)
        found.append(float(margin_of(scores[:, ids[0]], scores[:, ids[1]])))
        own.append(margin_of(logits[:, ids[0]], logits[:, ids[1]]).tolist())
    low, high = min(found), max(found)
    branches = [values[0] if abs(values[0] - values[-1]) < 1e-6 else math.nan for values in zip(*own, strict=True)]
    return Margin(low if low > -BEYOND else -math.inf, high if high < BEYOND else math.inf, branches)


def margin_of_list(listed: Mapping[str, float]) -> Margin:
    """Return the plain model's margin from the tokens that are listed for its answer's first one.

    It is NaN if neither Yes nor No is listed. If one of them is not, the margin is a bound.
    """
    if not {"yes", "no"} & set(map(word_of, listed)):
        return Margin(math.nan, math.nan)
    return margin_of_lists(AsItIs(), [listed], *words_in([listed]))


def words_in(lists: Sequence[Listed]) -> tuple[list[str], list[str]]:
    """The listed tokens that say Yes and No, of servers that know tokens by their words alone."""
    tokens = sorted({token for one in lists for token in one})
    yes, no = ([token for token in tokens if word_of(token) == word] for word in ("yes", "no"))
    return yes or ["yes"], no or ["no"]


@dataclass
class Answer:
    """A whole answer: its ``tokens``, the margin of its first, and why it is not exact ("" if it is)."""

    tokens: list[int]
    ended: bool
    margin: Margin
    fault: str = ""
    changes: int = 0
    model: str = ""


def decode(
    engine: "Engine", method: BranchMethod, contents: Sequence["Content"], budget: int, spent: Counter[str]
) -> Answer:
    """Return the greedy answer of ``method`` to the clean prompt (the first of ``contents``) and the others.

    Requests: one for a draft and one for each branch and round. There is one round more than changes. Tokens that a
    list lacks are asked for by id.

    Args:
        budget: tokens of the answer, at most.
        spent: counts requests and tokens.

    Raises:
        Failed, NamesNoTokens: as ``Engine.ask``.
    """
    from experiments.api.engine import OtherTokens

    if len(contents) == 1:  # the plain model, whose tokens the server chooses
        return _plain(engine, method, contents[0], budget, spent)
    answer = Answer([], False, Margin(math.nan, math.nan))
    while not answer.ended and len(answer.tokens) < budget:
        out = answer.tokens
        draft, answer.model = engine.ask(spent, contents[0], out, most=budget - len(out))
        if out and draft.before[-len(out) :] != out:
            return replace(answer, fault=OTHER.format(len(out)))
        if not draft.ids:
            return replace(answer, ended=draft.ended)
        if draft.ended:
            engine.ends.add(draft.ids[-1])
        whole = [*out, *draft.ids]
        lists = [engine.follow(spent, contents[0], whole)[len(out) :]]
        # Yes and No are always looked at, at the first step.
        unsure = [
            at
            for at, one in enumerate(lists[0])
            if _plausible(one, method.beta) != [draft.ids[at]] or len(out) + at == 0
        ]
        if unsure:
            read = whole[: len(out) + unsure[-1] + 1]
            lists += [engine.follow(spent, content, read)[len(out) :] for content in contents[1:]]
        known = min([len(lists[0]), *(len(one) for one in lists[1:] if len(one) <= unsure[-1])])
        for at in (at for at in unsure if at < known):
            here = whole[: len(out) + at]
            first = lists[0][at]
            if min(first.values()) >= max(first.values()) + math.log(method.beta or 1):
                return replace(answer, tokens=here, fault=SHORT.format(len(here)))
            try:
                best = _best(engine, method, contents, here, [one[at] for one in lists], answer, spent)
            except OtherTokens:
                return replace(answer, tokens=here, fault=OTHER.format(len(here)))
            if best != draft.ids[at]:
                answer = replace(answer, tokens=[*here, best], ended=best in engine.ends, changes=answer.changes + 1)
                break
        else:
            if known < len(draft.ids):
                return replace(answer, tokens=whole[: len(out) + known], fault=OTHER.format(len(out) + known))
            return replace(answer, tokens=whole, ended=draft.ended)
    return answer


def _plain(engine: "Engine", method: BranchMethod, content: "Content", budget: int, spent: Counter[str]) -> Answer:
    """Return the server's own greedy answer."""
    yes, no = engine.answers
    tokens = [*yes, *no]
    draft, model = engine.ask(spent, content, most=budget, named=tokens[: engine.listed])
    if not draft.ids:
        return Answer([], draft.ended, Margin(math.nan, math.nan), model=model)
    first = draft.lists[0]
    if lacking := tokens[engine.listed :]:
        first = first | engine.name(spent, content, [], lacking)
    return Answer(draft.ids, draft.ended, margin_of_lists(method, [first], yes, no), model=model)


OTHER = "not exact: the text of its first {} tokens gives other tokens back, so that no branch can go on from them"
SHORT = "not exact: after {} tokens more are plausible than the server lists"


def _plausible(listed: Listed, beta: float | None) -> list[Any]:
    assert beta is not None
    cutoff = max(listed.values()) + math.log(beta)
    return sorted(token for token, value in listed.items() if value >= cutoff)


def _best(
    engine: "Engine",
    method: BranchMethod,
    contents: Sequence["Content"],
    here: list[int],
    lists: Sequence[dict[int, float]],
    answer: Answer,
    spent: Counter[str],
) -> int:
    """The token that the method chooses after ``here``; at the first step, notes the margin in ``answer``."""
    import torch

    from mitigation.contrastive.formulas import uncut_answers

    plausible = _plausible(lists[0], method.beta)
    yes, no = engine.answers
    tokens = sorted({*plausible, *(() if here else (*yes, *no))})
    complete = []
    for content, listed in zip(contents, lists, strict=True):
        lacking = [token for token in tokens if token not in listed]
        complete.append(listed | engine.name(spent, content, here, lacking) if lacking else listed)
    if not here:
        answer.margin = margin_of_lists(method, complete, yes, no)
    columns, logits = _logits(complete, tokens)
    ids = [[columns.index(token) for token in side if token in columns] for side in (yes, no)]
    scores = method.scores(_branch_logits(logits, ids), len(here))
    mask = torch.tensor([[token in plausible for token in columns] + [False] * (logits.shape[1] - len(columns))])
    cut = scores.masked_fill(~mask, -torch.inf)
    if not here and method.uncut:
        cut = uncut_answers(cut, scores, [*ids[0], *ids[1]])
    return int(columns[int(cut.argmax())])


def _logits(lists: Sequence[Listed], tokens: Sequence[Any]) -> "tuple[list[Any], Tensor]":
    """Log-probabilities [branch column] of ``tokens`` and of the likeliest listed ones, and the tokens of the columns.

    What is left of the probability stands in further columns, none as likely as the likeliest, so that a row is a whole
    distribution: a formula's softmax changes nothing, and its largest is the true one.
    """
    import torch

    likeliest = [max(one, key=one.__getitem__) for one in lists if one]
    columns = sorted({*tokens, *(token for token in likeliest if all(token in one for one in lists))})
    rows = [[one[token] for token in columns] for one in lists]
    left = [max(1 - math.fsum(map(math.exp, row)), 1e-30) for row in rows]
    tops = [math.exp(max(one.values())) for one in lists]
    count = 1 + max(min(int(rest / top), 1_000_000) for rest, top in zip(left, tops, strict=True))
    completed = [row + [math.log(rest / count)] * count for row, rest in zip(rows, left, strict=True)]
    return columns, torch.tensor(completed, dtype=torch.float32)


def _branch_logits(logits: "Tensor", answers: Sequence[Sequence[int]]) -> BranchLogits:
    return BranchLogits(logits[:1], logits[1:, None], (answers[0], answers[1]))
