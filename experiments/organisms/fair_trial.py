"""``+exp=vrtuning_fair``: does a chain of reasoning carry over where plain verdicts are learnt by heart?

VRTuning, and then its arm against the others by what the second organism's alignment has seen of a case. For each part
(``experiments.metrics.parts``) and other arm: the difference in AUROC on the same cases, with intervals that hold for
all parts and arms at once; and how much larger that difference is on held-out cases than on seen pairs. Parts share no
case, so their draws are independent. A part has too few sentences or things to speak for others: its intervals are over
clusters (sentence × thing); those of all cases and of what was held out are the wider of that and the two-way one over
templates and concepts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from experiments.benchmarks.iconworld.concepts import Thing
from experiments.benchmarks.iconworld.parts import PARTS
from experiments.benchmarks.iconworld.perception import names_thing
from experiments.config import Run
from experiments.evaluation.analyses import Analysis
from experiments.evaluation.study import Study
from experiments.metrics.paired import Difference, Spread, change, simultaneous
from experiments.metrics.parts import HELD_OUT, groups
from experiments.metrics.yes_no.answers import scored_and_controls
from experiments.metrics.yes_no.comparison import difference
from experiments.metrics.yes_no.quantities import YesNoArms
from experiments.report.numbers import MISSING, fixed, fixed_interval, interval_of
from experiments.report.table import Cell, Table
from experiments.runs.launch import sharded
from experiments.runs.resumption import read_object
from experiments.studies.vrtuning.study import RESULT, VRTuningStudy
from experiments.types import Verdict

ALL, CARRIED = "all", f"{HELD_OUT} less {PARTS[0]}"
QUANTITY = "auroc"


@sharded
@dataclass(frozen=True)
class FairTrial(VRTuningStudy):
    """The task: ``VRTuningStudy``, and its arm against the others by part in vrtuning.json and vrtuning.md."""

    def analyses(self, run: Run) -> list[Analysis]:
        """Those of VRTuning, and the comparison before the tables are written."""
        *others, tables = super().analyses(run)
        return [*others, Analysis("by_part", "the adapters were not compared by part", _by_part, detail=True), tables]

    def further_tables(self, result: Mapping[str, Any]) -> list[Table]:
        """A row an other arm and part."""
        return [table(result["by_part"])] if "by_part" in result else []


def _by_part(work: Study) -> list[str]:
    run, path = work.run, work.store.path / RESULT
    if found := compare(pd.DataFrame(work.records()), run.arm, seed=run.seed, draws=run.draws):
        work.store.write_json(RESULT, read_object(path) | {"by_part": found})
    return []


def compare(frame: pd.DataFrame, arm: str, *, seed: int, draws: int) -> dict[str, Any] | None:
    """``arm`` minus every other arm, by part; None where no case has a part.

    ``differences``: other arm → part → a change of AUROC (``metrics.paired.change``) with ``simultaneous``.
    ``carried``: other arm → the change on held-out cases minus that on seen pairs. ``without_verdict``: arm → the
    scored cases that it gave none, which no difference counts. ``named``: arm → part → the share of answers that name
    what the picture shows, and a sign where there is one and only there.

    Args:
        frame: predictions, with the column ``tags``.
    """
    scored, _ = scored_and_controls(frame)
    scored = scored.reset_index(drop=True)
    parts = groups(scored)
    if not parts:
        return None
    found: dict[str, dict[str, Difference]] = {}
    for part, where in {ALL: np.ones(len(scored), dtype=bool), **parts}.items():
        arms = YesNoArms.of(scored[where], draws=draws, seed=seed)
        for other in arms.answers:
            if arm in arms.answers and other != arm:
                found.setdefault(other, {})[part] = difference(arms, arm, other)[QUANTITY]
    return {
        "arm": arm,
        "differences": _differences(found),
        "carried": {other: _carried(by_part) for other, by_part in found.items()},
        "named": {str(arm): _named(rows) for arm, rows in scored.groupby("arm", sort=False)},
        "without_verdict": scored[scored["verdict"] == Verdict.NO_VERDICT.value].groupby("arm").size().to_dict(),
    }


def _differences(found: Mapping[str, Mapping[str, Difference]]) -> dict[str, dict[str, Any]]:
    entries: dict[str, dict[str, Any]] = {}
    family = []
    for other, by_part in found.items():
        for part, one in by_part.items():
            if one.entry is not None and part not in (ALL, HELD_OUT):
                entry = change(one.entry["from"], one.entry["to"], one.spread, one.entry["n"])
                one = one._replace(entry=entry, by_template=None)
            entries.setdefault(other, {})[part] = one.entry
            family.append(one)
    simultaneous(family)
    return entries


def _named(scored: pd.DataFrame) -> dict[str, float]:
    """Of one arm; empty where the cases do not say what is shown."""
    if any("concept" not in tags for tags in scored["tags"]):
        return {}
    right = np.array([
        names_thing(Thing(tags["concept"], tags["sign"] == "yes"), str(response))
        for tags, response in zip(scored["tags"], scored["response"], strict=True)
    ])  # fmt: skip
    return {part: float(right[where].mean()) for part, where in groups(scored).items()}


def _carried(by_part: Mapping[str, Difference]) -> dict[str, Any] | None:
    """The difference on held-out cases minus that on seen pairs, which are other cases."""
    if not {HELD_OUT, PARTS[0]} <= by_part.keys():
        return None
    unseen, seen = by_part[HELD_OUT], by_part[PARTS[0]]
    after, before = unseen.entry, seen.entry
    if after is None or before is None:
        return None
    one, other = unseen.widest, seen.widest
    error = None if one.error is None or other.error is None else float(np.hypot(one.error, other.error))
    spread = Spread(error, min(one.clusters, other.clusters))
    return change(before["value"], after["value"], spread, before["n"] + after["n"])


def table(compared: Mapping[str, Any]) -> Table:
    """A row an other arm and part."""
    arm = compared["arm"]
    carried = {other: {CARRIED: entry} for other, entry in compared["carried"].items()}
    records = [
        {"against": other, "part": part, **_cells(arm, entry, levels=part != CARRIED)}
        for other, by_part in compared["differences"].items()
        for part, entry in {**by_part, **carried[other]}.items()
    ]
    return Table.of(f"AUROC of {arm} minus that of another arm, by part", records)


def _cells(arm: str, entry: Mapping[str, Any] | None, *, levels: bool) -> dict[str, str | Cell]:
    if entry is None:
        return dict.fromkeys(("cases", arm, "other", "difference", "all at once", "statement"), MISSING)
    together = entry.get("simultaneous")
    return {
        "cases": str(entry["n"]),
        arm: fixed(entry["to"], 3) if levels else MISSING,
        "other": fixed(entry["from"], 3) if levels else MISSING,
        "difference": Cell(fixed(entry["value"], 3, sign=True), fixed_interval(interval_of(entry), 3)),
        "all at once": fixed_interval(together and interval_of(together), 3) or MISSING,
        "statement": (together or entry)["statement"],
    }
