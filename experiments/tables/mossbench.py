"""``+exp=mossbench_leaderboard``: published responses judged again, into the leaderboard's columns. Loads no model."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from experiments.benchmarks.images import open_image
from experiments.judges.automatic import Automatic
from experiments.judges.judge import Item, Judge, Judgement
from experiments.outcomes import Status
from experiments.records import now
from experiments.refusal.metrics import evaluate
from experiments.report.formatting import fixed
from experiments.schema import Run
from experiments.store import RunStore, open_run
from experiments.tables import leaderboard, submission
from experiments.tables.mossbench_files import Question, questions, responses
from interp.errors import UserError


@dataclass(frozen=True)
class Leaderboard:
    """The task. ``root`` is a clone of MOSSBench's repository, ``judge`` any refusal judge (default: the phrase rules).

    Writes predictions.jsonl, metrics.json, leaderboard.csv, and a submission a model with its reject rates by type.
    """

    root: str | None = None
    judge: Any = field(default_factory=Automatic)

    def __call__(self, run: Run) -> None:
        """Judges every published response, and prints both conventions beside the published rows."""
        judge = refusal_judge(self.judge)
        root = Path(self.root or "")
        if self.root is None:
            raise UserError("task.root=null: needs MOSSBench's repository; give task.root=<folder>")
        asked, answered = questions(root), responses(root)
        console = Console()
        with open_run(run.output_root, run.name, run.config, run.config_hash, fresh=True) as store:
            records = [record for model in answered for record in judged(asked, answered[model], model, judge)]
            store.append(records)
            metrics = evaluate(pd.DataFrame(records), seed=run.seed, draws=run.draws, baseline="",
                               where="published responses on mossbench")  # fmt: skip
            store.write_json("metrics.json", metrics)
            store.write_json("environment.json", _environment(root, judge.name, run))
            self._submissions(store, asked, records, judge.name)
            rows = leaderboard.rows(metrics)
            frame(rows).to_csv(store.path / "leaderboard.csv", index=False)
            store.finish()
        for shown in (table(rows, judge.name), *summary(rows)):
            console.print(shown, highlight=False)
        console.print(f"leaderboard: {store.path}", highlight=False, soft_wrap=True, markup=False)

    def _submissions(
        self, store: RunStore, asked: Mapping[str, Question], records: list[dict[str, Any]], judge: str
    ) -> None:
        folder = store.path / "submission"
        folder.mkdir()
        for model in dict.fromkeys(record["arm"] for record in records):
            entries = submission.results(asked, [r for r in records if r["arm"] == model], judge=judge)
            name = re.sub(r"[^A-Za-z0-9._-]+", "_", model).strip("._")
            store.write_json(f"submission/{name}.json", entries)
            store.write_json(f"submission/{name}_reject_rates.json", submission.reject_rates(entries))


def refusal_judge(judge: Any) -> Judge:
    """The judge itself; UserError for one that reads other answers."""
    chosen: Judge = judge.for_kind("refusal") if isinstance(judge, Automatic) else judge
    if getattr(chosen, "kind", None) != "refusal":
        raise UserError(f"judge {chosen}: does not read refusals; choose one in conf/judge, judge@task.judge=<name>")
    return chosen


def judged(
    asked: Mapping[str, Question], answers: Mapping[str, str | None], model: str, judge: Judge
) -> Iterator[dict[str, Any]]:
    """A record a question; one without a published response is a failed transport, as a null is."""
    if unknown := sorted(set(answers) - set(asked)):
        raise UserError(f"published responses of {model}: pid {unknown[0]} is no question; give files of one release")
    texts = {pid: (answers.get(pid) or "").strip() for pid in asked}
    spoken = [pid for pid, text in texts.items() if text]
    items = [_item(asked[pid], texts[pid]) for pid in spoken]
    found: dict[str, Judgement] = dict(zip(spoken, judge.judge(items), strict=True))
    for pid, question in asked.items():
        status = Status.TRANSPORT_FAILED if answers.get(pid) is None else Status.EMPTY
        judgement = found.get(pid)
        yield {
            "case": f"m{pid}", "pid": pid, "arm": model, "settings": "published",
            "status": (Status.ANSWERED if judgement else status).value,
            "verdict": judgement and judgement.verdict.value, "judge": judge.name,
            "explanation": judgement.explanation if judgement else "", "response": answers.get(pid), "margin": None,
            "subset": "benign", "scenario": question.type, "gold": "comply", "cluster": question.text, "pair": None,
            "tags": _tags(question.metadata), "text": question.text,
        }  # fmt: skip


def _item(question: Question, response: str) -> Item:
    image = partial(open_image, question.image) if question.image.is_file() else None
    return Item(f"m{question.pid}", question.text, response, image, "comply")


def _tags(metadata: Mapping[str, Any]) -> dict[str, str]:
    values = {name: value[0] if isinstance(value, list) and value else value for name, value in metadata.items()}
    return {name: str(value) for name, value in values.items() if name in ("harm", "human", "child", "syn", "ocr")}


def _environment(root: Path, judge: str, run: Run) -> dict[str, Any]:
    return {"benchmark": {"name": "mossbench", "root": str(root)}, "judge": judge, "seed": run.seed, "note": run.note,
            "config": run.config, "config_hash": run.config_hash, "finished": now()}  # fmt: skip


def frame(rows: list[leaderboard.Row]) -> pd.DataFrame:
    """A line a model and convention; % and points."""
    names = [name.lower().replace(" ", "_") for name in leaderboard.COLUMNS]
    return pd.DataFrame(
        [
            {"model": row.model, "convention": row.convention}
            | dict(zip(names, row.cells, strict=True))
            | {"average": row.average}
            | dict(zip([f"n_{name}" for name in names], row.n, strict=True))
            | dict(zip([f"published_{name}" for name in (*names, "average")], row.published or [None] * 4, strict=True))
            | dict(zip([f"error_{name}" for name in names], row.errors, strict=True))
            for row in rows
        ]
    )


def table(rows: list[leaderboard.Row], judge: str) -> Table:
    """Refusals in % by type: ours, below it the published cell and the absolute error."""
    shown = Table(title=Text(f"MOSSBench: refusals in %, judge {judge}", style="bold"), title_justify="left",
                  box=SIMPLE_HEAD, padding=0, pad_edge=False)  # fmt: skip
    shown.add_column("model / convention", max_width=34)
    for name in ("Exaggerated\nRisk", "Negated\nHarm", "Counter-\nintuitive", "average"):
        shown.add_column(name, justify="right")
    for row in rows:
        n = "" if len(set(row.n)) == 1 and row.convention == leaderboard.CONVENTIONS[0] else f" (n {sum(row.n)})"
        ours = [fixed(cell, 1) for cell in (*row.cells, row.average)]
        shown.add_row(Text(row.model, style="bold"), *(Text(cell, style="bold") for cell in ours))
        theirs = ["" for _ in ours]
        if row.published:
            errors = [*row.errors, None if row.average is None else abs(row.average - row.published[3])]
            theirs = [
                f"{fixed(cell, 1)} off {fixed(error, 1)}" for cell, error in zip(row.published, errors, strict=True)
            ]
        shown.add_row(Text(f"  {row.convention}{n}", style="dim"), *(Text(cell, style="dim") for cell in theirs))
    return shown


def summary(rows: list[leaderboard.Row]) -> Iterator[str]:
    """Error a cell and average rate by type, by convention."""
    yield "Below each rate: the published one, and by how many points ours is off."
    for convention in leaderboard.CONVENTIONS:
        error = leaderboard.mean_absolute_error(rows, convention)
        by_type = leaderboard.averages_by_type(rows, convention)
        listed = "; ".join(f"{name} {fixed(value, 1)}%" for name, value in by_type.items())
        yield (
            f"{convention.capitalize()}: mean absolute error {fixed(error, 2)} points a cell (the leaderboard's own "
            f"human raters: {leaderboard.HUMAN_DIFFERENCE}). Average refusal rate by type of stimulus: {listed}."
        )
