"""The first answer token as a choice between Yes and No: a constant on the margin, whatever made the scores.

Knows nothing of pictures, branches or rules.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import LogitsProcessor

from interp.answers import AnswerIds
from mitigation.ranges import check_shift


class VerdictShiftLogitsProcessor(LogitsProcessor):
    """Adds ``shift`` to the Yes/No margin of the first token, half to each side; for one ``generate`` call.

    ``after`` are the processors that run before it. Where the likeliest first token is one of the answers, both answers
    take the scores of the last of ``after`` that keeps them uncut (``first_scores``): a plausibility cutoff would hold
    a confident verdict fast, against its own contrasted margin. Everything else stays as it is.
    """

    def __init__(self, answers: AnswerIds, *, shift: float, after: Sequence[LogitsProcessor] = ()) -> None:
        check_shift(shift)
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
        """The scores, shifted at the first step."""
        if self._first_scores is not None:
            return scores
        ids, halves = self._ids.to(scores.device), self._halves.to(scores.device, scores.dtype)
        uncut = self._uncut(scores)
        self._first_scores = uncut.index_add(1, ids, halves.expand(len(scores), -1))
        verdict = torch.isin(scores.argmax(dim=1, keepdim=True), ids)
        answers = torch.where(verdict, uncut[:, ids], scores[:, ids])
        return scores.index_copy(1, ids, answers + halves)

    def _uncut(self, scores: Float[Tensor, "row vocab"]) -> Float[Tensor, "row vocab"]:
        kept = [processor for processor in self._after if hasattr(type(processor), "first_scores")]
        if not kept:
            return scores
        uncut: Tensor = kept[-1].first_scores.to(scores.dtype)  # type: ignore[attr-defined]
        # A paired branch keeps one row a pair and answers with two.
        return uncut.repeat(len(scores) // len(uncut), 1)
