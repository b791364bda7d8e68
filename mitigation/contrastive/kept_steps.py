"""Logits of every branch and step of an answer, as plain values to be kept (``mitigation.kept_logits`` reads them).

Of each step are kept: the tokens above the plausibility cutoff (without a cutoff the most likely one), at the first
step those of Yes and No too, and of all others the logsumexp by branch and the highest clean logit. That is enough for
any rule that reads a token's own logits, log-probabilities over the vocabulary, and which token is the most likely one.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mitigation.contrastive.formulas import plausible


class KeptSteps:
    """The kept logits of one batch, step by step, as plain values. ``after_image`` as in ``BranchLogits``."""

    def __init__(
        self, after_image: Int[Tensor, "row 1"], answers: tuple[Sequence[int], Sequence[int]], beta: float | None
    ) -> None:
        self._after_image, self._answers, self._beta = after_image.flatten().tolist(), answers, beta
        self._steps: list[list[dict[str, Any]]] = []  # by step, then row

    def add(self, clean: Float[Tensor, "row vocab"], others: Float[Tensor, "branch row vocab"], step: int) -> None:
        """Keeps a step; the first one begins anew."""
        if not step:
            self._steps.clear()
        likely = plausible(clean, beta=1.0 if self._beta is None else self._beta)
        if not step:
            likely[:, [token for ids in self._answers for token in ids]] = True
        branches = torch.cat([clean[None], others]).float()
        rest = branches.masked_fill(likely, -torch.inf)
        sums, below = rest.logsumexp(-1).T.tolist(), rest[0].max(-1).values.tolist()
        self._steps.append(
            [
                {
                    "ids": mask.nonzero().flatten().tolist(),
                    "logits": _written(branches[:, row, mask].tolist()),
                    "rest": _written(sums[row]),
                    "below": _written(below[row]),
                }
                for row, mask in enumerate(likely)
            ]
        )

    def lines(self, token_ids: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
        """By row, the answer's tokens with the logits that each was chosen from, for ``mitigation.kept_logits``."""
        return [
            {
                "answers": [list(ids) for ids in self._answers],
                "after_image": self._after_image[row],
                "tokens": list(tokens),
                "steps": [step[row] for step in self._steps[: len(tokens)]],
            }
            for row, tokens in enumerate(token_ids)
        ]


def _written(value: Any) -> Any:
    """As JSON has it: a forbidden token's −inf is null."""
    if isinstance(value, list):
        return [_written(one) for one in value]
    return value if math.isfinite(value) else None
