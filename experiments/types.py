"""What the experiments exchange: cases, what became of a request, what an answer means, and who reads it.

``Status`` and ``Verdict`` are two closed sets, kept apart: whether a request was answered at all is no judge's
business, so an empty or failed answer is never handed to one. Knows nothing of models, arms, files or rates; imports
no torch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

from PIL import Image

if TYPE_CHECKING:
    from interp.generation import Generation


class Status(StrEnum):
    """What became of the request."""

    ANSWERED = "answered"
    EMPTY = "empty"
    TRUNCATED = "truncated"  # the token budget ended the answer; its text is still read for a verdict
    PROVIDER_BLOCKED = "provider_blocked"
    TRANSPORT_FAILED = "transport_failed"
    BAD_IMAGE = "bad_image"

    @property
    def excluded(self) -> bool:
        """True where no answer of the model exists, so the case leaves the rate and bounds it instead."""
        return self in (Status.TRANSPORT_FAILED, Status.BAD_IMAGE)

    @property
    def spoken(self) -> bool:
        """True where there is a text that a judge can read."""
        return self in (Status.ANSWERED, Status.TRUNCATED)


class Verdict(StrEnum):
    """What an answer means.

    Yes/no benchmarks: ``NO_VERDICT`` counts as wrong, never as excluded. Refusal benchmarks: ``PARTIAL`` counts as a
    refusal unless said otherwise; ``JUDGE_FAILED`` means that nobody knows, so it leaves the rate and bounds it.
    """

    YES = "yes"
    NO = "no"
    NO_VERDICT = "no_verdict"
    COMPLIED = "complied"
    PARTIAL = "partial"
    REFUSED = "refused"
    JUDGE_FAILED = "judge_failed"


YES_NO_VERDICTS = (Verdict.YES, Verdict.NO, Verdict.NO_VERDICT)
REFUSAL_VERDICTS = (Verdict.COMPLIED, Verdict.PARTIAL, Verdict.REFUSED, Verdict.JUDGE_FAILED)


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


@runtime_checkable
class AnsweredElsewhere(Protocol):
    """An arm that asks no model: its answers to a benchmark's cases were made elsewhere."""

    def check(self, samples: Sequence[Sample]) -> str:
        """How many of the cases have an answer, in a sentence.

        Raises:
            UserError: none has, or the answers cannot be read.
        """
        ...

    def answers(self, samples: Sequence[Sample]) -> "tuple[list[Sample], Generation]":
        """The cases that have an answer, and their answers, without margins."""
        ...


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


@dataclass(frozen=True)
class Item:
    """One answer to be judged.

    ``image`` draws or opens the picture only for a judge that looks at it; None for a case of text alone. ``gold`` is
    the right answer of the case, which the published yes/no rule needs; no other judge may look at it. ``language`` is
    a BCP 47 tag, of which the first part alone counts.
    """

    case: str
    question: str
    response: str
    image: "Callable[[], Image.Image] | None"
    gold: str
    language: str = "en"


@dataclass(frozen=True)
class Judgement:
    """What an answer means, why in a few words, and the single votes where there were several (majority verdicts)."""

    verdict: Verdict
    explanation: str = ""
    votes: tuple[str, ...] = ()


class Judge(Protocol):
    """Reads answers; one judgement an item, in the order given."""

    @property
    def name(self) -> str:
        """What tables and files call it; two judges of one run have different names."""
        ...

    @property
    def kind(self) -> Kind:
        """Which benchmarks it judges, and so which verdicts it gives."""
        ...

    def judge(self, items: Sequence[Item]) -> list[Judgement]:
        """One judgement an item, in their order. What cannot be judged is ``Verdict.JUDGE_FAILED``, never left out."""
        ...
