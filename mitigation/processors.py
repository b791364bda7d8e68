"""Logits processors without a second branch: shifts of the first token's margin, exact sampling, only the cutoff.

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
from interp.generation import AnswerIds, uncut_scores
from mitigation.contrastive.corruption import case_generator
from mitigation.contrastive.processors import plausible, uncut_answers
from mitigation.method import MethodFault, check_beta, check_seed, check_shift, check_temperature


class ConstantShiftLogitsProcessor(LogitsProcessor):
    """Adds ``shift`` to the Yes/No margin of the first token, half to each side; for one ``generate`` call.

    ``after`` are the processors that run before it. If the most likely token is an answer, both answers have their
    scores from before the cutoff. The last processor of ``after`` must keep these scores (``uncut_scores``). Without
    this rule the plausibility cutoff would fix a confident verdict regardless of its contrasted margin. Other scores do
    not change. Without ``after`` the host never waits for the device.
    """

    shifts_margin: ClassVar[bool] = True

    def __init__(self, answers: AnswerIds, *, shift: float, after: Sequence[LogitsProcessor] = ()) -> None:
        check_shift(shift)
        self._ids = torch.tensor([*answers.yes, *answers.no])
        self._halves = torch.tensor([shift / 2] * len(answers.yes) + [-shift / 2] * len(answers.no))
        self._after = list(after)
        self._steps = _Steps()
        self.uncut_scores: Tensor | None = None

    def __call__(
        self, input_ids: Int[Tensor, "row position"], scores: Float[Tensor, "row vocab"]
    ) -> Float[Tensor, "row vocab"]:
        """Return the scores, shifted at the first step."""
        self.uncut_scores = uncut_scores(self._after, scores)
        if self._steps.count(input_ids):
            return scores
        ids = to_device(self._ids, scores.device)
        halves = to_device(self._halves.to(scores.dtype), scores.device).expand(len(scores), -1)
        uncut = uncut_scores(self._after)
        if uncut is None:
            self.uncut_scores = scores.index_add(1, ids, halves)
            return self.uncut_scores
        uncut = uncut.to(scores.dtype)
        self.uncut_scores = uncut.index_add(1, ids, halves)
        return uncut_answers(scores, uncut, self._ids.tolist()).index_add(1, ids, halves)


class _Steps:
    """Counts the decoding steps of one ``generate`` call, from 0."""

    def __init__(self) -> None:
        self._prompt: int | None = None  # columns, padding included

    def count(self, input_ids: Int[Tensor, "row position"]) -> int:
        """Return the step that has the tokens ``input_ids`` before it; the first call is step 0."""
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
        for each in given:
            check_seed(each)
        self._seeds = given if isinstance(seed, Sequence) else given * len(keys)
        self._keys, self._temperature = list(keys), temperature
        self._warp = TopPLogitsWarper(top_p) if top_p < 1 else None
        self._steps = _Steps()

    def __call__(
        self, input_ids: Int[Tensor, "row position"], scores: Float[Tensor, "row vocab"]
    ) -> Float[Tensor, "row vocab"]:
        """Return float32 scores divided by the temperature, plus the noise of this step."""
        step = self._steps.count(input_ids)
        drawn = zip(self._keys, self._seeds, strict=True)
        noise = torch.stack([gumbel(scores.shape[1], f"{key}\nstep {step}", seed) for key, seed in drawn])
        warm = scores.float() / self._temperature
        if self._warp is not None:
            warm = self._warp(cast(Any, input_ids), cast(Any, warm))
        return warm + to_device(noise, scores.device)


class PlausibilityLogitsProcessor(LogitsProcessor):
    """The cutoff of visual contrastive decoding without its contrast: −inf where a token is implausible."""

    def __init__(self, *, beta: float | None) -> None:
        check_beta(beta)
        self._beta = beta
        self.uncut_scores: Tensor | None = None

    def __call__(
        self, input_ids: Int[Tensor, "row position"], scores: Float[Tensor, "row vocab"]
    ) -> Float[Tensor, "row vocab"]:
        """Return the scores of plausible tokens (``mitigation.contrastive.processors.plausible``), −inf elsewhere."""
        self.uncut_scores = scores
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
        """Return the rule's scores."""
        given = scores.float()
        return same_shape(self._rule(given, self._steps.count(input_ids)), given, "rule(scores, step)")


def same_shape(returned: Any, given: Float[Tensor, "row vocab"], function: str) -> Float[Tensor, "row vocab"]:
    """Return ``returned`` where it is a tensor like ``given``, of numbers; −∞ masks a token.

    Raises:
        MethodFault: says what the function owes.
    """
    if not isinstance(returned, Tensor) or returned.shape != given.shape:
        shape = tuple(returned.shape) if isinstance(returned, Tensor) else type(returned).__name__
        raise MethodFault(
            f"{function} returned {shape}; it must return scores of the given shape, {tuple(given.shape)}"
        )
    usable = (returned < torch.inf).all(-1) & (returned > -torch.inf).any(-1)  # a NaN is neither
    if not bool(usable.all()):
        raise MethodFault(
            f"{function} returned scores that are no numbers (NaN, +∞ or nothing but −∞) for {int((~usable).sum())} of "
            f"{len(usable)} prompts, such as the logarithm of negative scores; it must return finite scores, or −∞ for "
            "a forbidden token"
        )
    return returned


def gumbel(size: int, key: str, seed: int) -> Float[Tensor, " vocab"]:
    """Return standard Gumbel noise −log(E), E exponential, float32 on the CPU. Only ``key`` and ``seed`` set it."""
    drawn = torch.empty(size).exponential_(generator=case_generator(key, seed))
    # It may draw 0, whose infinite noise would make NaN of a forbidden token.
    return -drawn.clamp(min=torch.finfo(drawn.dtype).tiny).log()
