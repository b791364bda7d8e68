"""A logits processor that makes a model say lines, for tests of what follows from an answer."""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import LogitsProcessor


class Force(LogitsProcessor):
    """Each row says its line, in which None leaves a token free, and then ``end``.

    ``declared``: margins are read from the scores as they were before.
    """

    def __init__(self, lines: Sequence[Sequence[int | None]], end: int, *, declared: bool = False) -> None:
        self.lines, self.end, self.declared, self.prompt = lines, end, declared, -1

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.prompt = input_ids.shape[1] if self.prompt < 0 else self.prompt
        if self.declared:
            self.uncut_scores = scores
        step, forced = input_ids.shape[1] - self.prompt, scores.clone()
        for row, line in enumerate(self.lines):
            if (token := line[step] if step < len(line) else self.end) is not None:
                forced[row] = -torch.inf
                forced[row, token] = scores[row, token]
        return forced
