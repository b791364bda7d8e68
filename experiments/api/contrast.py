"""Contrasts of branches from replies of vLLM: their margins, and whole greedy answers by drafting and verifying.

A margin needs only differences of log-probabilities, in which the constants of a softmax cancel. A method's formula
(``mitigation.branches.BranchMethod.scores``) gets the listed tokens as its vocabulary. Further columns hold the rest of
the probability. For whole answers the clean branch drafts, and the other branches read prompt and draft once. Every
step is checked; at the first step with another best token the answer continues from there. This is speculative decoding
with two ordinary requests a round (compare Yuan et al. 2023, arXiv 2311.08981). Exact where the plausibility cutoff
lies inside the clean list; what is not exact is said to be so.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from experiments.api.reply import word_of
from mitigation.branches import BranchLogits, BranchMethod

if TYPE_CHECKING:
    from torch import Tensor

    from experiments.api.engine import Engine, Messages

Listed = Mapping[int, float]  # log-probabilities by token
OTHER = "not exact: the text of its first {} tokens gives other tokens back, so that no branch can go on from them"
SHORT = "not exact: after {} tokens more are plausible than the server lists"


@dataclass(frozen=True)
class AsItIs(BranchMethod):
    """The plain model, as a method of no further branch: its tokens and margins by their ids."""

    def scores(self, logits: Any, step: int) -> Any:
        """Return the model's own."""
        return logits.clean


@dataclass(frozen=True)
class Margin:
    """A margin that lies between ``low`` and ``high``, and the branches' own (clean first)."""

    low: float = math.nan
    high: float = math.nan
    branches: list[float] = field(default_factory=list)

    @property
    def value(self) -> float:
        """Return the bound that is nearer to 0, which is the margin itself if both are one."""
        return self.low if self.low >= 0 or self.low == self.high else self.high


@dataclass
class Answer:
    """A whole answer: its ``tokens``, the margin of its first, and why it is not exact ("" if it is)."""

    tokens: list[int] = field(default_factory=list)
    ended: bool = False
    margin: Margin = Margin()
    fault: str = ""
    model: str = ""


def margin_of_words(listed: Mapping[str, float]) -> Margin:
    """Return log P(Yes) − log P(No) over listed words; NaN if neither is listed.

    Endpoints list only the most likely tokens. If one of the two is not listed, the least likely listed token replaces
    it, and the margin is a bound.
    """
    odds = [sum(math.exp(value) for token, value in listed.items() if word_of(token) == word) for word in ("yes", "no")]
    if not any(odds):
        return Margin()
    yes, no = (math.log(each) if each else min(listed.values()) for each in odds)
    return Margin(yes - no if odds[0] else -math.inf, yes - no if odds[1] else math.inf)


def margin_of_lists(method: BranchMethod, lists: Sequence[Listed], yes: Sequence[int], no: Sequence[int]) -> Margin:
    """Return the margin that ``method`` makes of the branches' first tokens; ``lists`` of the clean one first."""
    from interp.generation import margin_of

    columns, logits = _logits(lists, [*yes, *no])
    ids = [[columns.index(token) for token in side] for side in (yes, no)]
    scores = method.scores(_branch_logits(logits, ids), 0)
    margin = float(margin_of(scores[:, ids[0]], scores[:, ids[1]]))
    return Margin(margin, margin, margin_of(logits[:, ids[0]], logits[:, ids[1]]).tolist())


@dataclass
class Decoder:
    """Whole greedy answers of ``method`` to the clean prompt (the first of ``prompts``) and the others.

    Requests: one for a draft and one for each branch and round. There is one round more than changes. Tokens that a
    list lacks are asked for by id.
    """

    engine: "Engine"
    method: BranchMethod
    prompts: "Sequence[Messages]"

    def decode(self, budget: int) -> Answer:
        """Return the answer, of ``budget`` tokens at most.

        Raises:
            Failed, UserError: as ``Engine.ask``.
        """
        if len(self.prompts) == 1:  # the plain model, whose tokens the server chooses
            return self._plain(budget)
        answer = Answer()
        while not (answer.ended or answer.fault) and len(answer.tokens) < budget:
            most = budget - len(answer.tokens)
            draft = self.engine.ask(self.prompts[0], answer.tokens, most=most)
            answer.model = draft.model
            if answer.tokens and draft.before[-len(answer.tokens) :] != answer.tokens:
                return replace(answer, fault=OTHER.format(len(answer.tokens)))
            if not draft.ids:
                return replace(answer, ended=draft.ended)
            if draft.ended:
                self.engine.ends.add(draft.ids[-1])
            answer = self._verified(answer, [*answer.tokens, *draft.ids], draft.ended)
        return answer

    def _plain(self, budget: int) -> Answer:
        yes, no = self.engine.answers
        draft = self.engine.ask(self.prompts[0], most=budget, named=[*yes, *no])
        margin = margin_of_lists(self.method, draft.lists[:1], yes, no) if draft.ids else Margin()
        return Answer(draft.ids, draft.ended, margin, model=draft.model)

    def _verified(self, answer: Answer, draft: list[int], ended: bool) -> Answer:
        """Return the draft as far as the method chooses its tokens, with the first that it chooses otherwise."""
        begin = len(answer.tokens)
        lists = [self.engine.follow(self.prompts[0], draft)]
        # Yes and No are always looked at, at the first step.
        unsure = [at for at in range(begin, len(lists[0])) if at == 0 or self._plausible(lists[0][at]) != [draft[at]]]
        if unsure:
            read = draft[: unsure[-1] + 1]
            lists += [self.engine.follow(prompt, read) for prompt in self.prompts[1:]]
        readable = min([len(lists[0]), *(len(each) for each in lists[1:] if len(each) <= unsure[-1])])
        for step in (step for step in unsure if step < readable):
            here = draft[:step]
            first = lists[0][step]
            if min(first.values()) >= max(first.values()) + math.log(self.method.beta or 1):
                return replace(answer, tokens=here, fault=SHORT.format(step))
            best = self._best(answer, here, [each[step] for each in lists])
            if best is None:
                return replace(answer, tokens=here, fault=OTHER.format(step))
            if best != draft[step]:
                return replace(answer, tokens=[*here, best], ended=best in self.engine.ends)
        if readable < len(draft):
            return replace(answer, tokens=draft[:readable], fault=OTHER.format(readable))
        return replace(answer, tokens=draft, ended=ended)

    def _plausible(self, listed: Listed) -> list[int]:
        assert self.method.beta is not None
        cutoff = max(listed.values()) + math.log(self.method.beta)
        return sorted(token for token, value in listed.items() if value >= cutoff)

    def _best(self, answer: Answer, here: list[int], lists: Sequence[dict[int, float]]) -> int | None:
        """Return the token that the method chooses after ``here``; None if its text gives other tokens back.

        At the first step, note the margin in ``answer``.
        """
        import torch

        from mitigation.contrastive.processors import uncut_answers

        plausible = self._plausible(lists[0])
        yes, no = self.engine.answers
        tokens = sorted({*plausible, *(() if here else (*yes, *no))})
        complete = []
        for prompt, listed in zip(self.prompts, lists, strict=True):
            lacking = [token for token in tokens if token not in listed]
            named = self.engine.name(prompt, here, lacking) if lacking else {}
            if named is None:
                return None
            complete.append(listed | named)
        if not here:
            answer.margin = margin_of_lists(self.method, complete, yes, no)
        columns, logits = _logits(complete, tokens)
        ids = [[columns.index(token) for token in side if token in columns] for side in (yes, no)]
        scores = self.method.scores(_branch_logits(logits, ids), len(here))
        mask = torch.tensor([[token in plausible for token in columns] + [False] * (logits.shape[1] - len(columns))])
        cut = scores.masked_fill(~mask, -torch.inf)
        if not here and self.method.uncut:
            cut = uncut_answers(cut, scores, [*ids[0], *ids[1]])
        return int(columns[int(cut.argmax())])


def _logits(lists: Sequence[Listed], tokens: Sequence[int]) -> "tuple[list[int], Tensor]":
    """Return log-probabilities [branch column] of ``tokens`` and of the likeliest, and the tokens of the columns.

    Further columns hold the rest of the probability, none as likely as the likeliest. So a row is a whole distribution:
    a formula's softmax changes nothing, and its largest is the true one.
    """
    import torch

    likeliest = [max(each, key=each.__getitem__) for each in lists]
    columns = sorted({*tokens, *(token for token in likeliest if all(token in each for each in lists))})
    rows = [[each[token] for token in columns] for each in lists]
    left = [max(1 - math.fsum(map(math.exp, row)), 1e-30) for row in rows]
    tops = [math.exp(max(each.values())) for each in lists]
    count = 1 + max(min(int(rest / top), 1_000_000) for rest, top in zip(left, tops, strict=True))
    completed = [row + [math.log(rest / count)] * count for row, rest in zip(rows, left, strict=True)]
    return columns, torch.tensor(completed, dtype=torch.float32)


def _branch_logits(logits: "Tensor", answers: Sequence[Sequence[int]]) -> BranchLogits:
    return BranchLogits(logits[:1], logits[1:, None], (answers[0], answers[1]))
