"""One case of a benchmark. Knows nothing of models, arms or files."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple, Protocol

from PIL import Image

Subset = Literal["typical", "attack", "over_safety", "control", "benign", "contrast"]
Gold = Literal["yes", "no", "comply", "refuse"]
Kind = Literal["yes_no", "refusal"]

SCORED_SUBSETS: tuple[Subset, ...] = ("typical", "attack", "over_safety")
UNSAFE_SUBSETS: tuple[Subset, ...] = ("typical", "attack")
REFUSAL_SUBSETS: tuple[Subset, ...] = ("benign", "contrast")


class Drawable(Protocol):
    """An image that is drawn when it is needed instead of being read from disk."""

    def render(self) -> Image.Image: ...


@dataclass(frozen=True)
class Sample:
    """One image-sentence pair and its right answer.

    ``text`` is the benchmark's sentence verbatim, ``prompt`` all that the model is asked. ``gold`` is "yes" for safe in
    yes/no benchmarks (typical, attack, over_safety, control), "comply" or "refuse" in refusal benchmarks (benign,
    contrast).
    ``cluster`` names the unit that intervals resample; ``pair`` joins the two members of a counterfactual pair (same
    sentence, two images, opposite truth). ``image`` is None where no image was found.
    """

    id: str
    subset: Subset
    scenario: str
    gold: Gold
    text: str
    prompt: str
    image: Path | Drawable | None
    cluster: str
    pair: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)


class Loaded(NamedTuple):
    """A benchmark as found: the cases that can run, what cannot and why, and a hash of what was read."""

    samples: list[Sample]
    missing: dict[str, str]  # case id → reason, for published cases that cannot run here
    manifest: str


class Benchmark(Protocol):
    """What a study needs of a benchmark: a frozen dataclass whose module imports neither torch nor transformers."""

    name: str
    kind: ClassVar[Kind]  # what its answers are read for

    def load(self) -> Loaded:
        """The cases to evaluate. Raises UserError where the data is not there."""
        ...

    def development(self) -> Loaded | None:
        """Cases on which thresholds may be chosen, disjoint from ``load``'s; None where the set has none."""
        ...
