"""IconWorld as a benchmark: configuration in, cases out. Imports neither torch nor transformers."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, get_args

from experiments.benchmarks.iconworld.cases import PAIRS_PER_TEMPLATE, Split, control_cases, scored_cases
from experiments.benchmarks.iconworld.conversations import conversation_cases
from experiments.benchmarks.iconworld.scene import SIZE
from experiments.types import Kind, Loaded, Sample
from interp.errors import UserError


@dataclass(frozen=True)
class IconWorld:
    """The procedural benchmark: a ``split``, pictures of ``size`` pixels a side, and the ``seed`` of the draws.

    ``pairs`` of every sentence, plain and as many wrapped: fewer are the first of all.
    """

    name: str = "iconworld"
    split: str = "test"
    seed: int = 0
    size: int = SIZE
    pairs: int = PAIRS_PER_TEMPLATE
    kind: ClassVar[Kind] = "yes_no"
    clusters_recur: ClassVar[bool] = True  # both splits show the same things to the same sentences, by other pictures

    def __post_init__(self) -> None:
        if self.split not in get_args(Split):
            raise UserError(f"benchmark.split={self.split!r}: must be one of {', '.join(get_args(Split))}")
        if not 16 <= self.size <= 2048:
            raise UserError(f"benchmark.size={self.size}: must lie between 16 and 2048 pixels")
        if not 1 <= self.pairs <= PAIRS_PER_TEMPLATE:
            raise UserError(f"benchmark.pairs={self.pairs}: of a sentence there are 1 to {PAIRS_PER_TEMPLATE}")

    def load(self) -> Loaded:
        """Return the ``cases``."""
        return Loaded(self.cases(), missing={}, manifest="")

    def cases(self) -> list[Sample]:
        """Return all cases of the split: scored pairs first, then the controls."""
        split: Any = self.split
        if split == "conversations":
            return conversation_cases(self.seed, self.size, self.pairs)
        return scored_cases(split, self.seed, self.size, self.pairs) + control_cases(split, self.seed, self.size)

    def development(self) -> Loaded | None:
        """Return the development split, on which thresholds may be chosen; None if it is the evaluated split."""
        return None if self.split == "development" else replace(self, split="development").load()
