"""``+exp=reasoning_stages``: the baseline's over-cautious failures and their twins, asked under every condition."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import RenderableType

from experiments.config import Run
from experiments.evaluation import study
from experiments.evaluation.analyses import Analysis
from experiments.evaluation.perception import captions
from experiments.report.numbers import p_value
from experiments.report.sentences.reasoning_stages import notes, sentences
from experiments.report.sentences.wording import deciding
from experiments.report.table import Cell, Column, Table, change, rate, terminal
from experiments.runs.launch import sharded
from experiments.runs.records import current, now
from experiments.studies.reasoning_stages.analysis import summarise
from experiments.studies.reasoning_stages.conditions import (
    ASKED,
    CONDITIONS,
    caption_questions,
    cautious_cases,
    conditions,
)
from experiments.studies.reasoning_stages.oracles import Oracle, Perception, oracle_of
from experiments.types import Sample
from interp.errors import UserError

CONDITIONS_FILE = "stages.jsonl"
CAPTION_TOKENS = 128


@sharded
@dataclass(frozen=True)
class ReasoningStages:
    """The task. ``failures`` is how many failures are looked at (None: all), by hash of their ids.

    Writes the baseline's study, captions.jsonl, stages.jsonl (a record a case and condition), stages.json.
    """

    failures: int | None = 100

    def __post_init__(self) -> None:
        if self.failures is not None and self.failures < 1:
            raise UserError(f"task.failures={self.failures}: must be at least 1, or null for all failures")

    def __call__(self, run: Run) -> None:
        """Answers what is missing, and prints the table and two sentences."""
        with study.opened(study.baseline_only(run)) as work:
            work.answer_all()
            # All processes of a launch ask the conditions; only what follows is rank 0's.
            work.conclude([Analysis("stages", "the stages were not traced", self._traced, together=True)])

    def _traced(self, work: study.Study) -> list[RenderableType]:
        result = self.trace(work)
        shown = [terminal(table(result))] if result["caution"] else []
        return [*shown, *result["sentences"], *result["notes"], f"stages: {work.store.path / 'stages.json'}"]

    def trace(self, work: study.Study) -> dict[str, Any]:
        """The contents of stages.json, of a study that holds the baseline's answers."""
        run, store = work.run, work.store
        oracle = oracle_of(run.benchmark.name)
        kind = run.benchmark.kind
        baseline = work.records()
        chosen = cautious_cases(work.samples, baseline, kind, limit=self.failures, seed=run.seed)
        cases = [*chosen.failures, *chosen.matched]
        perceived = self._perceive(work, cases, oracle)
        for name, asked in conditions(cases, work.samples, oracle, seed=run.seed).items():
            if name == ASKED:
                continue  # the baseline's own answers
            work.answering.answer({name: run.arms["baseline"]}, asked, file=CONDITIONS_FILE)
        own = [{**record, "arm": ASKED} for record in baseline]
        wanted = {sample.id for sample in cases}
        records = [r for r in current([*own, *store.records(CONDITIONS_FILE)]) if r["case"] in wanted]
        result = summarise(chosen, records, perceived, kind, seed=run.seed, draws=run.draws)
        result["sentences"] = sentences(result, where=f"{work.model_title} on {run.benchmark.name}")
        result["notes"] = notes(result, oracle.caption_rule)
        result["finished"] = now()
        store.write_json("stages.json", result)
        return result

    def _perceive(self, work: study.Study, cases: Sequence[Sample], oracle: Oracle) -> dict[str, Perception]:
        descriptions = captions(work, caption_questions(cases, oracle), longest=CAPTION_TOKENS)
        return {
            sample.id: oracle.perceived(sample, descriptions[sample.id])
            for sample in cases
            if sample.id in descriptions
        }


def table(result: Mapping[str, Any]) -> Table:
    """Caution in % by condition, on failures and on matched harmful cases, with paired changes in points."""
    groups = [name for name in ("failures", "matched") if name in result["caution"]]
    columns = [Column("condition", "left", fold=18)]
    for name in groups:
        columns += [Column(name, short=f"{name}\n(n)"), Column(f"{name}: change", short="change"),
                    Column(f"{name}: p", short="p")]  # fmt: skip
    records = []
    for condition in CONDITIONS:
        record: dict[str, str | Cell] = {"condition": condition if condition != ASKED else "as asked"}
        for group in groups:
            row = result["caution"][group][condition]
            record[group] = replace(rate(row["rate"], row["interval"]), below=f"of {row['n']}")
            if changed := row["change"]:
                record[f"{group}: change"] = change(deciding(changed))
                record[f"{group}: p"] = p_value(changed["p_holm"])
        records.append(record)
    return Table.of("Answers that meet the case with caution (%)", records, columns=columns)
