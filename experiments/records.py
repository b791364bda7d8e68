"""The lines of predictions.jsonl: what is written of a case under an arm. Pure; knows no files."""

from datetime import UTC, datetime
from typing import Any

from experiments.benchmarks.sample import Sample
from experiments.judges.yes_no import anchored, published_verdict
from experiments.outcomes import Status
from experiments.store import Key


def key(record: dict[str, Any]) -> Key:
    """What makes a record unique: case, arm, and the hash of the settings that can change its answer."""
    return record["case"], record["arm"], record["settings"]


def answered(
    sample: Sample, arm: str, settings: str, *, response: str, margin: float, finished: bool
) -> dict[str, Any]:
    """A record of an answer: its status, and apart from it the verdict that the default rule reads in it."""
    spoken = Status.ANSWERED if finished else Status.TRUNCATED
    status = spoken if response else Status.EMPTY
    return _common(sample, arm, settings) | {
        "status": status.value,
        "verdict": anchored(response).value,
        "published_verdict": published_verdict(response),
        "response": response,
        "margin": margin,
    }


def failed(sample: Sample, arm: str, settings: str, status: Status, reason: str) -> dict[str, Any]:
    """A record of a case that got no answer, with the reason in words."""
    return _common(sample, arm, settings) | {
        "status": status.value,
        "verdict": None,
        "published_verdict": None,
        "response": None,
        "margin": None,
        "reason": reason,
    }


def _common(sample: Sample, arm: str, settings: str) -> dict[str, Any]:
    return {
        "case": sample.id,
        "arm": arm,
        "settings": settings,
        "subset": sample.subset,
        "scenario": sample.scenario,
        "gold": sample.gold,
        "cluster": sample.cluster,
        "pair": sample.pair,
        "tags": dict(sample.tags),
        "text": sample.text,
    }


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
