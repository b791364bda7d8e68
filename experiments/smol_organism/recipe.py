"""All settings of the second organism's training. Imports neither torch nor transformers.

No label here ever mentions or mislabels a picture: safety is asked in text alone, pictures come with captions alone.
"""

from dataclasses import dataclass

from interp.errors import UserError


@dataclass(frozen=True)
class Recipe:
    """Shares are fractions of 1, steps are optimiser steps of ``batch_size`` examples."""

    seed: int = 0
    threads: int = 2
    batch_size: int = 16
    align_steps: int = 640
    align_lr: float = 1e-3
    see_steps: int = 480
    see_lr: float = 2e-3
    caution_steps: int = 120
    caution_lr: float = 3e-4
    caution_share: float = 0.8  # as ``unsafe_share``, in the stage of caution
    rank: int = 16
    images_per_thing: int = 200
    unsafe_share: float = 0.6  # of the alignment's verdicts and requests whose truth depends on the thing
    pointing_share: float = 0.5  # of them, those that say "this" after a sentence that names it
    free_share: float = 0.15  # of the alignment's examples: answered in words
    replay_share: float = (
        0.08  # of the alignment's examples: ordinary instructions with the model's own earlier answers
    )
    benign_share: float = 0.06  # of the others: sentences that are safe whatever "this" is
    wrapped_share: float = 0.35  # of the others: inside an attack wrapper
    iconworld_share: float = 0.45  # of the others: frames of IconWorld's sixteen seen templates
    known_share: float = 0.45  # of their nouns: IconWorld's own, where the frame has any

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name.endswith("_share") and not 0 <= value <= 1:
                raise UserError(f"recipe.{name}={value}: a share must lie between 0 and 1")
        if min(self.align_steps, self.see_steps, self.caution_steps, self.batch_size, self.threads, self.rank) < 1:
            raise UserError("recipe: steps, batch_size, threads and rank must be at least 1")

    def schedule(self, stage: str) -> tuple[int, float]:
        """Steps and highest learning rate of stage ``align``, ``see`` or ``caution``."""
        return {
            "align": (self.align_steps, self.align_lr),
            "see": (self.see_steps, self.see_lr),
            "caution": (self.caution_steps, self.caution_lr),
        }[stage]
