"""Sampled answers that do not depend on their batch: one stream of Gumbel noise a case.

``generate`` samples all rows from one global generator, so that an answer changes with its neighbours and its place.
Here the greedy argmax is taken over score / temperature + Gumbel noise, which is an exact draw from the softmax
(Gumbel 1954; the "Gumbel-max trick"), and each row's noise comes from its case's key, a seed and the step alone. Knows
nothing of pictures or contrasts.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import LogitsProcessor

from mitigation.contrast import plausible
from mitigation.noise import case_generator
from mitigation.ranges import check_beta, check_seed, check_temperature


class CaseSampler(LogitsProcessor):
    """Turns greedy decoding into sampling, when it is the last processor of one ``generate`` call.

    ``keys`` has the case's key of every row. A forbidden token (−inf) stays forbidden. The tokens are those of
    another batch wherever the scores are: scores that differ by rounding alone (another batch size) can swap two tokens
    whose noised scores are as close.
    """

    def __init__(self, keys: Sequence[str], *, temperature: float, seed: int) -> None:
        check_temperature(temperature)
        check_seed(seed)
        self._keys, self._temperature, self._seed = list(keys), temperature, seed
        self._prompt: int | None = None  # columns; left padding makes them more, so only steps after it are counted

    def __call__(
        self, input_ids: Int[Tensor, "row position"], scores: Float[Tensor, "row vocab"]
    ) -> Float[Tensor, "row vocab"]:
        """Float32 scores over the temperature, with the noise of this step."""
        if self._prompt is None:
            self._prompt = input_ids.shape[1]
        step = input_ids.shape[1] - self._prompt
        noise = torch.stack([gumbel(scores.shape[1], f"{key}\nstep {step}", self._seed) for key in self._keys])
        return scores.float() / self._temperature + noise.to(scores.device)


class PlausibilityLogitsProcessor(LogitsProcessor):
    """Visual contrastive decoding's cutoff without its contrast: −inf where a token is implausible."""

    def __init__(self, *, beta: float | None) -> None:
        check_beta(beta)
        self._beta = beta

    def __call__(
        self, input_ids: Int[Tensor, "row position"], scores: Float[Tensor, "row vocab"]
    ) -> Float[Tensor, "row vocab"]:
        """The scores of the tokens that pass (``mitigation.contrast.plausible``)."""
        return scores.masked_fill(~plausible(scores, beta=self._beta), -torch.inf)


def gumbel(size: int, key: str, seed: int) -> Float[Tensor, "vocab"]:
    """Standard Gumbel noise, float32 on the CPU, that depends on ``key`` and ``seed`` alone."""
    generator = case_generator(key, seed)
    return -torch.empty(size).exponential_(generator=generator).log()
