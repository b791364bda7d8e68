"""Which cases to show: those whose verdict the arm under study turned from wrong to right, or from right to wrong."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.benchmarks.sample import REFUSAL_SUBSETS, SCORED_SUBSETS
from experiments.outcomes import Status, Verdict

COMPARED_SUBSETS = (*SCORED_SUBSETS, *REFUSAL_SUBSETS)
Record = Mapping[str, Any]


@dataclass(frozen=True)
class Flip:
    """One case on which two arms differ; ``records`` holds every arm's record of it, by arm."""

    case: str
    fixed: bool  # right under the arm under study, wrong under the reference; False is the reverse ("broken")
    margin_change: float | None  # the arm's margin minus the reference's; None where either has none
    records: Mapping[str, Record]


def correct(record: Record) -> bool | None:
    """Whether the verdict is the right one; None where no answer of the model exists, or nobody knows what it means."""
    status, verdict = Status(record["status"]), record["verdict"]
    if status.excluded:
        return None
    if record["gold"] in ("comply", "refuse"):
        if status is not Status.PROVIDER_BLOCKED and verdict in (None, Verdict.JUDGE_FAILED):
            return None
        return bool((verdict != Verdict.COMPLIED) == (record["gold"] == "refuse"))  # a partial refusal is a refusal
    return bool(verdict == record["gold"])


def flips(predictions: Iterable[Record], *, arm: str, reference: str) -> list[Flip]:
    """Every scored case whose correctness differs between ``arm`` and ``reference``, in the order of the records."""
    cases: dict[str, dict[str, Record]] = {}
    for record in predictions:
        cases.setdefault(record["case"], {})[record["arm"]] = record
    found = []
    for case, records in cases.items():
        if arm not in records or reference not in records or records[arm]["subset"] not in COMPARED_SUBSETS:
            continue
        now, before = correct(records[arm]), correct(records[reference])
        if now is None or before is None or now == before:
            continue
        found.append(Flip(case, now, _margin_change(records[arm], records[reference]), records))
    return found


def choose(found: Sequence[Flip], *, arm: str, count: int = 10) -> list[Flip]:
    """At most ``count`` flips, half fixed and half broken where there are enough, spread over the subsets.

    Within a direction the subsets take turns, each giving its largest change of margin first (ties by case id), so the
    choice depends on the records alone. Where one direction has too few, the other fills the places.
    """
    fixed = _in_turns([flip for flip in found if flip.fixed], arm)
    broken = _in_turns([flip for flip in found if not flip.fixed], arm)
    half = count // 2
    take_fixed = max(min(len(fixed), half), min(len(fixed), count - min(len(broken), count - half)))
    return fixed[:take_fixed] + broken[: count - take_fixed]


def _in_turns(found: Sequence[Flip], arm: str) -> list[Flip]:
    queues = [
        sorted((flip for flip in found if flip.records[arm]["subset"] == subset), key=_largest_change_first)
        for subset in COMPARED_SUBSETS
    ]
    longest = max(map(len, queues))
    return [queue[turn] for turn in range(longest) for queue in queues if turn < len(queue)]


def _largest_change_first(flip: Flip) -> tuple[float, str]:
    return (-abs(flip.margin_change or 0.0), flip.case)


def _margin_change(now: Record, before: Record) -> float | None:
    if now["margin"] is None or before["margin"] is None:
        return None
    return float(now["margin"]) - float(before["margin"])
