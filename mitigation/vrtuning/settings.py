"""The settings of a training run. Imports neither torch nor transformers.

MMSafeAware (arXiv 2502.11184) publishes neither the data nor the settings of its VRTuning. These are ours, hence
"VRTuning-style".
"""

import importlib.util
import math
from dataclasses import dataclass

from interp.errors import UserError

TRAINERS = ("sft", "dpo")
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
SWITCHES = ("auto", "on", "off")
REPORTERS = ("none", "tensorboard", "trackio", "wandb")  # each is a package, and an extra of ours, of that name


@dataclass(frozen=True)
class Settings:
    """One adapter's training.

    ``trainer`` is ``sft`` (completion-only cross-entropy) or ``dpo`` (chosen against rejected answers, weight
    ``beta``). ``targets`` are the linear layers of the language model that get an adapter of ``rank``, scaled by
    ``alpha / rank``. Training takes ``steps`` optimiser steps, or ``epochs`` if ``steps`` is None; each step uses
    ``batch_size`` × ``accumulation`` examples per process. The learning rate warms up over ``warmup`` (a share of the
    steps) and decays to zero on a cosine. A resume point is written every ``save_steps`` steps. Pictures are scaled
    down to ``max_pixels`` pixels; text is never truncated.

    ``bf16`` and ``checkpointing`` (of gradients) are ``on``, ``off`` or ``auto`` (on for a GPU, else off). ``four_bit``
    stores the base in NF4 (needs a GPU and bitsandbytes). ``report_to`` is where TRL logs losses: ``tensorboard``
    (files in the training's folder), ``trackio`` or ``wandb``. The last two read keys and addresses from their
    environment variables.

    Raises:
        UserError: a number outside its range, an unknown name, or ``report_to`` names a package that is not installed.
    """

    trainer: str = "sft"
    rank: int = 16
    alpha: float = 32.0
    dropout: float = 0.0
    targets: tuple[str, ...] = TARGETS
    steps: int | None = None
    epochs: float = 1.0
    batch_size: int = 8
    accumulation: int = 1
    learning_rate: float = 2e-4
    warmup: float = 0.03
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    beta: float = 0.1
    seed: int = 0
    save_steps: int = 50
    max_pixels: int | None = 1_000_000
    bf16: str = "auto"
    checkpointing: str = "auto"
    four_bit: bool = False
    report_to: str = "none"

    def __post_init__(self) -> None:
        if self.trainer == "grpo":
            raise UserError(
                "trainer=grpo; with groups of 8 answers it costs 8 generations and rewards for each row, and sft costs "
                "one forward; choose sft or dpo"
            )
        self._among("trainer", TRAINERS)
        self._among("bf16", SWITCHES)
        self._among("checkpointing", SWITCHES)
        self._among("report_to", REPORTERS)
        if self.report_to != "none" and importlib.util.find_spec(self.report_to) is None:
            raise UserError(
                f"report_to={self.report_to}: {self.report_to} is not installed; in the clone, type pip install "
                f"'.[{self.report_to}]', or remove report_to"
            )
        supported = bool(self.targets) and set(self.targets) <= set(TARGETS)
        self._check("targets", supported, f"one or more of {', '.join(TARGETS)}")
        for name in ("rank", "batch_size", "accumulation", "save_steps", *("steps",) * (self.steps is not None)):
            self._check(name, getattr(self, name) >= 1, "at least 1")
        for name in ("alpha", "epochs", "learning_rate", "max_grad_norm", "beta"):
            self._check(name, 0 < getattr(self, name) < float("inf"), "above 0")
        self._check("dropout", 0 <= self.dropout < 1, "at least 0 and below 1")
        self._check("warmup", 0 <= self.warmup < 1, "at least 0 and below 1, a share of the steps")
        self._check("weight_decay", self.weight_decay >= 0, "at least 0")
        self._check("seed", 0 <= self.seed < 2**32, "between 0 and 2^32 − 1")
        self._check("max_pixels", self.max_pixels is None or self.max_pixels >= 64, "at least 64, or null for no bound")

    def _among(self, name: str, choices: tuple[str, ...]) -> None:
        if getattr(self, name) not in choices:
            raise UserError(f"{name}={getattr(self, name)!r}; it is one of {', '.join(choices)}; choose one of them")

    def _check(self, name: str, holds: bool, rule: str) -> None:
        if not holds:
            raise UserError(f"{name}={getattr(self, name)}; it must be {rule}; change it")


def total_steps(settings: Settings, examples: int, processes: int = 1) -> int:
    """Return the number of optimiser steps."""
    if settings.steps is not None:
        return settings.steps
    return max(1, math.ceil(settings.epochs * examples / (settings.batch_size * settings.accumulation * processes)))
