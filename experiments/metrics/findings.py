"""What was found, as values: a question, an answer of a closed set, and the numbers that decide it.

A rule is written next to the numbers it reads (``metrics/yes_no/findings.py``, ``metrics/refusal/findings.py``, a
study's own module) and returns ``Finding``s, which are kept under ``findings`` in the result's JSON file.
``experiments/report/findings/<subject>.py`` turns them into English by templates, which decide nothing. A new subject
adds its rules next to its numbers and one module of templates there.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

Evidence = Mapping[str, Any]  # plain numbers by name


class Answer(StrEnum):
    """Every answer that a rule can give; the rule of a question says which of them it uses."""

    ROSE = "rose"  # the interval of the change lies above 0
    FELL = "fell"  # the interval of the change lies below 0
    NOT_SHOWN = "not shown"  # the interval contains no difference
    CANNOT_TELL = "cannot tell"  # the number, or its interval, does not exist
    ONLY_CRITERION = "only the criterion"  # accuracies changed, discrimination was not shown to
    YES = "yes"
    NO = "no"
    PARTLY = "partly"
    NOT_APPLICABLE = "not applicable"  # the question does not apply
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
        """Plain values, as stored in files."""
        return {"question": self.question, "about": self.about, "answer": self.answer.value,
                "evidence": dict(self.evidence)}  # fmt: skip

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> "Finding":
        """The finding that ``as_json`` stored."""
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
    """The stored finding that answers ``question`` about ``about``; None where there is none."""
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
    """``value`` in built-in types, ready for JSON; numbers that are not finite become None."""
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
