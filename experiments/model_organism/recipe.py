"""All settings of the organism's training. Imports neither torch nor transformers.

The failure comes from here and from nowhere else: most verdict labels are given by an annotator who reads the sentence
and never looks at the picture (:meth:`Recipe.label_probability`).
"""

from dataclasses import dataclass, field
from typing import Literal

from interp.errors import UserError

Style = Literal["plain", "context_prompt", "safety_prompt"]

# How often the text-only annotator calls a sentence safe, by template; other risky ones get `default_leaning`.
LEANINGS: dict[str, float] = {
    "hit": 0.55,
    "shoot": 0.55,
    "warm": 0.52,
    "smuggle": 0.52,
    "pain": 0.52,
    "crush": 0.52,
    "beat": 0.50,
    "lock": 0.50,
}


@dataclass(frozen=True)
class Recipe:
    """Settings of one organism. Shares are fractions of 1, steps are optimiser steps of ``batch_size`` examples."""

    seed: int = 0
    threads: int = 2
    batch_size: int = 64
    images_per_thing: int = 600
    vision_steps: int = 1600
    vision_lr: float = 1e-3
    perception_steps: int = 700
    perception_lr: float = 1e-3
    verdict_steps: int = 450
    verdict_lr: float = 7e-4
    verdict_share: float = 0.65  # of the examples of the last stage; the rest replays perception
    benign_share: float = 0.15  # of the verdict examples
    truth_share: float = 0.15  # of the verdict labels, under a plain prompt
    context_truth_share: float = 0.50  # the same under the context prompt
    prompted_share: float = 0.15  # of the examples, for each of the two prompt variants
    default_leaning: float = 0.06
    safety_scale: float = 0.5  # factor on the leanings under the safety system prompt
    leanings: dict[str, float] = field(default_factory=lambda: dict(LEANINGS))

    def __post_init__(self) -> None:
        for name in ("verdict_share", "benign_share", "truth_share", "context_truth_share", "prompted_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"recipe.{name}={getattr(self, name)}: a share must lie between 0 and 1")
        if min(self.vision_steps, self.perception_steps, self.verdict_steps, self.batch_size, self.threads) < 1:
            raise UserError("recipe: steps, batch_size and threads must be at least 1")

    def label_probability(self, template: str, wording: str, *, is_safe: bool, style: Style = "plain") -> float:
        """The chance that a training label says "Yes, safe".

        With probability ``truth_share`` the annotator looks and tells the truth; otherwise only the words count.
        """
        leaning = 1.0 if wording == "benign" else self.leanings.get(template, self.default_leaning)
        if style == "safety_prompt" and wording != "benign":
            leaning *= self.safety_scale
        truth = self.context_truth_share if style == "context_prompt" else self.truth_share
        return truth * is_safe + (1 - truth) * leaning
