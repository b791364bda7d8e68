"""``task=failure_modes run=<dir>``: every failure of a finished run gets a label, which people can correct.

A person's label in failure_modes.csv wins over a model's, and a model's over the rules'.
"""

import csv
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from experiments.config import Run
from experiments.evaluation import finished_runs, study
from experiments.metrics.findings import plain
from experiments.metrics.statistical_tests import wilson
from experiments.report.table import Column, Table, rate, terminal
from experiments.runs.labels import plain_cell, safe_cell
from experiments.runs.resumption import write_json
from experiments.runs.saved_run import read_records
from experiments.studies.failure_modes.labels import Mode, ModeLabel, ask_model, is_failure, rule_label
from interp.errors import UserError

SHEET, COUNTS = "failure_modes.csv", "failure_modes.json"
LabelledFailure = tuple[Mapping[str, Any], ModeLabel, Mapping[str, str]]  # record, label, what a person wrote
COLUMNS = ("case", "arm", "subset", "scenario", "gold", "verdict", "label", "source", "reason", "hand", "note", "text",
           "response")  # fmt: skip
CaseArm = tuple[str, str]
_MOST_CELL = 10_000_000


@dataclass(frozen=True)
class FailureModes:
    """The task, on the finished ``run``; with ``ask`` the configured ``model`` labels as well.

    Writes failure_modes.csv beside the run's files, whose column ``hand`` wins when the task is run again, and
    failure_modes.json with the counts.
    """

    ask: bool = False
    run: str | None = None

    def __call__(self, run: Run) -> None:
        """Labels, and prints the modes by arm and subset."""
        folders = finished_runs.given(self.run)
        if len(folders) != 1:
            raise UserError("run=null: needs one finished run; give run=<outputs/name/time>")
        (folder,) = folders
        finished_runs.read(folder)
        failed = [record for record in read_records(folder) if is_failure(record)]
        by_hand = read_hand_labels(folder / SHEET)
        judged = self._judged(run, failed) if self.ask else {}
        rows = [(record, *_labelled(record, judged, by_hand)) for record in failed]
        write_labels(folder / SHEET, rows)
        result = counts(rows)
        write_json(folder / COUNTS, plain(result))
        console = Console()
        for arm, subsets in result["arms"].items():
            console.print(terminal(table(arm, subsets), stacked=False))
        console.print(_sources(rows, folder), highlight=False, soft_wrap=True, markup=False)

    def _judged(self, run: Run, failed: Sequence[Mapping[str, Any]]) -> dict[CaseArm, ModeLabel]:
        samples = {sample.id: sample for sample in run.benchmark.load().samples}
        console = Console()

        def say(rows: int) -> None:
            console.print(f"failure modes: out of memory; asking {rows} at once from here on", highlight=False)

        vlm = study.connected(run)
        with vlm.batches.by(run.batch_rule, on_lowered=say):
            return ask_model(vlm, failed, samples, batch_size=run.batch_size)


def write_labels(path: Path, rows: Iterable[LabelledFailure]) -> None:
    """Writes one line for each failure; the column ``hand`` is the one to fill in.

    Cells that a spreadsheet would take for a formula carry an apostrophe (``labels.safe_cell``).
    """
    temporary = path.with_name(path.name + ".part")
    with temporary.open("w", encoding="utf-8", newline="") as handle:
        writer = csv.writer(handle, quoting=csv.QUOTE_ALL)
        writer.writerow(COLUMNS)
        for record, labelled, by_hand in rows:
            values = {name: record.get(name) for name in COLUMNS} | dict(by_hand)
            values |= {"label": labelled.mode.value, "source": labelled.source, "reason": labelled.reason}
            cells = ("" if values[name] is None else str(values[name]) for name in COLUMNS)
            writer.writerow([safe_cell(cell.encode("utf-8", "replace").decode()) for cell in cells])
    temporary.replace(path)


def read_hand_labels(path: Path) -> dict[CaseArm, dict[str, str]]:
    """What people wrote: ``hand`` (a mode) and ``note`` by case and arm; empty where there is no file.

    Raises:
        UserError: the file is not such a CSV, or ``hand`` is no mode, naming the line.
    """
    if not path.is_file():
        return {}
    csv.field_size_limit(_MOST_CELL)
    found: dict[CaseArm, dict[str, str]] = {}
    try:
        with path.open(encoding="utf-8-sig", newline="") as handle:
            reader = csv.DictReader(handle)
            if absent := [name for name in ("case", "arm", "hand") if name not in (reader.fieldnames or ())]:
                raise UserError(f"{path}: has no column {', '.join(absent)}; delete the file to have it written anew")
            for line in reader:
                by_hand = {name: plain_cell((line.get(name) or "").strip()) for name in ("hand", "note")}
                by_hand["hand"] = by_hand["hand"].lower()
                if by_hand["hand"] and by_hand["hand"] not in list(Mode):
                    raise UserError(f"{path}, line {reader.line_num}: {by_hand['hand']!r} is no failure mode; known: "
                                    f"{', '.join(Mode)}; write one of these or nothing")  # fmt: skip
                if any(by_hand.values()):
                    found[plain_cell(line["case"] or ""), plain_cell(line["arm"] or "")] = by_hand
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} cannot be read ({error}); correct it, or delete it to have it written anew") from None
    return found


def _labelled(
    record: Mapping[str, Any],
    judged: Mapping[CaseArm, ModeLabel],
    by_hand: Mapping[CaseArm, Mapping[str, str]],
) -> tuple[ModeLabel, Mapping[str, str]]:
    """A person's label wins over the judge's, and that over the rules'."""
    key = record["case"], record["arm"]
    wrote = by_hand.get(key, {})
    if wrote.get("hand"):
        return ModeLabel(Mode(wrote["hand"]), "hand", wrote.get("note", "")), wrote
    return judged.get(key) or rule_label(record), wrote


def counts(rows: Sequence[LabelledFailure]) -> dict[str, Any]:
    """Modes by arm and subset: count, share of that subset's failures, and its 95% interval."""
    arms: dict[str, dict[str, Any]] = {}
    for arm in dict.fromkeys(record["arm"] for record, _, _ in rows):
        for subset in dict.fromkeys(record["subset"] for record, _, _ in rows if record["arm"] == arm):
            here = [(record, given) for record, given, _ in rows if (record["arm"], record["subset"]) == (arm, subset)]
            found, n = Counter(given.mode for _, given in here), len(here)
            clusters = len({record["cluster"] for record, _ in here})
            arms.setdefault(arm, {})[subset] = {
                "n": n,
                "modes": {
                    mode.value: {"count": count, "share": count / n, "interval": wilson(count, n, clusters=clusters)}
                    for mode in Mode
                    if (count := found[mode])
                },
            }
    return {"arms": arms, "sources": Counter(labelled.source for _, labelled, _ in rows)}


def table(arm: str, subsets: Mapping[str, Any]) -> Table:
    """One arm: its failures by mode in % with 95% intervals, a column a subset."""
    headings = {name: f"{name.replace('_', '-')}\nn = {block['n']}" for name, block in subsets.items()}
    records = []
    for mode in Mode:
        found = {name: block["modes"][mode.value] for name, block in subsets.items() if mode.value in block["modes"]}
        if found:
            cells = {headings[name]: rate(one["share"], one["interval"])
                     for name, one in found.items()}  # fmt: skip
            records.append({"mode": mode.value, **cells})
    columns = [Column("mode", "left"), *(Column(heading) for heading in headings.values())]
    return Table.of(f"Failures of {arm} by mode (%)", records, columns=columns)


def _sources(rows: Sequence[LabelledFailure], folder: Path) -> str:
    counted = Counter(labelled.source.partition(" ")[0] for _, labelled, _ in rows)
    listed = ", ".join(f"{count} by {source}" for source, count in counted.most_common()) or "no failure"
    return (
        f"Labels: {listed}. To correct one, write a mode into the column “hand” of {folder / SHEET} and run this again."
    )
