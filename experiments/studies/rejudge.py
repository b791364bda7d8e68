"""``task=rejudge run=<dir>``: a run's saved responses judged again, by another judge or by people. Loads no model.

The new verdicts, metrics and report go into a run directory of their own; the judged run stays as it is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from experiments.benchmarks.images import open_image
from experiments.config import Run
from experiments.evaluation import finished_runs, scoring
from experiments.evaluation.admission import check_contrasts
from experiments.evaluation.case_batches import batches
from experiments.evaluation.human_verdicts import agreement_of_raters, share_sentence
from experiments.evaluation.judging import judgement_without_text
from experiments.judges.automatic import Automatic
from experiments.report import terminal
from experiments.report.cases import FILE as CASES
from experiments.report.words import with_sentences
from experiments.runs import records
from experiments.runs.labels import apply, read_labels
from experiments.runs.resumption import read_object
from experiments.runs.saved_run import read_run
from experiments.types import Item, Judge, Judgement, Kind, Sample, Status
from interp.errors import UserError

ANSWERS_A_STEP = 64
Record = dict[str, Any]


@dataclass(frozen=True)
class Rejudge:
    """The task: judges ``run`` again, with the configured judge, or with people's labels (the sheets ``labels``).

    With labels alone the judged run's own verdicts stay for answers without a label.
    """

    run: str | None = None
    labels: Any = None  # a path, or several

    def __post_init__(self) -> None:
        names = [self.labels] if isinstance(self.labels, str) else self.labels
        many = isinstance(names, list) and names and all(isinstance(one, str) for one in names)
        if names is not None and not many:
            raise UserError(f"labels={self.labels!r}: must be a CSV, or several as [anna.csv,ben.csv]")
        object.__setattr__(self, "labels", names)

    def __call__(self, run: Run) -> None:
        """Writes the new run, and prints its table and how many verdicts changed."""
        old = read_run(finished_runs.needed(self.run, "rejudge"))
        kind: Kind = "refusal" if old.metrics.get("kind") == "refusal" else "yes_no"
        judge = self._judge(run, kind)
        if judge is not None and hasattr(judge, "check"):
            judge.check()
        check_contrasts(run, old.metrics["arms"], kind)
        first = scoring.first_family(old.environment, old.metrics)
        later = [pair for pair in run.contrasts if pair not in first["contrasts"]]
        console = Console()
        before = old.predictions
        after = before if judge is None else _judged(before, judge, run)
        notes: list[str] = []
        people: list[str] = []
        if self.labels is not None:
            labels = read_labels([Path(name) for name in self.labels])
            labelled = apply(after, labels)
            after, notes = labelled.records, labelled.notes
            people = [share_sentence(labelled.used, len(after), agreement_of_raters(after, labels))]
        changed = sum(a["verdict"] != b["verdict"] for a, b in zip(before, after, strict=True))
        judged_by = " and ".join([*([judge.name] if judge else []), *(["people"] if self.labels else [])])
        benchmark = (old.environment.get("benchmark") or {}).get("name") or "the benchmark"
        studied = str(old.metrics["study"])
        named = judge.name if judge else str(old.environment.get("judge"))
        result = scoring.evaluate(
            replace(run, contrasts=[*first["contrasts"], *later]),
            after,
            study=studied,
            kind=kind,
            judge=judge if judge and self.labels is None else named,
            missing=old.metrics.get("not_applicable") or {},
            first=first,
        )
        result = scoring.with_published_rows(result, benchmark, old.environment.get("model"), after)
        again = {
            "family": first,
            "judge": judged_by,
            "judged_run": str(old.directory),
            "people": people,
            "finished": records.now(),
        }
        environment = {**old.environment, **again}
        attention = {file: read_object(old.directory / file) for file in ("attention.json", CASES)}
        page = finished_runs.derived(
            run,
            f"{environment.get('config', {}).get('name', 'run')}_rejudged",
            [str(old.directory.resolve()), judged_by],
            after,
            {"metrics.json": result, "environment.json": environment}
            | {file: found for file, found in attention.items() if found},  # it does not depend on verdicts
            pictures=[old.directory],
        )
        console.print(terminal.shown(with_sentences(result, environment), verbose=run.verbose, width=console.width))
        for sentence in [
            *([] if run.verbose else people),
            *notes,
            f"{changed} of {len(after)} verdicts changed.",
            f"report: {page}",
        ]:
            console.print(sentence, highlight=False, soft_wrap=True, markup=False)

    def _judge(self, run: Run, kind: Kind) -> Judge | None:
        """The judge asked for, the default one where none is, or none where people's labels are all that is new."""
        if run.judge_named:
            if run.judge.kind != kind:
                raise UserError(f"judge {run.judge.name} reads {run.judge.kind} answers, and {self.run} holds {kind} "
                                "ones; choose another in conf/judge")  # fmt: skip
            return run.judge
        return None if self.labels is not None else Automatic().for_kind(kind)


def _judged(before: Sequence[Record], judge: Judge, run: Run) -> list[Record]:
    """The records with the judge's verdicts; what has no text keeps none."""
    pictures = {sample.id: sample for sample in run.benchmark.load().samples} if getattr(judge, "looks", False) else {}
    readable = [record for record in before if Status(record["status"]).has_text]
    judgements = {}
    for batch in batches(readable, ANSWERS_A_STEP):
        items = [_item(record, pictures) for record in batch]
        for record, judgement in zip(batch, judge.judge(items), strict=True):
            judgements[record["case"], record["arm"]] = judgement
    return [_rejudged(record, judgements.get((record["case"], record["arm"])), judge) for record in before]


def _rejudged(record: Record, judgement: Judgement | None, judge: Judge) -> Record:
    if Status(record["status"]).excluded:
        return record
    kept = {key: value for key, value in record.items() if key not in records.OF_JUDGES}
    return kept | records.judge_fields(judgement or judgement_without_text(judge), judge.name)


def _item(record: Record, pictures: Mapping[str, Sample]) -> Item:
    sample = pictures.get(record["case"])
    image = None if sample is None or sample.image is None else partial(open_image, sample.image)
    language = (record.get("tags") or {}).get("language", "en")
    return Item(record["case"], record["text"], record["response"], image, record["gold"], language)
