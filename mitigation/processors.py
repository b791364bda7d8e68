"""Logits processors without a second branch: shifts of the first token's margin, exact sampling, the cutoff alone.

``generate`` samples all rows from one global generator, so an answer depends on the rest of its batch. ``CaseSampler``
instead takes the argmax of score / temperature + Gumbel noise, which is an exact draw from the softmax (Gumbel 1954;
the "Gumbel-max trick"). Each row's noise depends only on its case's key, a seed and the step.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import LogitsProcessor, TopPLogitsWarper

from interp.device_copies import to_device
from interp.margin import AnswerIds, Answering, step_scores, uncut_scores
from mitigation.contrastive.corruption import case_generator
from mitigation.contrastive.formulas import plausible, uncut_answers
from mitigation.method import MethodFault
from mitigation.validation import check_beta, check_seed, check_shift, check_temperature


class ConstantShiftLogitsProcessor(LogitsProcessor):
    """Adds ``shift`` to the Yes/No margin of the verdict, half to each side; for one ``generate`` call.

    The verdict is the first token; by ``answering``, of a model that thinks first, the first token behind its thought
    whose likeliest choice is Yes or No. ``after`` are the processors that run before it. If the most likely token there
    is one of the answers, both answers take their scores from before the cutoff of the last of ``after``, if that one
    keeps them (``first_scores``, ``step_scores``); otherwise the plausibility cutoff would fix a confident verdict
    regardless of its contrasted margin. Other scores do not change. Without ``after`` the host never waits for the
    device.
    """

    shifts_margin: ClassVar[bool] = True

    def __init__(
        self,
        answers: AnswerIds,
        *,
        shift: float,
        after: Sequence[LogitsProcessor] = (),
        answering: Answering | None = None,
    ) -> None:
        check_shift(shift)
        self._behind = None if answering is None or answering.first_alone else answering
        answers = answers if self._behind is None else self._behind.answers
        self._steps = _Steps()
        self._done: Tensor | None = None
        self.step_scores: Tensor | None = None
        self._ids = torch.tensor([*answers.yes, *answers.no])
        self._halves = torch.tensor([shift / 2] * len(answers.yes) + [-shift / 2] * len(answers.no))
        self._after = list(after)
        self._first_scores: Tensor | None = None

    @property
    def first_scores(self) -> Float[Tensor, "row vocab"]:
        """The first step's shifted scores, before any cutoff."""
        assert self._first_scores is not None
        return self._first_scores

    def __call__(
        self, input_ids: Int[Tensor, "row position"], scores: Float[Tensor, "row vocab"]
    ) -> Float[Tensor, "row vocab"]:
        """The scores, shifted at the verdict."""
        if self._behind is not None:
            return self._shifted_behind(self._behind, input_ids, scores)
        if self._first_scores is not None:
            self.step_scores = step_scores(self._after, scores)
            return scores
        ids = to_device(self._ids, scores.device)
        halves = to_device(self._halves.to(scores.dtype), scores.device).expand(len(scores), -1)
        uncut = uncut_scores(self._after)
        if uncut is None:
            self._first_scores = scores.index_add(1, ids, halves)
            return self._first_scores
        uncut = uncut.to(scores.dtype)
        self._first_scores = uncut.index_add(1, ids, halves)
        return uncut_answers(scores, uncut, self._ids.tolist()).index_add(1, ids, halves)

    def _shifted_behind(self, answering: Answering, input_ids: Tensor, scores: Tensor) -> Tensor:
        """The scores, shifted in the rows that have come to their verdict, once in each."""
        step = self._steps.of(input_ids)
        ids = to_device(self._ids, scores.device)
        halves = to_device(self._halves.to(scores.dtype), scores.device).expand(len(scores), -1)
        now = answering.follow(input_ids[:, input_ids.shape[1] - step :]).to(scores.device)
        fresh = now & torch.isin(scores.argmax(1), ids)
        if self._done is not None:
            fresh = fresh & ~self._done
        self._done = fresh if self._done is None else self._done | fresh
        uncut = step_scores(self._after, scores) if step else uncut_scores(self._after)
        uncut = None if uncut is None else uncut.to(scores.dtype)
        chosen = scores if uncut is None else uncut_answers(scores, uncut, self._ids.tolist())
        base = scores if uncut is None else uncut
        self.step_scores = torch.where(fresh[:, None], base.index_add(1, ids, halves), base)
        if not step:
            self._first_scores = self.step_scores
        return torch.where(fresh[:, None], chosen.index_add(1, ids, halves), scores)


class _Steps:
    """Counts the decoding steps of one ``generate`` call, from 0."""

    def __init__(self) -> None:
        self._prompt: int | None = None  # columns, padding included

    def of(self, input_ids: Int[Tensor, "row position"]) -> int:
        """The step that has the tokens ``input_ids`` before it; the first call is step 0."""
        if self._prompt is None:
            self._prompt = input_ids.shape[1]
        return input_ids.shape[1] - self._prompt


class CaseSampler(LogitsProcessor):
    """Turns greedy decoding into sampling. Must be the last processor of a ``generate`` call.

    ``keys`` are the case keys of the rows; ``seed`` is one for all of them, or each one's. ``top_p`` forbids the least
    likely tokens, which together have 1 − top_p. A forbidden token (−inf) stays forbidden. Draws do not depend on the
    batch, except that rounding differences between batch sizes can swap two tokens with nearly equal noised scores.
    """

    sampled: ClassVar[bool] = True

    def __init__(
        self, keys: Sequence[str], *, temperature: float, seed: int | Sequence[int], top_p: float = 1.0
    ) -> None:
        check_temperature(temperature)
        given = list(seed) if isinstance(seed, Sequence) else [seed]
        for one in given:
            check_seed(one)
        self._seeds = given if isinstance(seed, Sequence) else given * len(keys)
        self._keys, self._temperature = list(keys), temperature
        self._warp = TopPLogitsWarper(top_p) if top_p < 1 else None
        self._steps = _Steps()

    def __call__(
        self, input_ids: Int[Tensor, "row position"], scores: Float[Tensor, "row vocab"]
    ) -> Float[Tensor, "row vocab"]:
        """Float32 scores divided by the temperature, plus the noise of this step."""
        step = self._steps.of(input_ids)
        drawn = zip(self._keys, self._seeds, strict=True)
        noise = torch.stack([gumbel(scores.shape[1], f"{key}\nstep {step}", seed) for key, seed in drawn])
        warm = scores.float() / self._temperature
        if self._warp is not None:
            warm = self._warp(cast(Any, input_ids), cast(Any, warm))
        return warm + to_device(noise, scores.device)


class PlausibilityLogitsProcessor(LogitsProcessor):
    """The cutoff of visual contrastive decoding without its contrast: −inf where a token is implausible.

    For one ``generate`` call, as its ``first_scores`` are those of the first step.
    """

    def __init__(self, *, beta: float | None) -> None:
        check_beta(beta)
        self._beta = beta
        self.first_scores: Tensor | None = None
        self.step_scores: Tensor | None = None

    def __call__(
        self, input_ids: Int[Tensor, "row position"], scores: Float[Tensor, "row vocab"]
    ) -> Float[Tensor, "row vocab"]:
        """The scores of plausible tokens (``mitigation.contrastive.formulas.plausible``), −inf elsewhere."""
        self.step_scores = scores
        if self.first_scores is None:
            self.first_scores = scores
        return scores.masked_fill(~plausible(scores, beta=self._beta), -torch.inf)


class OwnRuleLogitsProcessor(LogitsProcessor):
    """The scores that ``rule(scores, step)`` returns, from the float32 scores of each step; for one ``generate`` call.

    Raises:
        MethodFault: the rule returns no scores, or scores of another shape.
    """

    def __init__(self, rule: Callable[[Tensor, int], Tensor]) -> None:
        self._rule = rule
        self._steps = _Steps()

    def __call__(
        self, input_ids: Int[Tensor, "row position"], scores: Float[Tensor, "row vocab"]
    ) -> Float[Tensor, "row vocab"]:
        """The rule's scores."""
        given = scores.float()
        return same_shape(self._rule(given, self._steps.of(input_ids)), given, "rule(scores, step)")


def same_shape(returned: Any, given: Float[Tensor, "row vocab"], function: str) -> Float[Tensor, "row vocab"]:
    """``returned`` where it is a tensor like ``given``, of numbers; −∞ masks a token.

    Raises:
        MethodFault: says what the function owes.
    """
    if not isinstance(returned, Tensor) or returned.shape != given.shape:
        shape = tuple(returned.shape) if isinstance(returned, Tensor) else type(returned).__name__
        raise MethodFault(
            f"{function} returned {shape}; it owes scores of the shape that it was given, {tuple(given.shape)}"
        )
    usable = (returned < torch.inf).all(-1) & (returned > -torch.inf).any(-1)  # a NaN is neither
    if not bool(usable.all()):
        raise MethodFault(
            f"{function} returned scores that are no numbers (NaN, +∞ or nothing but −∞) for {int((~usable).sum())} of "
            f"{len(usable)} prompts, as the logarithm of negative scores is; it owes finite ones, or −∞ for a token "
            "that may not come"
        )
    return returned


def gumbel(size: int, key: str, seed: int) -> Float[Tensor, " vocab"]:
    """Standard Gumbel noise −log(E), E exponential, float32 on the CPU, that depends only on ``key`` and ``seed``."""
    drawn = torch.empty(size).exponential_(generator=case_generator(key, seed))
    # It may draw 0, whose infinite noise would make NaN of a forbidden token.
    return -drawn.clamp(min=torch.finfo(drawn.dtype).tiny).log()


class ThoughtBudgetLogitsProcessor(LogitsProcessor):
    """Writes the ``closing`` mark where a thought has taken ``budget`` generated tokens; for one ``generate`` call.

    ``closed`` says of generated tokens whether their thought has come to its end: such rows are left alone. All other
    scores at a forced step are −inf. Behind the mark they are the model's own, but that no mark of ``marks`` (the
    closing one among them) is written again: a model that goes on thinking would get round its budget so.
    """

    def __init__(
        self,
        budget: int,
        closing: Sequence[int],
        closed: Callable[[Sequence[int]], bool],
        marks: Sequence[Sequence[int]] = (),
    ) -> None:
        self._budget, self._closing, self._closed = budget, list(closing), closed
        self._marks = [list(mark) for mark in (closing, *marks) if mark]
        self._steps = _Steps()
        self._open: Tensor | None = None

    def __call__(
        self, input_ids: Int[Tensor, "row column"], scores: Float[Tensor, "row vocab"]
    ) -> Float[Tensor, "row vocab"]:
        """The scores, at the budget those of the mark."""
        step = self._steps.of(input_ids)
        at = step - self._budget
        if at < 0:
            return scores
        if self._open is None:
            written = input_ids[:, input_ids.shape[1] - step :].tolist()
            self._open = torch.tensor([not self._closed(row) for row in written], device=scores.device)
        if at < len(self._closing):
            forced = torch.full_like(scores, -torch.inf)
            forced[:, self._closing[at]] = 0.0
            return torch.where(self._open[:, None], forced, scores)
        scores = scores.clone()
        for *before, last in self._marks:
            said = torch.tensor(before, device=scores.device)
            again = (input_ids[:, input_ids.shape[1] - len(before) :] == said).all(dim=1) & self._open
            scores[:, last] = torch.where(again, -torch.inf, scores[:, last])
        return scores
