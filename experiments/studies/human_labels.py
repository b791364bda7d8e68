"""``task=human_labels``: a run's answers as a sheet to label, or the agreement of filled sheets. Loads no model."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from experiments.config import Run
from experiments.evaluation import finished_runs
from experiments.evaluation.human_verdicts import agreement_of_raters
from experiments.metrics.agreement import agreement
from experiments.report.tables import say
from experiments.report.text import lines
from experiments.report.thumbnails import thumbnail_name
from experiments.runs.labels import (
    LABELS,
    Labels,
    Record,
    apply,
    distinct_answers,
    kind_of,
    read_labels,
    write_sheet,
)
from experiments.runs.records import read_records
from experiments.runs.store import write_json
from experiments.types import Verdict
from interp.errors import UserError

RESULT = "labels.json"


@dataclass(frozen=True)
class HumanLabels:
    """The task, on the directory ``run``: ``export`` names the sheet to write, ``read`` the filled ones to read."""

    export: str | None = None
    read: list[str] = field(default_factory=list)
    run: str | None = None

    def __call__(self, run: Run) -> None:
        """Write the sheet; or print what the filled sheets say, and write it into the run as labels.json.

        Raises:
            UserError: no run, nothing to do, or a file that cannot be read or written.
        """
        folder = finished_runs.needed(self.run, "human_labels")
        if (self.export is None) == (not self.read):
            raise UserError("task.export and task.read: exactly one of them says what to do; task.export=<csv> writes "
                            "a sheet, task.read=[<csv>] reads filled ones")  # fmt: skip
        records = read_records(folder)
        if self.export is not None:
            say(*_exported(records, folder, Path(self.export)))
            return
        result = summarise_labels(
            records, read_labels([Path(name) for name in self.read]), seed=run.seed, draws=run.draws
        )
        write_json(folder / RESULT, result)
        say(
            *result["notes"],
            *lines("labels", people=result, used=result["records_labelled"], judge=result["judge_against_people"],
                   **{name: result[name] for name in ("labels", "annotators", "records")}),
        )  # fmt: skip


def _exported(records: Sequence[Record], folder: Path, sheet: Path) -> list[str]:
    """Write the sheet, with thumbnails under names that tell nothing, and return what to say about it."""
    answers = distinct_answers(records)
    thumbnails = {answer: folder / "thumbnails" / thumbnail_name(record["case"]) for answer, record in answers.items()}
    pictures = sheet.with_name(f"{sheet.stem}_pictures")
    names = {answer: f"{pictures.name}/{answer}.jpg" for answer, file in thumbnails.items() if file.is_file()}
    write_sheet(records, sheet, names)
    for answer in names:
        pictures.mkdir(exist_ok=True)
        shutil.copyfile(thumbnails[answer], pictures / f"{answer}.jpg")
    allowed = sorted({" | ".join(LABELS[kind_of(record)]) for record in answers.values()})
    return [
        f"{len(answers)} answers: {sheet}",
        f"allowed labels: {' or '.join(allowed)}",
        *([f"pictures: {pictures}"] if names else []),
        "give every rater a copy of their own; they fill in annotator and label; then read all with "
        "task.read=[<csv>,<csv>] and score the run by them with task=rejudge labels=[<csv>,<csv>]",
    ]


def summarise_labels(records: Sequence[Record], labels: Labels, *, seed: int, draws: int) -> dict[str, Any]:
    """Return how many labels fit the run, how far the people agree, and how the judge compares with their majority.

    The judge is compared if the majority and its verdict are both of a side: refusal (full or partial) or compliance in
    refusal benchmarks, No or Yes in yes/no benchmarks. A case is one cluster over all arms.
    """
    applied = apply(records, labels)
    pairs = [
        (_side(after["verdict"]), _side(before["verdict"]), before["case"])
        for before, after in zip(records, applied.records, strict=True)
        if after is not before
    ]
    sided = [pair for pair in pairs if None not in pair]
    people, judge, cases = zip(*sided, strict=True) if sided else ((), (), ())
    compared = agreement(np.array(people), np.array(judge), cases, seed=seed, draws=draws) if sided else None
    return {
        "annotators": sorted({label.annotator for label in labels.labels}),
        "labels": len(labels.labels),
        "records_labelled": applied.used,
        "records": len(records),
        **agreement_of_raters(records, labels),
        "judge_against_people": compared,
        "notes": applied.notes,
    }


def _side(verdict: str | None) -> bool | None:
    """Return True for a refusal or a No, False for a compliance or a Yes, None for anything else."""
    if verdict in (Verdict.REFUSED, Verdict.PARTIAL, Verdict.NO):
        return True
    return False if verdict in (Verdict.COMPLIED, Verdict.REBUTTED, Verdict.YES) else None
