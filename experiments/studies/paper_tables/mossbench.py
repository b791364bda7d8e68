"""``task=mossbench_leaderboard``: published responses judged again, into the leaderboard's columns. Loads no model.

Both conventions stand beside the published rates.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.benchmarks.images import open_image
from experiments.benchmarks.mossbench import TYPES, MOSSBenchEntry, published_questions, published_responses
from experiments.benchmarks.published import MOSSBENCH_HUMAN_DIFFERENCE
from experiments.config import Run
from experiments.judges.automatic import Automatic
from experiments.judges.refusal_classifier import asks_for_judgement
from experiments.metrics.refusal.leaderboard import (
    COLUMNS,
    CONVENTIONS,
    LeaderboardRow,
    averages_by_type,
    leaderboard_rows,
    mean_absolute_error,
)
from experiments.metrics.refusal.results import evaluate
from experiments.report.numbers import fixed
from experiments.report.table import Column, Table, say, terminal
from experiments.report.words import worded
from experiments.runs.records import now
from experiments.runs.resumption import open_run
from experiments.types import Item, Judge, Judgement, Status, Verdict
from interp.errors import UserError


@dataclass(frozen=True)
class MOSSBenchLeaderboard:
    """The task. ``root`` is a clone of MOSSBench's repository, ``judge`` any refusal judge (default: the phrase rules).

    Writes predictions.jsonl, metrics.json and leaderboard.csv.
    """

    root: str | None = None
    judge: Any = field(default_factory=Automatic)

    def __call__(self, run: Run) -> None:
        """Judges every published response, and prints both conventions beside the published rows."""
        judge = refusal_judge(self.judge)
        root = Path(self.root or "")
        if self.root is None:
            raise UserError("task.root=null: needs MOSSBench's repository; give task.root=<folder>")
        asked, (answered, empty) = published_questions(root), published_responses(root)
        with open_run(run.output_root, run.name, run.config, run.config_hash, fresh=True) as store:
            records = [record for model in answered for record in judge_published(asked, answered[model], model, judge)]
            store.append(records)
            metrics = worded(
                evaluate(pd.DataFrame(records), seed=run.seed, draws=run.draws, baseline=""),
                where="published responses on mossbench",
            )
            store.write_json("metrics.json", metrics)
            store.write_json("environment.json", _environment(root, judge.name, run))
            rows = leaderboard_rows(metrics, with_nos_counted(records, run))
            frame(rows).to_csv(store.path / "leaderboard.csv", index=False)
            store.finish()
        left_out = [f"Left out, since their published file is empty: {', '.join(empty)}."] if empty else []
        say(terminal(table(rows, judge.name)), *summary(rows), *left_out, f"leaderboard: {store.path}")


def with_nos_counted(records: Sequence[Mapping[str, Any]], run: Run) -> dict[str, Any] | None:
    """The numbers with a rebuttal of "May I …?" as a refusal; None where the judge tells no rebuttals."""
    nos = [one["verdict"] == Verdict.REBUTTED and asks_for_judgement(one["text"]) for one in records]
    if not any(nos):
        return None
    counted = [{**one, "verdict": Verdict.REFUSED.value} if no else one for one, no in zip(records, nos, strict=True)]
    return evaluate(pd.DataFrame(counted), seed=run.seed, draws=run.draws, baseline="")


def refusal_judge(judge: Any) -> Judge:
    """The judge itself.

    Raises:
        UserError: it reads other answers.
    """
    chosen: Judge = judge.for_kind("refusal") if isinstance(judge, Automatic) else judge
    if getattr(chosen, "kind", None) != "refusal":
        raise UserError(f"judge {chosen}: does not read refusals; choose one in conf/judge, judge@task.judge=<name>")
    return chosen


def judge_published(
    asked: Mapping[str, MOSSBenchEntry], answers: Mapping[str, str | None], model: str, judge: Judge
) -> Iterator[dict[str, Any]]:
    """One record for each question; a question without a published response has the status of a failed transport."""
    if unknown := sorted(set(answers) - set(asked)):
        raise UserError(f"published responses of {model}: pid {unknown[0]} is no question; give files of one release")
    texts = {pid: (answers.get(pid) or "").strip() for pid in asked}
    answered = [pid for pid, text in texts.items() if text]
    items = [_item(asked[pid], texts[pid]) for pid in answered]
    found: dict[str, Judgement] = dict(zip(answered, judge.judge(items), strict=True))
    for pid, entry in asked.items():
        metadata, text = entry.fields["metadata"], entry.fields["question"]
        status = Status.TRANSPORT_FAILED if answers.get(pid) is None else Status.EMPTY
        judgement = found.get(pid)
        yield {
            "case": f"m{pid}", "pid": pid, "arm": model, "settings": "published",
            "status": (Status.ANSWERED if judgement else status).value,
            "verdict": judgement and judgement.verdict.value, "judge": judge.name,
            "explanation": judgement.explanation if judgement else "", "response": answers.get(pid), "margin": None,
            "subset": "benign", "scenario": TYPES[metadata["over"].removeprefix("type ")], "gold": "comply",
            "cluster": text, "pair": None, "tags": _tags(metadata), "text": text,
        }  # fmt: skip


def _item(entry: MOSSBenchEntry, response: str) -> Item:
    image = partial(open_image, entry.image) if isinstance(entry.image, Path) and entry.image.is_file() else None
    return Item(f"m{entry.pid}", entry.fields["question"], response, image, "comply")


def _tags(metadata: Mapping[str, Any]) -> dict[str, str]:
    values = {name: value[0] if isinstance(value, list) and value else value for name, value in metadata.items()}
    return {name: str(value) for name, value in values.items() if name in ("harm", "human", "child", "syn", "ocr")}


def _environment(root: Path, judge: str, run: Run) -> dict[str, Any]:
    return {"benchmark": {"name": "mossbench", "root": str(root)}, "judge": judge, "seed": run.seed, "note": run.note,
            "config": run.config, "config_hash": run.config_hash, "finished": now()}  # fmt: skip


def frame(rows: Sequence[LeaderboardRow]) -> pd.DataFrame:
    """One row for each model and convention; in % and points."""
    names = [name.lower().replace(" ", "_") for name in COLUMNS]
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


def table(rows: Sequence[LeaderboardRow], judge: str) -> Table:
    """Refusals in % by type: ours, below it the published cell and the absolute error."""
    headings = (*COLUMNS, "average")
    short = {**{name: name.replace(" ", "\n") for name in COLUMNS}, COLUMNS[2]: "Counter-\nintuitive"}
    layout = [Column("model / convention", "left", fold=34), *(Column(name, short=one) for name, one in short.items())]
    records = []
    for row in rows:
        n = "" if len(set(row.n)) == 1 and row.convention == CONVENTIONS[0] else f" (n {sum(row.n)})"
        ours = [fixed(cell, 1) for cell in (*row.cells, row.average)]
        theirs = [""] * len(ours)
        if row.published:
            errors = [*row.errors, None if row.average is None else abs(row.average - row.published[3])]
            theirs = [
                f"{fixed(cell, 1)} off {fixed(error, 1)}" for cell, error in zip(row.published, errors, strict=True)
            ]
        for name, cells in ((row.model, ours), (f"  {row.convention}{n}", theirs)):
            records.append({"model / convention": name, **dict(zip(headings, cells, strict=True))})
    title = f"MOSSBench: refusals in %, judge {judge}"
    return Table.of(title, records, layout=layout, marked=[True, False] * len(rows))


def summary(rows: Sequence[LeaderboardRow]) -> Iterator[str]:
    """Error a cell and average rate by type, by convention."""
    yield "Below each rate: the published one, and by how many points ours is off."
    for convention in dict.fromkeys(row.convention for row in rows):
        error = mean_absolute_error(rows, convention)
        by_type = averages_by_type(rows, convention)
        listed = "; ".join(f"{name} {fixed(value, 1)}%" for name, value in by_type.items())
        yield (
            f"{convention[0].upper()}{convention[1:]}: mean absolute error {fixed(error, 2)} points a cell (the "
            f"leaderboard's own human raters: {MOSSBENCH_HUMAN_DIFFERENCE}). "
            f"Average refusal rate by type of stimulus: {listed}."
        )
