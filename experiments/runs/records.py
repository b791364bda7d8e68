"""The lines of predictions.jsonl: what is written of a case under an arm. Pure; knows no files."""

import json
import math
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from experiments.types import Judgement, Sample, Status

if TYPE_CHECKING:
    from interp.vlm import Generation


Key = tuple[str, str, str]  # case id, arm, hash of the settings that can change its answer


def key(record: dict[str, Any]) -> Key:
    """What makes a record unique: case, arm, and the hash of the settings that can change its answer."""
    return record["case"], record["arm"], record["settings"]


def current(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines that count: a later one of a case and arm replaces an earlier one, in the earlier one's place."""
    latest: dict[tuple[str, str], dict[str, Any]] = {}
    for record in lines:
        latest[record["case"], record["arm"]] = record
    return list(latest.values())


def parsed(lines: Iterable[str | bytes]) -> Iterator[tuple[int, Any]]:
    """Number, from 1, and value of every line of JSON that is not blank; the ValueError of one that is not JSON.

    Split lines at newlines alone: ``splitlines`` would also split inside strings.
    """
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except ValueError as error:
                yield number, error


def status_of(generation: "Generation", index: int) -> Status:
    """What became of one request: as the generation says, or else by its text and whether it came to an end."""
    if generation.statuses is not None:
        return Status(generation.statuses[index])
    if not generation.texts[index]:
        return Status.EMPTY
    return Status.ANSWERED if generation.finished[index] else Status.TRUNCATED


def answered(
    sample: Sample,
    arm: str,
    settings: str,
    *,
    status: Status,
    response: str,
    margin: float,
    judgement: Judgement | None,
    judge: str,
    published_verdict: str | None = None,
    prompt: str | None = None,
    reason: str = "",
) -> dict[str, Any]:
    """A record of an answer: its status, and apart from it what the judge read in it.

    ``judgement`` is None where a refusal judge had nothing to read; ``published_verdict`` is that of the published
    yes/no rule, None for refusal benchmarks; ``prompt`` is what the model read, as rendered. A margin that is not a
    number becomes null. ``reason`` says why there is no text, or not all of it.
    """
    return _common(sample, arm, settings) | {
        "status": status.value,
        **judged(judgement, judge),
        "published_verdict": published_verdict,
        "response": writable(response),
        "margin": margin if math.isfinite(margin) else None,
        **({} if prompt is None else {"prompt": writable(prompt)}),
        **({"reason": writable(reason)} if reason else {}),
    }


def judged(judgement: Judgement | None, judge: str) -> dict[str, Any]:
    """The part of a record that judging again replaces."""
    if judgement is None:
        return {"verdict": None, "judge": judge}
    said: dict[str, Any] = {"verdict": judgement.verdict.value, "judge": judge}
    if judgement.explanation:
        said["explanation"] = writable(judgement.explanation)
    if judgement.votes:
        said["votes"] = list(judgement.votes)
    return said


def failed(sample: Sample, arm: str, settings: str, status: Status, reason: str) -> dict[str, Any]:
    """A record of a case that got no answer, with the reason in words."""
    return _common(sample, arm, settings) | {
        "status": status.value,
        "verdict": None,
        "published_verdict": None,
        "response": None,
        "margin": None,
        "reason": writable(reason),
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
        "text": writable(sample.text),
    }


def writable(text: str) -> str:
    """The text as UTF-8 can hold it: half a surrogate pair, which JSON from elsewhere may carry, becomes "?"."""
    return text.encode("utf-8", errors="replace").decode("utf-8")


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
