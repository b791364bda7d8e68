"""Visual contrastive decoding over a grid of weights and noise steps, against every constant shift of the margin."""

from experiments.frontier.task import Frontier

__all__ = ["Frontier"]
