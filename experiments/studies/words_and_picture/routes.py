"""Edges of attention by the words at their ends: from the picture, or what is said of the thing, to "this" and on."""

from collections.abc import Mapping

from experiments.benchmarks.iconworld.sentences import PREFIX
from experiments.studies.words_and_picture.conditions import POINTS, QUESTION
from interp.segments import WORD, RowSegments
from interp.tools.knockout import Edge, End

_OPENS = {WORD.findall(question)[0] for question in (PREFIX, QUESTION)}  # the first word of the question


def this(row: RowSegments) -> list[int]:
    """The columns of "this"."""
    return [column for word in row.words if POINTS.fullmatch(word.text) for column in word.columns]


def caption_columns(row: RowSegments) -> list[int]:
    """The columns of what is said before the question: "There is a cockroach."; none where nothing is."""
    opens = next(word.columns[0] for word in row.words if word.text in _OPENS)
    return [column for column in row.columns("user") if column < opens]


def question(row: RowSegments) -> list[int]:
    """The columns of the question and of what it asks about."""
    return sorted(set(row.columns("user")) - set(caption_columns(row)))


def other_words(row: RowSegments) -> list[int]:
    """The columns of the question but for "this"."""
    return sorted(set(question(row)) - set(this(row)))


def onward(source: End) -> list[Edge]:
    """From ``source`` to all that stands behind it."""
    if source == "image":
        return [(source, "user"), (source, "template"), (source, "verdict")]
    return [(source, question), (source, "template"), (source, "verdict")]


def routes(source: End) -> Mapping[str, list[Edge]]:
    """What may be cut between ``source``, "this" and the verdict, by name."""
    return {
        "source → this": [(source, this)],
        "source → verdict": [(source, "verdict")],
        "source → other words": [(source, other_words), (source, "template")],
        "this → verdict": [(this, "verdict")],
        "source → all": onward(source),
    }
