"""``task=rejudge run=<dir>``: judge a run's saved responses again, by another judge or by people. Loads no model.

The new verdicts, results and report go into a run directory of their own; the judged run stays as it is. A run that an
earlier version made has no results.csv. Its verdicts stay unless a judge is named, and the new directory has the table.

``task=human_labels`` writes a run's answers as a sheet to label. ``labels=[<csv>]`` reads filled sheets.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from experiments.benchmarks.images import one_picture
from experiments.benchmarks.rows import json_file
from experiments.config import Run
from experiments.evaluation import finished_runs, scoring
from experiments.evaluation.cases import batches, transcript
from experiments.evaluation.fitting import recomputed
from experiments.evaluation.scoring import judgement_without_text
from experiments.evaluation.validated_run import check_contrasts
from experiments.judges.yes_no import Automatic
from experiments.metrics.judge_error import agreement, pairwise_kappa
from experiments.report import terminal
from experiments.report.cases import FILE as CASES
from experiments.report.figures import CURVES
from experiments.report.saved_run import thumbnail_name
from experiments.report.tables import lines, say
from experiments.runs import record_fields
from experiments.runs.labels import (
    LABELS,
    Labels,
    answer_id,
    apply,
    distinct_answers,
    kind_of,
    random_part,
    read_labels,
    write_sheet,
)
from experiments.runs.record_fields import RECORD_KEYS, read_records
from experiments.runs.results_table import FILE as TABLE
from experiments.runs.results_table import Results, Row, read_results
from experiments.runs.store import read_object
from experiments.types import Item, Judge, Judgement, Kind, Sample, Status, Verdict
from interp.errors import UserError

ANSWERS_A_STEP = 64
CHOSEN = (
    "Nothing is claimed: the labelled answers are not a random part of the run, so rates with them are biased. Label "
    "the first lines of the sheet (task=human_labels), or all."
)
WAY_OUT = "type the run's command again, which finishes it"
Record = dict[str, Any]
NEGATIVE, POSITIVE = (Verdict.REFUSED, Verdict.PARTIAL, Verdict.NO), (Verdict.COMPLIED, Verdict.REBUTTED, Verdict.YES)
SIDES = {verdict.value: verdict in NEGATIVE for verdict in (*NEGATIVE, *POSITIVE)}  # whether it refuses, or says No


@dataclass(frozen=True)
class Rejudge:
    """The task: judge ``run`` again, with the configured judge, or with people's labels (the sheets ``labels``).

    With labels only, answers without a label keep the verdicts of the judged run.
    """

    run: str | None = None
    labels: Any = None  # a path, or several

    def __post_init__(self) -> None:
        names = [self.labels] if isinstance(self.labels, str) else self.labels
        many = isinstance(names, list) and names and all(isinstance(name, str) for name in names)
        if names is not None and not many:
            raise UserError(f"labels={self.labels!r}: must be a CSV, or several as [anna.csv,ben.csv]")
        object.__setattr__(self, "labels", names)

    def __call__(self, run: Run) -> None:
        """Write the new run, and print its results and how many verdicts changed.

        Raises:
            UserError: the run is not finished, or the judge or the labels cannot be used.
        """
        folder = finished_runs.needed(self.run, "rejudge")
        before = read_records(folder, RECORD_KEYS)
        environment = json_file(folder / "environment.json", dict, WAY_OUT)
        design = read_object(folder / "metrics.json")
        if not design and not environment.get("finished"):
            raise UserError(f"run={folder} is not finished; {WAY_OUT}")
        kind: Kind = "refusal" if before[0]["gold"] in ("comply", "refuse") else "yes_no"
        judge = self._judge(run, kind, rebuilt=not (folder / TABLE).is_file())
        if judge is not None and hasattr(judge, "check"):
            judge.check()
        check_contrasts(run, list(dict.fromkeys(record["arm"] for record in before)), kind)
        first = scoring.first_family(environment)
        after = before if judge is None else _judged(before, judge, run)
        notes: list[str] = []
        chosen = False  # whether somebody chose the labelled answers
        people = [] if judge or self.labels else [str(line) for line in environment.get("people") or ()]
        if self.labels is not None:
            labels = read_labels([Path(name) for name in self.labels])
            labelled = apply(after, labels)
            raters = agreement_of_raters(after, labels)
            people = lines("labels", people=raters, used=labelled.used, records=len(after))
            people += against_people(after, labelled.records, seed=run.seed, draws=run.draws)
            after, notes, part = labelled.records, labelled.notes, random_part(before, labels)
            chosen = part is None
            if part is not None and len(scored := [record for record in after if record["case"] in part]) < len(after):
                cases = len({record["case"] for record in after})
                people.append(f"Only the {len(part)} of {cases} cases with labels of all answers are scored.")
                before, after = [record for record in before if record["case"] in part], scored
            if chosen:
                people.append(CHOSEN)
        after = recomputed(after)
        changed = sum(a["verdict"] != b["verdict"] for a, b in zip(before, after, strict=True))
        named = judge.name if judge else str(environment.get("judge"))
        judged_by = " and ".join([*([named] if judge or not self.labels else []), *(["people"] if self.labels else [])])
        scorer = judge or Automatic().for_kind(kind)
        later = [pair for pair in run.contrasts if pair not in first["contrasts"]]
        evaluation = scoring.evaluate(
            replace(run, contrasts=[*first["contrasts"], *later]),
            after,
            study=str(design.get("study") or environment.get("arm_under_study")),
            kind=kind,
            judge=scorer if self.labels is None and scorer.name == named else named,
            missing=design.get("not_applicable") or {},
            first=first,
            unmeasured=chosen,
        )
        design = evaluation.design
        environment |= {
            "family": first, "judge": judged_by, "judged_run": str(folder), "people": people,
            "finished": record_fields.timestamp(),
        }  # fmt: skip
        attention = {file: read_object(folder / file) for file in ("attention.json", CASES)}
        results = Results([*evaluation.results, *_attention(folder)])
        page = finished_runs.derived(
            run,
            f"{environment.get('config', {}).get('name', 'run')}_rejudged",
            [str(folder.resolve()), judged_by],
            after,
            {"metrics.json": design, "environment.json": environment}
            | {file: content for file, content in attention.items() if content},
            results,
            pictures=[folder],
        )
        width = Console().width
        say(
            terminal.render(results, design, environment, verbose=run.verbose, width=width),
            *([] if run.verbose else people),
            *notes,
            f"{changed} of {len(after)} verdicts changed.",
            f"report: {page}",
        )

    def _judge(self, run: Run, kind: Kind, *, rebuilt: bool) -> Judge | None:
        """Return the judge that was named, or the default; None if the verdicts stay."""
        if run.judge_named:
            if run.judge.kind != kind:
                raise UserError(
                    f"judge {run.judge.name} reads {run.judge.kind} answers, and {self.run} has {kind} answers; choose "
                    "another in conf/judge"
                )
            return run.judge
        return None if rebuilt or self.labels is not None else Automatic().for_kind(kind)


def agreement_of_raters(records: Sequence[Record], labels: Labels) -> dict[str, Any]:
    """Return raters and pairwise κ; an answer that several arms gave to a case counts once.

    ``records`` are the run's, labelled or not. Labels of other answers do not count.
    """
    answers = {answer_id(record) for record in records if record.get("response")}
    verdicts: dict[str, dict[str, str]] = {}
    for label in labels.labels:
        if label.answer in answers:
            verdicts.setdefault(label.answer, {}).setdefault(label.annotator, label.verdict.value)
    raters = sorted({rater for by_rater in verdicts.values() for rater in by_rater})
    return {"raters": raters, "pairwise_kappa": pairwise_kappa(verdicts)}


def against_people(judged: Sequence[Record], labelled: Sequence[Record], *, seed: int, draws: int) -> list[str]:
    """Return a sentence on the judge's verdicts against people's, on the records that people ``labelled``.

    Both verdicts must be of a side: refusal (full or partial) or compliance, No or Yes. A case is a cluster over all
    arms.
    """
    pairs = [
        (SIDES.get(after["verdict"]), SIDES.get(before["verdict"]), before["case"])
        for before, after in zip(judged, labelled, strict=True)
        if after is not before
    ]
    sided = [pair for pair in pairs if None not in pair]
    if not sided:
        return lines("labels", judge=None)
    people, judge, cases = zip(*sided, strict=True)
    return lines("labels", judge=agreement(np.array(people), np.array(judge), cases, seed=seed, draws=draws))


def _attention(folder: Path) -> list[Row]:
    """Return the rows of the analysis of attention, which does not depend on the new verdicts."""
    results = read_results(folder) if (folder / TABLE).is_file() else Results([])
    return [entry for entry in results if entry.arm in CURVES or entry.quantity.startswith("attention_")]


def _judged(before: Sequence[Record], judge: Judge, run: Run) -> list[Record]:
    """Return the records with the judge's verdicts; a record without text keeps none."""
    pictures = {sample.id: sample for sample in run.benchmark.load().samples} if getattr(judge, "looks", False) else {}
    readable = [record for record in before if Status(record["status"]).has_text and not record.get("computed")]
    judgements = {}
    for batch in batches(readable, ANSWERS_A_STEP):
        items = [_item(record, pictures) for record in batch]
        for record, judgement in zip(batch, judge.judge(items), strict=True):
            judgements[record["case"], record["arm"]] = judgement
    return [_rejudged(record, judgements.get((record["case"], record["arm"])), judge) for record in before]


def _rejudged(record: Record, judgement: Judgement | None, judge: Judge) -> Record:
    if Status(record["status"]).excluded or record.get("computed"):
        return record
    others = {key: value for key, value in record.items() if key not in record_fields.OF_JUDGES}
    return others | record_fields.judge_fields(judgement or judgement_without_text(judge), judge.name)


def _item(record: Record, pictures: Mapping[str, Sample]) -> Item:
    sample = pictures.get(record["case"])
    image = None if sample is None or sample.image is None else partial(one_picture, sample)
    language = (record.get("tags") or {}).get("language", "en")
    question = transcript(record.get("steps") or {}) or record["text"]
    return Item(record["case"], question, record["response"], image, record["gold"], language)


@dataclass(frozen=True)
class HumanLabels:
    """The task, on the directory ``run``: ``export`` names the sheet to write."""

    export: str | None = None
    run: str | None = None

    def __call__(self, run: Run) -> None:
        """Write the sheet, with thumbnails under names that tell nothing, and say what people fill in.

        Raises:
            UserError: no run, no sheet, or a file that cannot be read or written.
        """
        folder = finished_runs.needed(self.run, "human_labels")
        if self.export is None:
            raise UserError(
                "task.export=null: names no sheet to write; set task.export=<csv>. Filled sheets are read by "
                "task=rejudge run=<dir> labels=[<csv>]"
            )
        records, sheet = read_records(folder), Path(self.export)
        answers = distinct_answers(records)
        files = {each: folder / "thumbnails" / thumbnail_name(record["case"]) for each, record in answers.items()}
        pictures = sheet.with_name(f"{sheet.stem}_pictures")
        names = {answer: f"{pictures.name}/{answer}.jpg" for answer, file in files.items() if file.is_file()}
        write_sheet(records, sheet, names)
        for answer in names:
            pictures.mkdir(exist_ok=True)
            shutil.copyfile(files[answer], pictures / f"{answer}.jpg")
        allowed = sorted({" | ".join(LABELS[kind_of(record)]) for record in answers.values()})
        say(
            f"{len(answers)} answers: {sheet}",
            f"allowed labels: {' or '.join(allowed)}",
            *([f"pictures: {pictures}"] if names else []),
            "give every rater a copy; they fill in annotator and label; then score the run by them, and see how far "
            "they agree with each other and with the judge: task=rejudge run=<dir> labels=[<csv>,<csv>]",
        )
