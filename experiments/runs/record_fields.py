"""Records, the lines of predictions.jsonl: one answer of one arm to one case."""

import math
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.runs.store import PREDICTIONS, complete_lines, read_object
from experiments.types import Judgement, Sample, Status
from interp.errors import UserError

if TYPE_CHECKING:
    from interp.vlm import Generation


RECORD_KEYS = ("case", "arm", "status", "verdict", "response", "margin", "subset", "gold", "text")
WAY_OUT = "repeat the run's command, which finishes what is missing without repeating what is there"
BEGINS = 12  # tokens of an answer in words that its record keeps, for refusal margins
OF_JUDGES = ("verdict", "judge", "explanation", "votes")


def current(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the current records: a later one of a case and arm replaces the earlier one, at its position."""
    return list({(record["case"], record["arm"]): record for record in lines}.values())


def ordered(lines: Iterable[dict[str, Any]], arms: Sequence[str]) -> list[dict[str, Any]]:
    """Return records by arm, in the order of ``arms``, and by case, numbers in an id by their value.

    So the order does not depend on the process that wrote a record. Other arms come last, by their first record.
    """
    lines = list(lines)
    order = {arm: rank for rank, arm in enumerate(dict.fromkeys([*arms, *(record["arm"] for record in lines)]))}
    return sorted(lines, key=lambda record: (order[record["arm"]], _natural(str(record["case"]))))


def _natural(identity: str) -> list[str | int]:
    parts = re.split(r"(\d+)", identity)
    return [int(part) if number % 2 else part for number, part in enumerate(parts)]


def status_of(generation: "Generation", index: int) -> Status:
    """Return the status of one request: the generation's own, or else by its text and whether it ended."""
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
    ``verdict_step`` counts the tokens before the token that the margin is read at. Of an answer in words,
    ``answer_tokens`` are the first tokens, and ``answer_prefix`` the tokens of the thought before them.
    ``interp.generation.Generation`` explains the other fields.
    """

    def of_row(name: str, default: Any = None) -> Any:
        rows = getattr(generation, name)
        return default if rows is None else rows[index]

    margin, thought = float(generation.margins[index]), of_row("thoughts", "")
    start = (of_row("verdict_steps") or of_row("thought_tokens", 0)) if thought else 0
    tokens = [int(token) for token in generation.token_ids[index]] if sample.gold in ("comply", "refuse") else []
    begins = tokens[start : start + BEGINS]
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
        "answer_prefix": tokens[:start] if begins else [],
        "answer_tokens": begins,
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
    """Return the fields of a record that rejudging replaces (``OF_JUDGES``)."""
    if judgement is None:
        return {"verdict": None, "judge": judge}
    more = {"explanation": writable(judgement.explanation or ""), "votes": list(judgement.votes or ())}
    return {"verdict": judgement.verdict.value, "judge": judge} | {name: value for name, value in more.items() if value}


def failed(sample: Sample, arm: str, status: Status, reason: str) -> dict[str, Any]:
    """Return the record of a case without an answer, with the reason in words."""
    absent = dict.fromkeys(("verdict", "published_verdict", "response", "margin"))
    return _common(sample, arm) | {"status": status.value, **absent, "reason": writable(reason)}


def _common(sample: Sample, arm: str) -> dict[str, Any]:
    """Return the fields of every record; whoever asked fills in the settings."""
    described = description(sample)
    first = {"case": sample.id, "arm": arm, "settings": "", "subset": described.pop("subset")}
    scenario = {"scenario": described.pop("scenario"), "gold": sample.gold}
    return {**first, **scenario, **described, "text": writable(sample.text)}


def description(sample: Sample) -> dict[str, Any]:
    """Return the fields of a record that say where a case belongs, and do not change its answer."""
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
    """Return the text as valid UTF-8: a lone surrogate, which foreign JSON may contain, becomes "?"."""
    return text.encode("utf-8", errors="replace").decode("utf-8")


def timestamp() -> str:
    """Return the current time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def read_records(run_dir: Path, keys: Sequence[str] = ("case", "arm")) -> list[dict[str, Any]]:
    """Read the records of a run, by arm and case, each with ``keys``; of several with one (case, arm) the last counts.

    The arms are in the order of the run's configuration.

    Raises:
        UserError: there are none, or a line is not a record with ``keys``.
    """
    lines = []
    for path, number, record in complete_lines(run_dir / PREDICTIONS):
        where = f"{path}, line {number}"
        if isinstance(record, ValueError):
            raise UserError(f"{where}: not JSON ({record}); {WAY_OUT}")
        if not isinstance(record, dict) or (absent := [key for key in keys if key not in record]):
            lacks = f"lacks {', '.join(absent)}" if isinstance(record, dict) else "is no JSON object"
            raise UserError(f"{where}: {lacks}; every prediction is a record with these; {WAY_OUT}")
        if record.get("status", Status.ANSWERED) not in list(Status):
            raise UserError(f"{where}: status {record['status']!r} is not one of {', '.join(Status)}; {WAY_OUT}")
        lines.append(record)
    if not lines:
        raise UserError(f"{run_dir / PREDICTIONS} is missing or empty; give the directory of a finished run")
    configured = (read_object(run_dir / "environment.json").get("config") or {}).get("arms") or {}
    return ordered(current(lines), list(configured))
