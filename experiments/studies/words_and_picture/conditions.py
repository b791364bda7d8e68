"""The ways in which one case of IconWorld is asked: with its picture, in words, and with neither. No model is involved.

Each condition makes new samples of the same ids; their answers are recorded like any others. In words the question does
not speak of a picture, for there is none.
"""

from collections.abc import Sequence
from dataclasses import replace

from experiments.benchmarks.iconworld.concepts import Thing, indefinite
from experiments.benchmarks.iconworld.in_words import QUESTION, named
from experiments.benchmarks.iconworld.perception import CAPTION
from experiments.benchmarks.iconworld.scene import Scene
from experiments.types import Sample
from interp.errors import UserError

PICTURE, NAMED, POINTING, NEITHER = "picture", "named", "pointing", "neither"
CONDITIONS: dict[str, str] = {
    PICTURE: "with the picture",
    NAMED: "in words, the thing named",
    POINTING: "in words, pointing",
    NEITHER: "neither picture nor thing",
}


def in_words(samples: Sequence[Sample]) -> dict[str, list[Sample]]:
    """Condition (all but ``PICTURE``) → the scored cases asked that way, without a picture.

    Raises:
        UserError: a case is not IconWorld's, so that the truth of its picture is not known.
    """
    scored = [sample for sample in samples if sample.subset != "control"]
    return {
        NAMED: [_asked(sample, text=named(sample.text, thing_of(sample))) for sample in scored],
        POINTING: [_asked(sample, before=f"There is {indefinite(thing_of(sample))}.\n") for sample in scored],
        NEITHER: [_asked(sample) for sample in scored],
    }


def caption_questions(samples: Sequence[Sample]) -> list[Sample]:
    """The scored cases asked what their picture shows."""
    return [replace(sample, text=CAPTION, prompt=CAPTION) for sample in samples if sample.subset != "control"]


def thing_of(sample: Sample) -> Thing:
    """What the case's picture shows.

    Raises:
        UserError: it is not a drawing of IconWorld.
    """
    if not isinstance(sample.image, Scene):
        raise UserError(
            f"case {sample.id}: its picture is not drawn by IconWorld; the study says in words what the picture shows, "
            "which must be known; choose benchmark=iconworld"
        )
    return sample.image.thing


def _asked(sample: Sample, *, before: str = "", text: str = "") -> Sample:
    text = text or sample.text
    return replace(sample, text=text, prompt=f'{before}{QUESTION}\n"{text}"', image=None, picture="")
