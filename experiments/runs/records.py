"""Records, the lines of predictions.jsonl: one answer of one arm to one case."""

import math
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from experiments.types import Judgement, Sample, Status

if TYPE_CHECKING:
    from interp.vlm import Generation


OF_JUDGES = ("verdict", "judge", "explanation", "votes")


def current(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The current records: a later one of a case and arm replaces the earlier one, at its position."""
    latest: dict[tuple[str, str], dict[str, Any]] = {}
    for record in lines:
        latest[record["case"], record["arm"]] = record
    return list(latest.values())


def ordered(lines: Iterable[dict[str, Any]], arms: Sequence[str]) -> list[dict[str, Any]]:
    """Records by arm, in the order of ``arms``, and by case, numbers in an id by their value.

    So it matters not which process has written a record, nor when. Other arms come last, in the order of their first
    records.
    """
    lines = list(lines)
    order = {arm: at for at, arm in enumerate(dict.fromkeys([*arms, *(record["arm"] for record in lines)]))}
    return sorted(lines, key=lambda record: (order[record["arm"]], _natural(str(record["case"]))))


def _natural(identity: str) -> list[str | int]:
    return [int(word) if at % 2 else word for at, word in enumerate(re.split(r"(\d+)", identity))]


def status_of(generation: "Generation", index: int) -> Status:
    """The status of one request: the generation's own, or else by its text and whether it ended."""
    if generation.statuses is not None:
        return Status(generation.statuses[index])
    if not generation.texts[index]:
        cut = bool(generation.thoughts and generation.thoughts[index]) and not generation.finished[index]
        return Status.TRUNCATED if cut else Status.EMPTY
    return Status.ANSWERED if generation.finished[index] else Status.TRUNCATED


def answered(
    sample: Sample,
    arm: str,
    generation: "Generation",
    index: int,
    *,
    status: Status,
    response: str,
    judgement: Judgement | None,
    judge: str,
    published_verdict: str | None,
) -> dict[str, Any]:
    """Return the record of answer ``index`` of a generation; a field that says nothing is left out.

    ``judgement`` is None if a refusal judge had nothing to read. ``published_verdict`` is the verdict of the published
    yes/no rule, None for refusal benchmarks. A margin that is not finite becomes null. ``margin_is`` says of a margin
    that replies only bound whether it is ``exact``, a ``bound`` or ``undecided`` (0 lies between the bounds).
    ``verdict_step`` counts the tokens before the token that the margin is read at. The other fields are those of
    ``interp.generation.Generation``.
    """

    def of_row(name: str, default: Any = None) -> Any:
        rows = getattr(generation, name)
        return default if rows is None else rows[index]

    margin, thought = float(generation.margins[index]), of_row("thoughts", "")
    unshifted, bounds = of_row("unshifted"), of_row("bounds")
    fields = {
        "sampled": generation.sampled,
        "branch": generation.branch,
        "branch_margins": {name: _finite(each) for name, each in of_row("branch_margins", {}).items()},
        "steps": {name: writable(text) for name, text in of_row("steps", {}).items()},
        "prompt": writable(of_row("prompts", "")),
        "reason": writable(of_row("reasons", "")),
        "thought": writable(thought),
        "thought_tokens": of_row("thought_tokens", 0) if thought else 0,
        "verdict_step": of_row("verdict_steps", 0),
    }
    return {
        **_common(sample, arm),
        "status": status.value,
        **judge_fields(judgement, judge),
        "published_verdict": published_verdict,
        "response": writable(response),
        "margin": _finite(margin),
        **({} if unshifted is None else {"margin_unshifted": _finite(float(unshifted))}),
        **({} if bounds is None else _bounded(margin, *bounds)),
        **{name: value for name, value in fields.items() if value},
    }


def _bounded(margin: float, low: float, high: float) -> dict[str, Any]:
    if low == high or math.isnan(low):
        return {} if math.isnan(low) else {"margin_is": "exact"}
    kind = "bound" if math.isfinite(margin) else "undecided"
    return {"margin_is": kind, "margin_low": _finite(low), "margin_high": _finite(high)}


def _finite(margin: float) -> float | None:
    return margin if math.isfinite(margin) else None


def judge_fields(judgement: Judgement | None, judge: str) -> dict[str, Any]:
    """The fields of a record that rejudging replaces (``OF_JUDGES``)."""
    if judgement is None:
        return {"verdict": None, "judge": judge}
    fields: dict[str, Any] = {"verdict": judgement.verdict.value, "judge": judge}
    if judgement.explanation:
        fields["explanation"] = writable(judgement.explanation)
    if judgement.votes:
        fields["votes"] = list(judgement.votes)
    return fields


def failed(sample: Sample, arm: str, status: Status, reason: str) -> dict[str, Any]:
    """The record of a case without an answer, with the reason in words."""
    return _common(sample, arm) | {
        "status": status.value,
        "verdict": None,
        "published_verdict": None,
        "response": None,
        "margin": None,
        "reason": writable(reason),
    }


def _common(sample: Sample, arm: str) -> dict[str, Any]:
    described = description(sample)
    return {
        "case": sample.id,
        "arm": arm,
        "settings": "",  # filled in by whoever asked
        **{name: described.pop(name) for name in ("subset", "scenario")},
        "gold": sample.gold,
        **described,
        "text": writable(sample.text),
    }


def description(sample: Sample) -> dict[str, Any]:
    """The fields of a record that say where a case belongs, and do not change its answer."""
    return {
        "subset": sample.subset,
        "scenario": sample.scenario,
        "cluster": sample.cluster,
        "pair": sample.pair,
        "tags": dict(sample.tags),
        **({"alarming": True} if sample.alarming else {}),
        **({"subset_name": writable(sample.subset_name)} if sample.subset_name else {}),
    }


def writable(text: str) -> str:
    """The text as valid UTF-8: a lone surrogate, which foreign JSON may contain, becomes "?"."""
    return text.encode("utf-8", errors="replace").decode("utf-8")


def now() -> str:
    """The current time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
