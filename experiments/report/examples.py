"""The few cases that the report shows first: three that changed and two that did not, with where the verdict looked.

Of a run with one arm: three that went wrong and two that went right. The choice depends on the records alone; cases
whose attention was logged come first, harmless ones before unsafe ones.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.report import heat
from experiments.report.case_view import ShownCase, shown_case
from experiments.report.cases import COMPARED_SUBSETS, HIDDEN_SUBSETS, Flip, Record, correct
from experiments.report.numbers import fixed
from experiments.runs.saved_run import SavedRun, thumbnail_name

CHANGED, SAME = 3, 2
_NUMBERS = {2: "Two", 3: "Three"}


@dataclass(frozen=True)
class ShownMap:
    """Where one verdict looked, or several that looked alike; ``uri`` is the picture under the map's colours."""

    label: str
    uri: str
    alt: str


@dataclass(frozen=True)
class Example:
    """One case; ``word`` says what became of it and ``tone`` is the class of its colour."""

    case: ShownCase
    word: str
    tone: str
    maps: list[ShownMap]
    why_no_map: str = ""


@dataclass(frozen=True)
class Examples:
    """The cases under their two headings, and the value of the maps' full colour in percent, empty without maps."""

    first_title: str
    first: list[Example]
    second_title: str
    second: list[Example]
    most: str = ""

    @property
    def glance(self) -> ShownMap | None:
        """A map to show at once: the first whose picture need not be blurred."""
        listed = [one for one in (*self.first, *self.second) if one.maps and not one.case.hidden]
        return listed[0].maps[0] if listed else None


def examples(run: SavedRun, *, studied: str, reference: str, attention: Mapping[str, Any] | None) -> Examples:
    """What to show of ``run``; ``reference`` is the arm that ``studied`` is compared with, itself if with none."""
    logged: Mapping[str, Any] = (attention or {}).get("cases") or {}
    known = _judged(run.predictions, studied, reference)
    chosen: tuple[list[Flip], list[Flip]]
    if studied == reference:
        wrong, right = ([one for one in known if one.fixed is holds] for holds in (False, True))
        titles = ("went wrong", "went right")
        chosen = _in_turns(wrong, studied, logged)[:CHANGED], _in_turns(right, studied, logged)[:SAME]
        words = {False: ("wrong", "wrong"), True: ("right", "right")}
        outcomes = {one.case: words[one.fixed] for one in known}
    else:
        before = {one.case: correct(one.records[reference]) for one in known}
        moved = [one for one in known if one.fixed != before[one.case]]
        stayed = [one for one in known if one.fixed == before[one.case]]
        titles = ("changed", "did not change")
        chosen = _changed(moved, studied, logged), _same(stayed, studied, logged)
        outcomes = {one.case: (("fixed" if one.fixed else "broken"),) * 2 for one in moved}
        outcomes |= {one.case: ("still right", "right") if one.fixed else ("still wrong", "wrong") for one in stayed}
    arms = list(dict.fromkeys((reference, studied)))
    shown = [*chosen[0], *chosen[1]]
    maps = {one.case: _maps(logged.get(one.case), arms) for one in shown}
    most = max((float(found.max()) for of_case in maps.values() for found in of_case.values()), default=0.0)
    drawn = {
        one.case: _example(run, one, arms, outcomes[one.case], maps[one.case], most, bool(logged)) for one in shown
    }
    return Examples(
        _title(len(chosen[0]), titles[0]),
        [drawn[one.case] for one in chosen[0]],
        _title(len(chosen[1]), titles[1]),
        [drawn[one.case] for one in chosen[1]],
        f"{fixed(100 * most, 1)}%" if any(one.maps for one in drawn.values()) else "",
    )


def _judged(records: Iterable[Record], arm: str, reference: str) -> list[Flip]:
    """Every scored case that was judged under both arms; ``fixed`` says whether it is right under ``arm``."""
    cases: dict[str, dict[str, Record]] = {}
    for record in records:
        cases.setdefault(str(record["case"]), {})[str(record["arm"])] = record
    found = []
    for case, of_arm in cases.items():
        if arm not in of_arm or reference not in of_arm or of_arm[arm]["subset"] not in COMPARED_SUBSETS:
            continue
        now, before = (correct(of_arm[one]) for one in (arm, reference))
        if now is not None and before is not None:
            margins = of_arm[arm]["margin"], of_arm[reference]["margin"]
            change = None if None in margins else float(margins[0]) - float(margins[1])
            found.append(Flip(case, now, change, of_arm))
    return found


def _in_turns(found: Sequence[Flip], arm: str, logged: Mapping[str, Any], *, most: bool = True) -> list[Flip]:
    """The subsets take turns, harmless ones first; within one, those with attention, then by change of margin."""
    order = sorted(COMPARED_SUBSETS, key=lambda subset: subset in HIDDEN_SUBSETS)
    sign = -1 if most else 1
    queues = [
        sorted((one for one in found if one.records[arm]["subset"] == subset),
               key=lambda one: (one.case not in logged, sign * abs(one.margin_change or 0.0), one.case))
        for subset in order
    ]  # fmt: skip
    longest = max(map(len, queues))
    return [queue[turn] for turn in range(longest) for queue in queues if turn < len(queue)]


def _changed(moved: Sequence[Flip], arm: str, logged: Mapping[str, Any]) -> list[Flip]:
    """Two of the direction that more cases took and one of the other; where there is none, more of the former."""
    fixed_ones, broken = ([one for one in moved if one.fixed is holds] for holds in (True, False))
    more, fewer = (fixed_ones, broken) if len(fixed_ones) >= len(broken) else (broken, fixed_ones)
    of_fewer = _in_turns(fewer, arm, logged)[:1]
    return [*_in_turns(more, arm, logged)[: CHANGED - len(of_fewer)], *of_fewer]


def _same(stayed: Sequence[Flip], arm: str, logged: Mapping[str, Any]) -> list[Flip]:
    """One that is still wrong, and one unlike it: still right, or of another subset, as attention was logged."""
    listed = _in_turns([one for one in stayed if not one.fixed], arm, logged, most=False)
    listed += _in_turns([one for one in stayed if one.fixed], arm, logged, most=False)
    if not listed:
        return []
    first = listed[0]
    others = sorted(
        listed[1:],
        key=lambda one: (
            one.case not in logged,
            one.fixed == first.fixed,
            one.records[arm]["subset"] == first.records[arm]["subset"],
        ),
    )
    return [first, *others[: SAME - 1]]


def _title(count: int, words: str) -> str:
    if count == 0:
        return f"No case {words}"
    return f"One case that {words}" if count == 1 else f"{_NUMBERS.get(count, count)} cases that {words}"


def _maps(blocks: Mapping[str, Any] | None, arms: Sequence[str]) -> dict[str, np.ndarray]:
    found = {arm: heat.image_map((blocks or {}).get(arm)) for arm in arms}
    return {arm: one for arm, one in found.items() if one is not None}


def _example(
    run: SavedRun, one: Flip, arms: Sequence[str], outcome: tuple[str, str], maps: Mapping[str, np.ndarray],
    most: float, any_logged: bool,
) -> Example:  # fmt: skip
    case, (word, tone) = shown_case(run, one, arms[-1], arms), outcome
    if not maps:
        why = "Attention was not logged for this case." if any_logged else ""
        return Example(case, word, tone, [], why)
    path = run.directory / "thumbnails" / thumbnail_name(one.case)
    labelled = {f"{arm} looked": values for arm, values in maps.items()}
    if len(maps) > 1 and heat.alike(list(maps.values())):
        labelled = {"both looked": next(iter(maps.values()))}
    try:
        picture = path.read_bytes()
        drawn = [
            ShownMap(
                f"where {label}", heat.overlay(picture, values, most), f"where {label}: {heat.describe_map(values)}"
            )
            for label, values in labelled.items()
        ]
    except OSError:
        return Example(case, word, tone, [], "Its picture was not kept, so there is nothing to lay the attention over.")
    return Example(case, word, tone, drawn)
