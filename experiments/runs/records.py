"""Records, the lines of predictions.jsonl: one answer of one arm to one case.

Every process of a run appends to files of its own: the first one to ``predictions.jsonl``, the next ones to
``predictions.1.jsonl`` and so on. Together, in this order, they are the run's lines; they are never merged.
"""

import glob
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.types import Judgement, Sample, Status

if TYPE_CHECKING:
    from interp.vlm import Generation


OF_JUDGES = ("verdict", "judge", "explanation", "votes")
_NUMBERED = re.compile(r"\.\d+\.jsonl$")
SHIFT_RANGE = "shift_range"  # of a baseline's record: the constants between which its first token stays


def current(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The current records: a later one of a case and arm replaces the earlier one, at its position."""
    latest: dict[tuple[str, str], dict[str, Any]] = {}
    for record in lines:
        latest[record["case"], record["arm"]] = record
    return list(latest.values())


def process_file(path: Path, process: int) -> Path:
    """The file in place of ``path`` that only the process of this number writes, from 0."""
    return path if process == 0 else path.with_name(f"{path.stem}.{process}{path.suffix}")


def process_of(path: Path) -> int:
    """The number of the process that writes ``path``."""
    return int(path.stem.rpartition(".")[2]) if _NUMBERED.search(path.name) else 0


def files_of(path: Path) -> list[Path]:
    """The files of all processes in place of ``path``, in the order of their numbers; empty where there is none."""
    numbered = [file for file in path.parent.glob(f"{glob.escape(path.stem)}.*{path.suffix}") if _is_of(path, file)]
    return [*([path] if path.exists() else []), *sorted(numbered, key=process_of)]


def _is_of(path: Path, file: Path) -> bool:
    return bool(_NUMBERED.search(file.name)) and _NUMBERED.sub("", file.name) == path.stem


def complete_lines(path: Path) -> Iterator[tuple[Path, int, Any]]:
    """The lines of all processes in place of ``path``, an incomplete last one left out: file, number and ``parsed``."""
    for file in files_of(path):
        complete, _, _ = file.read_bytes().rpartition(b"\n")
        for number, value in parsed(complete.split(b"\n")):
            yield file, number, value


def ordered(lines: Iterable[dict[str, Any]], arms: Sequence[str]) -> list[dict[str, Any]]:
    """Records by arm, in the order of ``arms``, and by case, numbers in an id by their value.

    So it matters not which process has written a record, nor when. Other arms come last, in the order of their first
    records.
    """
    lines = list(lines)
    place = {arm: at for at, arm in enumerate(dict.fromkeys([*arms, *(record["arm"] for record in lines)]))}
    return sorted(lines, key=lambda record: (place[record["arm"]], _natural(str(record["case"]))))


def _natural(identity: str) -> list[str | int]:
    return [int(word) if at % 2 else word for at, word in enumerate(re.split(r"(\d+)", identity))]


def parsed(lines: Iterable[str | bytes]) -> Iterator[tuple[int, Any]]:
    """The number, from 1, and the parsed value of every line that is not blank; a ValueError where it is not JSON.

    Split the text at newlines only: ``splitlines`` would also split inside strings.
    """
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except ValueError as error:
                yield number, error


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
    settings: str,
    *,
    status: Status,
    response: str,
    margin: float,
    unshifted: float | None = None,
    sampled: bool = False,
    branch: str = "",
    branch_margins: Mapping[str, float] | None = None,
    shift_range: Mapping[str, float | None] | None = None,
    steps: Mapping[str, str] | None = None,
    bounds: tuple[float, float] | None = None,
    judgement: Judgement | None,
    judge: str,
    published_verdict: str | None = None,
    prompt: str | None = None,
    reason: str = "",
    thought: str = "",
    thought_tokens: int = 0,
    verdict_step: int | None = None,
) -> dict[str, Any]:
    """The record of an answer.

    ``judgement`` is None where a refusal judge had nothing to read; ``published_verdict`` is that of the published
    yes/no rule, None for refusal benchmarks; ``prompt`` is the prompt as rendered. A margin that is not finite becomes
    null. ``unshifted`` is the margin before a constant was added to it (None: none was), ``sampled`` whether the tokens
    were drawn, ``branch`` how a contrast ran its second picture ("": there was none), ``branch_margins`` the margins of
    its branches by name, ``shift_range`` the constants between which its first token stays, ``steps`` the texts by name
    from the questions that the method asked before. ``bounds`` are the margin's lowest and
    highest value where replies give it: ``margin_is`` then says whether it is ``exact``, a ``bound``, or ``undecided``
    (0 lies between them). ``reason`` says why the text is missing or incomplete. ``thought``
    is what a model that thinks first wrote before the response, with its marks, and ``thought_tokens`` how many (0: not
    known). ``verdict_step`` counts the tokens before the one whose margin this is (None or 0: it is the first one's).
    """
    return _common(sample, arm, settings) | {
        "status": status.value,
        **judge_fields(judgement, judge),
        "published_verdict": published_verdict,
        "response": writable(response),
        "margin": _finite(margin),
        **({} if unshifted is None else {"margin_unshifted": _finite(unshifted)}),
        **({} if bounds is None else _bounded(margin, *bounds)),
        **({"sampled": True} if sampled else {}),
        **({"branch": branch} if branch else {}),
        **(
            {"branch_margins": {name: _finite(each) for name, each in branch_margins.items()}} if branch_margins else {}
        ),
        **({SHIFT_RANGE: dict(shift_range)} if shift_range else {}),
        **({"steps": {name: writable(text) for name, text in steps.items()}} if steps else {}),
        **({} if prompt is None else {"prompt": writable(prompt)}),
        **({"reason": writable(reason)} if reason else {}),
        **({"thought": writable(thought)} if thought else {}),
        **({"thought_tokens": thought_tokens} if thought and thought_tokens else {}),
        **({"verdict_step": verdict_step} if verdict_step else {}),
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


def failed(sample: Sample, arm: str, settings: str, status: Status, reason: str) -> dict[str, Any]:
    """The record of a case without an answer, with the reason in words."""
    return _common(sample, arm, settings) | {
        "status": status.value,
        "verdict": None,
        "published_verdict": None,
        "response": None,
        "margin": None,
        "reason": writable(reason),
    }


def _common(sample: Sample, arm: str, settings: str) -> dict[str, Any]:
    described = description(sample)
    return {
        "case": sample.id,
        "arm": arm,
        "settings": settings,
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
