"""Log-probabilities of given beginnings of an answer under any method that answers through ``vlm.generate``.

The tokens are forced: each step's scores are read after the method's own logits processors and before its cutoff
(``uncut_scores`` of ``interp.margin``). So a contrasted method is asked for its contrasted scores.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import LogitsProcessor

from interp.errors import UserError
from interp.margin import uncut_scores
from mitigation.method import abilities
from mitigation.wrappers import WrappedVLM

if TYPE_CHECKING:
    from interp.vlm import VLM, Generation, Prompt
    from mitigation.method import Method

Tokens = tuple[int, ...]


class ForcedTokens(LogitsProcessor):
    """Forces the tokens ``stem``, and reads the log-probabilities of the stem followed by each of the tokens ``ends``.

    ``after`` are the method's own processors, which run before this one.
    """

    unscored = "its tokens are forced"

    def __init__(self, stem: Sequence[int], ends: Sequence[int], after: Sequence[LogitsProcessor]) -> None:
        self._stem, self._ends, self._after = list(stem), list(ends), list(after)
        self._sum: Tensor | None = None  # [row], of the stem so far
        self._step = 0
        self.log_probabilities: Float[Tensor, "row end"] | None = None

    def __call__(
        self, input_ids: Int[Tensor, "row position"], scores: Float[Tensor, "row vocab"]
    ) -> Float[Tensor, "row vocab"]:
        """Return scores that leave only the next token of the stem; after the stem the scores as they are."""
        uncut = uncut_scores(self._after, scores)
        if uncut is None:
            raise UserError("the method left a step out, and its scores of forced tokens are not known")
        chances = uncut.float().log_softmax(-1)
        before = 0.0 if self._sum is None else self._sum
        if self._step == len(self._stem):
            self.log_probabilities = (chances[:, self._ends].T + before).T.cpu()
            return scores
        token = self._stem[self._step]
        self._step += 1
        self._sum = chances[:, token] + before
        forced = torch.full_like(scores, -torch.inf)
        forced[:, token] = 0.0
        return forced


class ForcedVLM(WrappedVLM):
    """A VLM whose ``generate`` forces tokens after the method's own processors. Every step of it has scores."""

    late_verdicts = True  # methods then keep the scores of every step
    leaves_out_steps = False

    def __init__(self, vlm: "VLM", stem: Sequence[int], ends: Sequence[int]) -> None:
        super().__init__(vlm)
        self._stem, self._ends = stem, ends
        self.forcing: list[ForcedTokens] = []  # of each call

    def generate(
        self,
        prompts: "Sequence[Prompt]",
        *,
        logits_processor: Sequence[LogitsProcessor] | None = None,
        encoded: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> "Generation":
        """Generate with forced tokens."""
        processors = list(logits_processor or ())
        self.forcing.append(ForcedTokens(self._stem, self._ends, processors))
        options["max_new_tokens"] = len(self._stem) + 1
        return super().generate(prompts, encoded=encoded, logits_processor=[*processors, self.forcing[-1]], **options)


def log_probabilities(
    method: "Method", vlm: "VLM", prompts: "Sequence[Prompt]", openings: Sequence[Tokens]
) -> Float[Tensor, "row opening"]:
    """Return log P(opening | prompt) under ``method``, float32 on the CPU.

    Openings that differ only in their last token are read in one call. Set ``vlm.prefill_cache``, so that the prompts
    are read once.

    Args:
        method: answers greedily through ``vlm.generate``.
        vlm: the model.
        prompts: one row each.
        openings: token ids of beginnings of an answer.

    Raises:
        UserError: the method's scores cannot be read: it draws tokens, or answers in several calls or its own loop.
    """
    if reason := abilities(method).unscored or abilities(method).unforced:
        raise UserError(f"{method!r} has no scores of forced tokens: {reason}")
    chances = torch.empty(len(prompts), len(openings))
    stems: dict[Tokens, list[int]] = {}
    for column, opening in enumerate(openings):
        stems.setdefault(tuple(opening[:-1]), []).append(column)
    for stem, columns in stems.items():
        forced = ForcedVLM(vlm, stem, [openings[column][-1] for column in columns])
        method.generate(cast("VLM", forced), prompts, max_new_tokens=len(stem) + 1)
        read = [forcing.log_probabilities for forcing in forced.forcing]
        if len(read) != 1 or read[0] is None or len(read[0]) != len(prompts):
            raise UserError(f"{method!r} does not answer all prompts by one vlm.generate, so no token can be forced")
        chances[:, columns] = read[0]
    return chances
