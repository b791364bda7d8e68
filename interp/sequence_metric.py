"""The margin of a model that refuses in words: minus the log-odds that its answer begins with a refusal opening.

It is exact in ``VLM.score`` and in every tool that scores prompts: patching, knockout, occlusion, priors, ablation. The
logit lens is exact too. Tools that read a single column (direct attribution, part effects, integrated gradients,
attention) need openings of one token. ``SequenceMetric.next_token`` gives these, for prompts that begin with what comes
before.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from interp.errors import UserError

if TYPE_CHECKING:
    from interp.prompt import Prompt

Tokens = tuple[int, ...]
NEAR_ONE = -(2.0**-23)  # the largest log-probability: rounding can bring a sum to 1, whose odds are infinite


@dataclass(frozen=True)
class SequenceMetric:
    """``shift`` − logit P(refuse), with P(refuse) = Σ P(opening | prompt) over ``openings``: positive for an answer.

    While ``VLM.score`` reads it, a forward has the prompt and all of an opening but its last token. These tokens are
    ``generated`` columns: cut ``("image", "generated")`` with ``("image", "verdict")`` in a knockout. Patching
    ``verdict`` replaces them too. ``answer_prefix`` are the tokens that prompts must begin their answer with
    (``begin``).

    Raises:
        UserError: no opening, one without a token, or one that begins another.
    """

    openings: tuple[Tokens, ...]
    shift: float = 0.0
    answer_prefix: Tokens = ()

    def __post_init__(self) -> None:
        ordered = sorted(self.openings)
        if not ordered or not ordered[0]:
            raise UserError(f"openings={self.openings}: a metric needs one or more openings of one or more tokens")
        for shorter, longer in pairwise(ordered):
            if longer[: len(shorter)] == shorter:
                raise UserError(f"opening {shorter} begins opening {longer}, which would count twice; leave one out")

    @cached_property
    def stems(self) -> list[Tokens]:
        """The openings without their last tokens, but none that begins another: a forward reads each."""
        stems = sorted({opening[:-1] for opening in self.openings}, key=len, reverse=True)
        return [stem for i, stem in enumerate(stems) if not any(other[: len(stem)] == stem for other in stems[:i])]

    def next_token(self, prefix: Tokens) -> "SequenceMetric":
        """Return the metric of the next token after ``prefix``: tokens that continue an opening, against all else.

        Raises:
            UserError: no opening goes on from there.
        """
        size = len(prefix)
        tokens = sorted(
            {opening[size] for opening in self.openings if opening[:size] == prefix and len(opening) > size}
        )
        return SequenceMetric(tuple((token,) for token in tokens), answer_prefix=(*self.answer_prefix, *prefix))

    def begin(self, prompts: "Sequence[Prompt]") -> "list[Prompt]":
        """Return the prompts with ``answer_prefix`` as the beginning of their answers."""
        return [replace(prompt, answer_prefix=(*prompt.answer_prefix, *self.answer_prefix)) for prompt in prompts]

    def __call__(self, logits: Float[Tensor, "row vocab"]) -> Float[Tensor, " row"]:
        """Return the margin from the logits of the next token.

        Raises:
            UserError: an opening has several tokens.
        """
        if max(map(len, self.openings)) > 1:
            raise UserError(
                "this tool reads the logits of one column, and the openings have several tokens; take "
                "metric.next_token(prefix) and prompts that begin so (metric.next_token(prefix).begin(prompts))"
            )
        return self.read(lambda _: logits[:, None])

    def read(self, logits_after: Callable[[Tokens], Float[Tensor, "row step vocab"]]) -> Float[Tensor, " row"]:
        """Return the exact margin.

        Args:
            logits_after: the logits of the last column of the prompt and of each column of a stem behind it.
        """
        total: list[Tensor] = []
        left = set(self.openings)
        for stem in self.stems:
            chances = logits_after(stem).float().log_softmax(-1)
            path = torch.zeros_like(chances[:, 0, 0])
            for step in range(len(stem) + 1):
                here = [opening for opening in sorted(left) if opening[:-1] == stem[:step]]
                total += [path + chances[:, step, opening[-1]] for opening in here]
                left.difference_update(here)
                path = path + chances[:, step, stem[step]] if step < len(stem) else path
        return self.margin(torch.stack(total, dim=1))

    def margin(self, log_probabilities: Float[Tensor, "row opening"]) -> Float[Tensor, " row"]:
        """Return the margin from log P of each opening."""
        refusing = log_probabilities.double().logsumexp(1).clamp(max=NEAR_ONE)
        return (self.shift - refusing + (-refusing.expm1()).log()).float()
