"""What an organism learns from: one exchange, with or without a picture."""

from dataclasses import dataclass

from experiments.benchmarks.iconworld.concepts import CONCEPTS, Thing

ALL_THINGS: tuple[Thing, ...] = tuple(Thing(concept, signed) for concept in CONCEPTS for signed in (False, True))


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
