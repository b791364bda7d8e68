"""What was found, as values: a question, an answer of a closed set, and the numbers that decide it.

Rules decide, sentences only say: a rule stands beside the numbers it reads (``metrics/yes_no/findings.py``,
``metrics/refusal/findings.py``, a study's own module) and returns ``Finding``s; they are kept in the JSON file of the
result under ``findings``; ``experiments/report/findings/<subject>.py`` turns them into English by templates and never
looks at an interval to choose one. A new subject adds its rules beside its numbers, and one module of templates there.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

Evidence = Mapping[str, Any]  # plain numbers by name


class Answer(StrEnum):
    """Every answer that a rule can give; which of them a question can have is said where it is decided."""

    ROSE = "rose"  # the interval of the change lies above 0
    FELL = "fell"  # the interval of the change lies below 0
    NOT_SHOWN = "not shown"  # the interval contains no difference
    CANNOT_TELL = "cannot tell"  # there is no such number here, or no interval of it
    ONLY_CRITERION = "only the criterion"  # accuracies changed, discrimination was not shown to
    YES = "yes"
    NO = "no"
    PARTLY = "partly"
    NOT_APPLICABLE = "not applicable"  # the question makes no sense here
    NO_FAILURE = "no failure"
    NO_SUCCESS = "no success"
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
    """The answer to ``question`` about ``about`` (an arm, a layer, a mode; empty for the whole run)."""

    question: str
    answer: Answer
    evidence: Evidence = field(default_factory=dict)
    about: str = ""

    def as_json(self) -> dict[str, Any]:
        """Plain values, as the files keep it."""
        return {"question": self.question, "about": self.about, "answer": self.answer.value,
                "evidence": dict(self.evidence)}  # fmt: skip

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> "Finding":
        """The same from a file."""
        return cls(str(kept["question"]), Answer(kept["answer"]), dict(kept["evidence"]), str(kept.get("about", "")))


def direction(entry: Mapping[str, Any] | None, *, rounding: float = 0.0) -> Answer:
    """ROSE, FELL or NOT_SHOWN by the interval of a change (``low``, ``high``); CANNOT_TELL without one.

    An end nearer to 0 than ``rounding`` counts as 0.
    """
    if entry is None or entry["low"] is None or entry["high"] is None:
        return Answer.CANNOT_TELL
    if entry["low"] > rounding:
        return Answer.ROSE
    return Answer.FELL if entry["high"] < -rounding else Answer.NOT_SHOWN


def change_evidence(entry: Mapping[str, Any] | None, prefix: str = "") -> dict[str, float | int | None]:
    """A change as evidence: ``value``, ``low``, ``high``, and ``from``, ``to``, ``n`` where it has them."""
    return {f"{prefix}{key}": value for key, value in (entry or {}).items()}


def found(findings: Iterable[Mapping[str, Any]], question: str, about: str = "") -> Finding | None:
    """The finding of a file's ``findings`` that answers ``question`` about ``about``; None where nobody asked."""
    kept = (one for one in findings if (one["question"], one.get("about", "")) == (question, about))
    return next((Finding.from_json(one) for one in kept), None)


def whether(question: str, holds: bool, evidence: Evidence, about: str) -> Finding:
    """A finding whose answer is YES or NO."""
    return Finding(question, Answer.YES if holds else Answer.NO, evidence, about)


def with_findings(
    metrics: Mapping[str, Any],
    limits: Callable[[Mapping[str, Any], Mapping[str, Any] | None, str], Iterable[Finding]],
) -> dict[str, Any]:
    """The contents of metrics.json in built-in types, with ``findings``: those of its comparisons, then its ``limits``.

    ``metrics`` has ``arms`` and ``comparisons``; the latter's own ``findings`` are moved. ``limits`` takes the block of
    an arm, its comparison (None without one) and its name.
    """
    compared = [one for comparison in metrics["comparisons"].values() for one in comparison.pop("findings")]
    result = plain(metrics)
    limited = [
        one.as_json()
        for name, block in result["arms"].items()
        for one in limits(block, result["comparisons"].get(name), name)
    ]
    return {**result, "findings": plain(compared) + limited}


def plain(value: Any) -> Any:
    """The same with built-in types only, so that JSON can hold it; what is not finite becomes None."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if value is None:
        return None
    if isinstance(value, str):
        return str(value)
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    return [plain(item) for item in value]
