"""The few cases that the report shows first: three that changed and two that did not, with where the verdict looked.

Of a run with one arm: three that went wrong and two that went right. The choice depends on the records only. Cases
whose attention was logged come first, and harmless ones before unsafe ones.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments.report import heat
from experiments.report.cases import COMPARED_SUBSETS, HIDDEN_SUBSETS, Flip, choose, judged, shown_case
from experiments.report.numbers import fixed
from experiments.report.saved_run import SavedRun
from experiments.report.thumbnails import thumbnail_name

CHANGED, SAME = 3, 2
TITLES = {0: "No case {}", 1: "One case that {}", 2: "Two cases that {}", 3: "Three cases that {}"}
HARMLESS_FIRST = sorted(COMPARED_SUBSETS, key=lambda subset: subset in HIDDEN_SUBSETS)


def examples(run: SavedRun, *, studied: str, reference: str, attention: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what to show of ``run``; ``reference`` is the arm that ``studied`` is compared with, or ``studied``.

    Returns:
        ``groups``, two of (title, cases); ``most``, the value of the maps' full colour, empty without maps. ``glance``
        is the first map whose picture need not be blurred. A case has a ``word`` on what became of it, the ``tone`` of
        its colour, and its ``maps`` or the reason why it has none.
    """
    logged: Mapping[str, Any] = (attention or {}).get("cases") or {}
    arms, alone = list(dict.fromkeys((reference, studied))), studied == reference
    cases = judged(run.predictions, arm=studied, reference=reference)
    names = {True: ("broken", "fixed"), False: ("wrong", "right")}  # by whether the case flipped
    tones = {flip.case: names[flipped][flip.fixed] for flip, flipped in cases}
    groups: dict[str, tuple[str, ...]] = {"changed": names[True], "did not change": names[False]}
    if alone:
        groups = {"went wrong": ("wrong",), "went right": ("right",)}
    chosen = []
    for tone, count in zip(groups.values(), (CHANGED, SAME), strict=True):
        flips = [flip for flip, _ in cases if tones[flip.case] in tone]
        seen = [flip for flip in flips if flip.case in logged]
        chosen.append(choose(seen if len(seen) >= count else flips, arm=studied, count=count, first=logged,
                             subsets=HARMLESS_FIRST, largest=tone != names[False]))  # fmt: skip
    blocks = {flip.case: logged.get(flip.case) or {} for part in chosen for flip in part}
    maps = {case: {arm: values for arm in arms if (values := heat.image_map(block.get(arm))) is not None}
            for case, block in blocks.items()}  # fmt: skip
    most = max((float(values.max()) for of_case in maps.values() for values in of_case.values()), default=0.0)

    def example(flip: Flip) -> dict[str, Any]:
        tone = tones[flip.case]
        word = f"still {tone}" if tone in names[False] and not alone else tone
        drawn = _drawn(run, flip.case, maps[flip.case], most)
        why = "" if not logged else "Attention was not logged for this case."
        if maps[flip.case]:
            why = "Its picture was not kept, so there is nothing to lay the attention over."
        return {"case": shown_case(run, flip, studied, arms), "word": word, "tone": tone, "maps": drawn,
                "why_no_map": "" if drawn else why}  # fmt: skip

    made = [[example(flip) for flip in part] for part in chosen]
    with_maps = [each for part in made for each in part if each["maps"]]
    return {
        "groups": [(TITLES[len(part)].format(title), part) for title, part in zip(groups, made, strict=True)],
        "most": f"{fixed(100 * most, 1)}%" if with_maps else "",
        "glance": next((each["maps"][0] for each in with_maps if not each["case"]["hidden"]), None),
    }


def _drawn(run: SavedRun, case: str, maps: Mapping[str, np.ndarray], most: float) -> list[dict[str, str]]:
    """Return the maps over the case's thumbnail; none if that was not kept."""
    labelled = {f"where {arm} looked": values for arm, values in maps.items()}
    if len(maps) > 1 and heat.alike(list(maps.values())):
        labelled = {"where both looked": next(iter(maps.values()))}
    try:
        picture = (run.directory / "thumbnails" / thumbnail_name(case)).read_bytes() if maps else b""
        return [{"label": label, "uri": heat.overlay(picture, values, most),
                 "alt": f"{label}: {heat.describe_map(values)}"} for label, values in labelled.items()]  # fmt: skip
    except OSError:
        return []
