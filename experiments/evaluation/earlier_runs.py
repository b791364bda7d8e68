"""Answers that earlier runs of a sweep have already, so that an arm which the sweep leaves as it is is asked once.

The hash of a record's settings has all that can change an answer but for the judge and what shares a batch; these are
equal in the runs that are looked at (``Run.conditions``). Imports neither torch nor transformers.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.evaluation.cost import CostLog
from experiments.runs import records
from experiments.runs.resumption import RunStore, read_object
from experiments.types import Status


def take_over(
    folders: Sequence[Path],
    store: RunStore,
    file: str,
    settings: Mapping[str, Mapping[str, str]],
    latest: Mapping[str, dict[str, dict[str, Any]]],
) -> str:
    """Puts answers under ``settings`` (by arm and case) that ``file`` of a run in ``folders`` has into ``latest``.

    Rank 0 writes them into ``store`` too, with what they took there as known. Returns a sentence, empty where none is
    taken over.
    """
    known = _answers(folders, file)
    taken: dict[tuple[Path, str, str], list[dict[str, Any]]] = {}  # by run, its arm, and the arm here
    for arm, by_case in settings.items():
        for case, wanted in by_case.items():
            here = latest[arm].get(case)
            if (case, wanted) in known and (here is None or here["settings"] != wanted):
                folder, line = known[case, wanted]
                latest[arm][case] = line | {"arm": arm}
                taken.setdefault((folder, line["arm"], arm), []).append(latest[arm][case])
    if store.launch.first:
        for (folder, theirs, arm), lines in taken.items():
            store.append(lines, file)
            if cost := (read_object(folder / "environment.json").get("cost") or {}).get(theirs):
                tokens = round(len(lines) * cost["tokens"] / cost["cases"])
                CostLog(store).add_taken_over(arm, [line["case"] for line in lines], tokens, of=cost)
    arms = ", ".join(dict.fromkeys(arm for *_, arm in taken))
    where = ", ".join(dict.fromkeys(str(folder) for folder, *_ in taken))
    count = sum(map(len, taken.values()))
    return f"{count:,} answers of {arms} are those of {where}: nothing about them is swept" if taken else ""


def _answers(folders: Sequence[Path], file: str) -> dict[tuple[str, str], tuple[Path, dict[str, Any]]]:
    """By case and settings, the run that has the answer first, and its record."""
    found: dict[tuple[str, str], tuple[Path, dict[str, Any]]] = {}
    for folder in folders:
        lines = (line for *_, line in records.complete_lines(folder / file) if isinstance(line, dict))
        for line in records.current(lines):
            if line["status"] != Status.TRANSPORT_FAILED:
                found.setdefault((line["case"], line["settings"]), (folder, line))
    return found
