"""The few cases that the report shows first: three that changed and two that did not, with where the verdict looked.

Of a run with one arm: three that went wrong and two that went right. The choice depends on the records alone; cases
whose attention was logged come first, harmless ones before unsafe ones.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from experiments.report import heat
from experiments.report.cases import COMPARED_SUBSETS, HIDDEN_SUBSETS, Flip, in_turns, judged, shown_case
from experiments.report.numbers import fixed
from experiments.runs.saved_run import SavedRun, thumbnail_name

CHANGED, SAME = 3, 2
_NUMBERS = {2: "Two", 3: "Three"}


def examples(run: SavedRun, *, studied: str, reference: str, attention: Mapping[str, Any] | None) -> dict[str, Any]:
    """What to show of ``run``; ``reference`` is the arm that ``studied`` is compared with, itself if with none.

    Returns:
        ``groups``, two of (title, cases); ``most``, the value of the maps' full colour, empty without maps; and
        ``glance``, a map to show at once: the first whose picture need not be blurred. A case has a ``word`` on what
        became of it, the ``tone`` of its colour, and its ``maps`` or the reason why it has none.
    """
    logged: Mapping[str, Any] = (attention or {}).get("cases") or {}
    known = judged(run.predictions, arm=studied, reference=reference)
    moved, stayed = ([one for one, flipped in known if flipped is which] for which in (True, False))
    words = {False: ("still wrong", "wrong"), True: ("still right", "right")}
    if studied == reference:
        wrong, right = ([one for one in stayed if one.fixed is holds] for holds in (False, True))
        titles, words = ("went wrong", "went right"), {False: ("wrong", "wrong"), True: ("right", "right")}
        chosen = _in_turns(wrong, studied, first=logged)[:CHANGED], _in_turns(right, studied, first=logged)[:SAME]
    else:
        titles = ("changed", "did not change")
        chosen = _changed(moved, studied, logged), _same(stayed, studied, logged)
    outcomes = {one.case: words[one.fixed] for one in stayed}
    outcomes |= {one.case: (("fixed" if one.fixed else "broken"),) * 2 for one in moved}
    arms = list(dict.fromkeys((reference, studied)))
    maps = {one.case: _maps(logged.get(one.case), arms) for shown in chosen for one in shown}
    most = max((float(found.max()) for of_case in maps.values() for found in of_case.values()), default=0.0)
    groups = [
        (
            _title(len(shown), title),
            [_example(run, one, arms, outcomes[one.case], maps[one.case], most, bool(logged)) for one in shown],
        )
        for title, shown in zip(titles, chosen, strict=True)
    ]
    with_maps = [one for _, shown in groups for one in shown if one["maps"]]
    return {
        "groups": groups,
        "most": f"{fixed(100 * most, 1)}%" if with_maps else "",
        "glance": next((one["maps"][0] for one in with_maps if not one["case"]["hidden"]), None),
    }


# The subsets take turns, harmless ones first; within one, the cases with attention.
_in_turns = partial(in_turns, subsets=sorted(COMPARED_SUBSETS, key=lambda subset: subset in HIDDEN_SUBSETS))


def _changed(moved: Sequence[Flip], arm: str, logged: Mapping[str, Any]) -> list[Flip]:
    """Two of the direction that more cases took and one of the other; where there is none, more of the former."""
    fixed_ones, broken = ([one for one in moved if one.fixed is holds] for holds in (True, False))
    more, fewer = (fixed_ones, broken) if len(fixed_ones) >= len(broken) else (broken, fixed_ones)
    of_fewer = _in_turns(fewer, arm, first=logged)[:1]
    return [*_in_turns(more, arm, first=logged)[: CHANGED - len(of_fewer)], *of_fewer]


def _same(stayed: Sequence[Flip], arm: str, logged: Mapping[str, Any]) -> list[Flip]:
    """One that is still wrong, and one unlike it: still right, or of another subset, as attention was logged."""
    wrong, right = ([one for one in stayed if one.fixed is holds] for holds in (False, True))
    listed = [*_in_turns(wrong, arm, first=logged, largest=False), *_in_turns(right, arm, first=logged, largest=False)]
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
) -> dict[str, Any]:  # fmt: skip
    example = {
        "case": shown_case(run, one, arms[-1], arms),
        "word": outcome[0],
        "tone": outcome[1],
        "maps": [],
        "why_no_map": "Attention was not logged for this case." if any_logged and not maps else "",
    }
    path = run.directory / "thumbnails" / thumbnail_name(one.case)
    labelled = {f"where {arm} looked": values for arm, values in maps.items()}
    if len(maps) > 1 and heat.alike(list(maps.values())):
        labelled = {"where both looked": next(iter(maps.values()))}
    try:
        drawn = [
            {"label": label, "uri": heat.overlay(path.read_bytes(), values, most),
             "alt": f"{label}: {heat.describe_map(values)}"}
            for label, values in labelled.items()
        ]  # fmt: skip
    except OSError:
        return example | {"why_no_map": "Its picture was not kept, so there is nothing to lay the attention over."}
    return example | {"maps": drawn}
