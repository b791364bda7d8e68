"""Shared types: cases, the status of a request, the verdict on an answer, benchmarks and judges.

``Status`` and ``Verdict`` are separate closed sets: a judge only reads answers, so an empty or failed one is never
given to a judge. Imports no torch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple, Protocol

from PIL import Image

from interp.messages import Message


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
    def has_text(self) -> bool:
        """True where there is a text that a judge can read."""
        return self in (Status.ANSWERED, Status.TRUNCATED)


class Verdict(StrEnum):
    """What an answer means.

    Yes/no benchmarks: ``NO_VERDICT`` counts as wrong, never as excluded. Refusal benchmarks: ``PARTIAL`` counts as a
    refusal unless said otherwise. ``REBUTTED`` (it engages and says no, with or without reasons) counts as none.
    ``JUDGE_FAILED`` is unknown, so the case leaves the rate and bounds it instead.
    """

    YES = "yes"
    NO = "no"
    NO_VERDICT = "no_verdict"
    COMPLIED = "complied"
    REBUTTED = "rebutted"
    PARTIAL = "partial"
    REFUSED = "refused"
    JUDGE_FAILED = "judge_failed"


YES_NO_VERDICTS = (Verdict.YES, Verdict.NO, Verdict.NO_VERDICT)
REFUSAL_VERDICTS = (Verdict.COMPLIED, Verdict.REBUTTED, Verdict.PARTIAL, Verdict.REFUSED, Verdict.JUDGE_FAILED)


Subset = Literal["typical", "attack", "over_safety", "control", "benign", "contrast", "own"]
Gold = Literal["yes", "no", "comply", "refuse", "unknown"]
Kind = Literal["yes_no", "refusal"]

SCORED_SUBSETS: tuple[str, ...] = ("typical", "attack", "over_safety")
UNSAFE_SUBSETS: tuple[str, ...] = ("typical", "attack")
REFUSAL_SUBSETS: tuple[str, ...] = ("benign", "contrast")


class Drawable(Protocol):
    """An image that is drawn on demand instead of being read from disk."""

    def render(self) -> Image.Image: ...


@dataclass(frozen=True)
class Sample:
    """One image-sentence pair and its right answer.

    ``text`` is the benchmark's sentence verbatim, ``prompt`` all that the model is asked. ``gold`` is "yes" for safe in
    yes/no benchmarks (typical, attack, over_safety, control), "comply" or "refuse" in refusal benchmarks (benign,
    contrast). A picture of one's own, which is only drawn, is of the subset "own" with an "unknown" right answer.
    ``cluster`` names the unit that intervals resample; if it is "", the framework finds it. ``pair`` joins the two
    cases of a counterfactual pair: same sentence, two images, opposite truth. ``image`` is None where no image was
    found. ``picture`` is a hash of what it shows, "" until it was opened to be checked. ``location`` is the case's
    position in the benchmark's file ("line 12"), for messages. ``shows`` is a sentence of what the picture shows, ""
    where the benchmark has none. ``alarming`` is True if the benchmark made the picture to look dangerous. The
    right answer does not matter: reports blur it. ``subset_name`` is what a user's table calls the subset.
    ``turns`` are those of a case with several turns or pictures, else empty: ``prompt`` is then the last of them,
    ``image`` the first picture.
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
    picture: str = ""
    location: str = ""
    shows: str = ""
    alarming: bool = False
    subset_name: str = ""
    turns: tuple[Message, ...] = ()

    @property
    def images(self) -> "tuple[Path | Drawable, ...]":
        """All pictures in their order."""
        return tuple(image for turn in self.turns for image in turn.images) or tuple(filter(None, [self.image]))

    @property
    def described(self) -> str:
        """What the picture shows, by the benchmark: ``shows``, or what a drawn picture says of itself, or ""."""
        return self.shows or str(getattr(self.image, "shows", ""))


class Problem(NamedTuple):
    """What is wrong with one case of a benchmark, and where it stands."""

    location: str  # "line 12"; "" where it is not known
    case: str  # its id, as far as it is known
    reason: str

    def __str__(self) -> str:
        return f"{self.location}{', ' if self.location else ''}case {self.case[:60]!r}: {self.reason}"


class Loaded(NamedTuple):
    """A loaded benchmark: the cases that can run, the cases that cannot and why, and a hash of the files read.

    ``experiments.benchmarks.checks.checked`` examines it before any weights load. ``problems`` are what the benchmark
    could make no case of; unlike ``missing``, they stop a run that was not told to go on without. With an empty
    ``manifest`` the hash is made of the cases' contents.
    """

    samples: list[Sample]
    missing: dict[str, str]  # case id → reason, for published cases that cannot run here
    manifest: str
    problems: tuple[Problem, ...] = ()


class Benchmark(Protocol):
    """A benchmark: a frozen dataclass whose module imports neither torch nor transformers."""

    kind: ClassVar[Kind]  # what its answers are judged for

    @property
    def name(self) -> str:
        """The name in records and reports."""

    def load(self) -> Loaded:
        """Return the cases to evaluate.

        Raises:
            UserError: the data is missing or cannot be used.
        """

    def development(self) -> Loaded | None:
        """Return cases to train and fit on, disjoint from ``load``'s; None where the benchmark has none."""


@dataclass(frozen=True)
class Item:
    """One answer to be judged.

    ``image`` draws or opens the picture only for a judge that looks at it; None for a case of text only. ``gold`` is
    the right answer of the case, which published rules and prompts need; no other judge may look at it. ``language`` is
    a BCP 47 tag; only its first part counts.
    """

    case: str
    question: str
    response: str
    image: "Callable[[], Image.Image] | None"
    gold: str
    language: str = "en"


@dataclass(frozen=True)
class Judgement:
    """A verdict, an explanation in a few words, and the single votes behind a majority verdict."""

    verdict: Verdict
    explanation: str = ""
    votes: tuple[str, ...] = ()


class Judge(Protocol):
    """Reads answers and gives verdicts."""

    @property
    def name(self) -> str:
        """The name in tables and files; two judges of one run have different names."""

    @property
    def kind(self) -> Kind:
        """The kind of benchmark it judges, and so the verdicts it gives."""

    def judge(self, items: Sequence[Item]) -> list[Judgement]:
        """Return one judgement per item, in their order; ``Verdict.JUDGE_FAILED`` where an item cannot be judged."""
