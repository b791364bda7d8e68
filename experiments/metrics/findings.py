"""What was found, as values: a question, an answer of a closed set, and the numbers that decide it.

A rule is written next to the numbers it reads (``metrics/yes_no/findings.py``, ``metrics/refusal/findings.py``, a
study's own module) and returns ``Finding``s, which are kept under ``findings`` in the result's JSON file.
``experiments/report/sentences/<subject>.py`` turns them into English by templates, which decide nothing. A new subject
adds its rules next to its numbers and one module of templates there.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

from experiments.metrics.bootstrap import FEWEST

Evidence = Mapping[str, Any]  # plain numbers by name


class Answer(StrEnum):
    """Every answer that a rule can give; the rule of a question says which of them it uses.

    Of a difference only the first six are said (``statement``).
    """

    ROSE = "rose"  # the interval lies above 0
    FELL = "fell"  # the interval lies below 0
    NO_CHANGE = "no change"  # of more than ``SMALL``: the interval contains 0 and lies within ± SMALL
    NOT_SHOWN = "not shown"  # all else
    TOO_FEW = "too few"  # clusters or pairs for an interval
    CANNOT_TELL = "cannot tell"  # the number does not exist
    YES = "yes"
    NO = "no"
    PARTLY = "partly"
    NOT_APPLICABLE = "not applicable"  # the question does not apply
    NO_FAILURE = "no failure"
    NO_SUCCESS = "no success"
    BEFORE = "before"
    AT_ONCE = "at once"
    AFTER = "after"
    NOWHERE = "nowhere"
    NEVER_ARRIVES = "never arrives"
    SENTENCE = "sentence"
    PICTURE = "picture"


RULES = 4  # version of what may be concluded, kept with all that was; what lacks it was concluded under earlier rules
SMALL = 0.02  # δ: 2 points of a rate, .02 of an AUROC; a change within ± δ is said to be small
_ROUNDING = 1e-4  # an end of an interval nearer to 0 counts as 0: float32 margins round by that much


def statement(entry: Mapping[str, Any] | None, *, small: float | None = SMALL) -> Answer:
    """What may be said of a difference: ROSE, FELL, NO_CHANGE, NOT_SHOWN, TOO_FEW, or CANNOT_TELL without a number.

    Args:
        entry: ``value``, ``low``, ``high``; optional ``clusters``, those of the smaller side, and ``bounds``, the
            lowest and the highest value that missing cases allow: nothing is said that does not hold at both.
        small: δ in the unit of the value; None where no size is agreed to be small, as for logits.
    """
    if entry is None or entry["value"] is None:
        return Answer.CANNOT_TELL
    if entry.get("clusters") is not None and entry["clusters"] < FEWEST:
        return Answer.TOO_FEW
    if entry["low"] is None or entry["high"] is None:
        return Answer.NOT_SHOWN
    lowest, highest = entry.get("bounds") or (entry["value"], entry["value"])
    if entry["low"] > _ROUNDING and lowest > 0:
        return Answer.ROSE
    if entry["high"] < -_ROUNDING and highest < 0:
        return Answer.FELL
    around_0 = entry["low"] <= _ROUNDING and entry["high"] >= -_ROUNDING
    small_at_both = within({"low": lowest, "high": highest}, small)
    return Answer.NO_CHANGE if around_0 and within(entry, small) and small_at_both else Answer.NOT_SHOWN


def stated(entry: Mapping[str, Any] | None) -> Answer:
    """The statement that ``entry`` carries; CANNOT_TELL without one."""
    return Answer((entry or {}).get("statement") or Answer.CANNOT_TELL)


def within(entry: Mapping[str, Any], small: float | None = SMALL) -> bool:
    """Whether the interval of ``entry`` lies within ± ``small``."""
    low, high = entry["low"], entry["high"]
    return small is not None and low is not None and high is not None and -small <= low and high <= small


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


def all_hold(question: str, met: Mapping[str, bool], about: str) -> Finding:
    """YES where every condition of ``met`` holds, else NO; the evidence names the first that does not (``decided``)."""
    decided = next((condition for condition, holds in met.items() if not holds), "")
    evidence = {"met": sum(met.values()), "of": len(met), "decided": decided}
    return Finding(question, Answer.NO if decided else Answer.YES, evidence, about)


def with_findings(
    metrics: Mapping[str, Any],
    limits: Callable[[Mapping[str, Any], Mapping[str, Any] | None, str], Iterable[Finding]],
) -> dict[str, Any]:
    """The contents of metrics.json in built-in types, with ``findings``: those of its comparisons, then its ``limits``.

    ``rules`` is the version of the rules by which it was concluded.

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
    return {**result, "rules": RULES, "findings": plain(compared) + limited}


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
