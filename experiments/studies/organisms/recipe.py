"""The settings of an organism's training (``conf/recipe`` has the bundled ones'), and what it learns from. No torch."""

from dataclasses import dataclass, field

from experiments.benchmarks.iconworld.concepts import CONCEPTS, Thing
from interp.errors import UserError

ORGANISMS = ("llava", "smol")
ALL_THINGS: tuple[Thing, ...] = tuple(Thing(concept, signed) for concept in CONCEPTS for signed in (False, True))


@dataclass(frozen=True)
class Recipe:
    """One organism's training.

    ``steps`` and ``lr`` map a stage to its optimiser steps of ``batch_size`` examples and its highest learning rate.
    ``shares`` are fractions of 1: ``conf/recipe`` says of what. ``leanings``, of the first organism alone: how often
    the annotator who never looks calls a sentence safe, by template. ``together`` batches are drawn at once and sorted
    by length, so that little is padded. ``aligned``, of the second alone: whether it is aligned at all; without, it
    learns to see and nothing else.

    Raises:
        UserError: an unknown organism, one that cannot stay unaligned, a share outside 0 to 1, or a number below 1.
    """

    organism: str
    steps: dict[str, int]
    lr: dict[str, float]
    shares: dict[str, float]
    batch_size: int
    images_per_thing: int
    seed: int = 0
    threads: int = 2
    together: int = 1
    warmup: int = 50  # steps, at most a tenth of the stage
    weight_decay: float = 0.0
    rank: int = 16  # of the adapter, where there is one
    aligned: bool = True
    leanings: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.organism not in ORGANISMS:
            raise UserError(f"recipe.organism={self.organism!r}: must be one of {', '.join(ORGANISMS)}")
        if not self.aligned and self.organism != "smol":
            raise UserError(f"recipe.aligned=false: {self.organism} has no alignment to leave out; only smol has")
        for kind, shares in (("shares", self.shares), ("leanings", self.leanings)):
            for name, value in shares.items():
                if not 0 <= value <= 1:
                    raise UserError(f"recipe.{kind}.{name}={value}: a share must lie between 0 and 1")
        if set(self.lr) != set(self.steps):
            raise UserError(f"recipe: steps are of {', '.join(self.steps)}, lr of {', '.join(self.lr)}; name the same")
        numbers = (self.batch_size, self.images_per_thing, self.threads, self.together, self.warmup, self.rank)
        if min(*numbers, *self.steps.values()) < 1:
            raise UserError("recipe: steps, batch_size and the other counts must be at least 1")


@dataclass(frozen=True)
class Example:
    """One exchange. The picture is drawn later, from the pool of ``thing``; None: there is no picture.

    ``frame`` names the frame of a text example about safety, ``safe`` its truth, and ``verdict`` says whether it is
    answered Yes or No.
    """

    user: str
    answer: str
    thing: Thing | None = None
    system: str | None = None
    frame: str = ""
    safe: bool | None = None
    verdict: bool = False
