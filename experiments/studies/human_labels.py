"""``task=human_labels``: a run's answers as a sheet to label, or the agreement of filled sheets. Loads no model."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from experiments.config import Run
from experiments.evaluation import finished_runs
from experiments.evaluation.human_verdicts import agreement_of_raters, agreement_sentence
from experiments.metrics.agreement import agreement
from experiments.report.tables import say
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
from experiments.runs.resumption import write_json
from experiments.runs.saved_run import read_records, thumbnail_name
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
        """Writes the sheet; or prints, and writes into the run as labels.json, what the sheets say.

        Raises:
            UserError: no run, nothing to do, or a file that cannot be read or written.
        """
        folder = finished_runs.needed(self.run, "human_labels")
        if (self.export is None) == (not self.read):
            raise UserError("task.export and task.read: exactly one of them says what to do; task.export=<csv> writes "
                            "a sheet, task.read=[<csv>] reads filled ones")  # fmt: skip
        lines = read_records(folder)
        if self.export is not None:
            printed = _exported(lines, folder, Path(self.export))
        else:
            labels = read_labels([Path(name) for name in self.read])
            result = summarise_labels(lines, labels, seed=run.seed, draws=run.draws)
            write_json(folder / RESULT, result)
            printed = [*result["notes"], *sentences(result)]
        say(*printed)


def _exported(lines: Sequence[Record], folder: Path, sheet: Path) -> list[str]:
    """Writes the sheet, with the thumbnails under names that tell nothing; what to say of it."""
    answers = distinct_answers(lines)
    shown = {answer: folder / "thumbnails" / thumbnail_name(record["case"]) for answer, record in answers.items()}
    pictures = sheet.with_name(f"{sheet.stem}_pictures")
    names = {answer: f"{pictures.name}/{answer}.jpg" for answer, file in shown.items() if file.is_file()}
    write_sheet(lines, sheet, names)
    for answer in names:
        pictures.mkdir(exist_ok=True)
        shutil.copyfile(shown[answer], pictures / f"{answer}.jpg")
    allowed = sorted({" | ".join(LABELS[kind_of(record)]) for record in answers.values()})
    return [
        f"{len(answers)} answers: {sheet}",
        f"allowed labels: {' or '.join(allowed)}",
        *([f"pictures: {pictures}"] if names else []),
        "give every rater a copy of their own; they fill in annotator and label; then read all with "
        "task.read=[<csv>,<csv>] and score the run by them with task=rejudge labels=[<csv>,<csv>]",
    ]


def summarise_labels(lines: Sequence[Record], labels: Labels, *, seed: int, draws: int) -> dict[str, Any]:
    """How many labels there are and fit the run, α of the annotators, and the run's judge against their majority.

    The judge is compared where people's majority and its verdict are both of a side: refusal (full or partial) or
    compliance in refusal benchmarks, No or Yes in yes/no benchmarks; a case is one cluster over all arms.
    """
    applied = apply(lines, labels)
    people, judge, cases = [], [], []
    for before, after in zip(lines, applied.records, strict=True):
        theirs, its = _side(after["verdict"]), _side(before["verdict"])
        if after is not before and theirs is not None and its is not None:
            people.append(theirs)
            judge.append(its)
            cases.append(before["case"])
    found = agreement(np.array(people), np.array(judge), cases, seed=seed, draws=draws) if cases else None
    return {
        "annotators": sorted({label.annotator for label in labels.labels}),
        "labels": len(labels.labels),
        "records_labelled": applied.used,
        "records": len(lines),
        **agreement_of_raters(lines, labels),
        "judge_against_people": found,
        "notes": applied.notes,
    }


def _side(verdict: str | None) -> bool | None:
    """True for a refusal or a No, False for a compliance or a Yes, None for what is neither."""
    if verdict in (Verdict.REFUSED, Verdict.PARTIAL, Verdict.NO):
        return True
    return False if verdict in (Verdict.COMPLIED, Verdict.REBUTTED, Verdict.YES) else None


def sentences(result: dict[str, Any]) -> list[str]:
    """The contents of ``summarise_labels`` in sentences."""
    lines = [f"{result['labels']} labels by {len(result['annotators'])} annotators; {result['records_labelled']} of "
            f"{result['records']} records have people's verdicts.",
            agreement_sentence(result)]  # fmt: skip
    if (found := result["judge_against_people"]) is None:
        return [*lines, "No labelled answer has a verdict of the judge to compare."]
    names = [name for name in ("kappa", "sensitivity", "specificity") if found[name] is not None]
    numbers = [f"{name} {found[name]:.3f}{_ends(found[f'{name}_interval'])}" for name in names]
    return [*lines, f"The judge against people on {found['n']} answers: {', '.join(numbers) or 'nothing varies'}."]


def _ends(interval: list[float] | None) -> str:
    return "" if interval is None else f" [{interval[0]:.3f}, {interval[1]:.3f}]"
