"""What a rule concluded from numbers, apart from the words in which a report says it.

The rules stand beside the numbers, in ``experiments.metrics`` and in the studies; ``experiments.report.findings`` turns
findings into sentences. Whoever edits a sentence cannot change what was concluded.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Answer(StrEnum):
    """Every answer that a rule can give; which of them a question can have is said where it is decided."""

    YES = "yes"
    PARTLY = "partly"
    NO_FAILURE = "no failure"
    NO_SUCCESS = "no success"
    NOT_SHOWN = "not shown"  # the interval contains no difference
    CANNOT_TELL = "cannot tell"  # there is no such number here
    ROSE = "rose"
    FELL = "fell"
    MORE = "more"
    LESS = "less"
    TOWARDS = "towards"  # the right answer
    AWAY = "away"
    BEFORE = "before"
    AT_ONCE = "at once"
    AFTER = "after"
    NOWHERE = "nowhere"
    NEVER_ARRIVES = "never arrives"
    SENTENCE = "sentence"
    PICTURE = "picture"
    NEITHER = "neither"


def side(entry: Mapping[str, Any], of: float = 0.0) -> int:
    """1 where the whole interval of ``entry`` (``low``, ``high``) lies above ``of``, −1 where below, else 0."""
    if entry["low"] is None or entry["high"] is None:
        return 0
    return int(entry["low"] > of) - int(entry["high"] < of)


@dataclass(frozen=True)
class Finding:
    """A question by its name, the answer, and the plain numbers that it rests on."""

    question: str
    answer: Answer
    evidence: Mapping[str, Any]
