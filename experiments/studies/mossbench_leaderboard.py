"""``task=mossbench_leaderboard``: published responses judged again, into the leaderboard's columns. Loads no model.

Each convention of counting has a row next to the published rates.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.benchmarks.images import open_image
from experiments.benchmarks.mossbench import TYPES, MOSSBenchEntry, published_questions, published_responses
from experiments.benchmarks.published import MOSSBENCH_HUMAN_DIFFERENCE, mossbench_row
from experiments.config import Run
from experiments.judges.refusal_classifier import asks_for_judgement
from experiments.judges.yes_no import Automatic
from experiments.metrics.outcomes import PUBLISHED as BY_AUTHORS
from experiments.metrics.results import evaluate
from experiments.report.tables import fixed, in_terminal, lines, say, table
from experiments.runs.record_fields import timestamp
from experiments.runs.results_table import Results
from experiments.runs.store import open_run
from experiments.types import Item, Judge, Judgement, Status, Verdict
from interp.errors import UserError


@dataclass(frozen=True)
class MOSSBenchLeaderboard:
    """The task. ``root`` is a clone of MOSSBench's repository, ``judge`` any refusal judge (default: the phrase rules).

    Writes predictions.jsonl, metrics.json, results.csv and leaderboard.csv.
    """

    root: str | None = None
    judge: Any = field(default_factory=Automatic)

    def __call__(self, run: Run) -> None:
        """Judge every published response, and print each convention next to the published rows."""
        judge = refusal_judge(self.judge)
        if self.root is None:
            raise UserError("task.root=null: needs MOSSBench's repository; give task.root=<folder>")
        root = Path(self.root)
        questions, (answered, empty) = published_questions(root), published_responses(root)
        with open_run(run.output_root, run.name, run.config, run.config_hash, fresh=True) as store:
            records = [
                record for model in answered for record in judge_published(questions, answered[model], model, judge)
            ]
            store.append(records)
            evaluation = evaluate(pd.DataFrame(records), "refusal", seed=run.seed, draws=run.draws, baseline="")
            evaluation.results.write(store.path)
            store.write_json("metrics.json", evaluation.design)
            store.write_json("environment.json", _environment(root, judge.name, run))
            frame = leaderboard(evaluation.results, list(answered), with_nos_counted(records, run))
            frame.to_csv(store.path / "leaderboard.csv", index=False)
            store.finish()
        sentences = lines("leaderboard", conventions=summary(frame), human=MOSSBENCH_HUMAN_DIFFERENCE, empty=empty)
        say(in_terminal(beside(frame, judge.name)), *sentences, f"leaderboard: {store.path}")


def with_nos_counted(records: Sequence[Mapping[str, Any]], run: Run) -> Results | None:
    """Return the results with a rebuttal of "May I …?" as a refusal; None if the judge tells no rebuttals."""
    nos = [record["verdict"] == Verdict.REBUTTED and asks_for_judgement(record["text"]) for record in records]
    if not any(nos):
        return None
    counted = [
        {**record, "verdict": Verdict.REFUSED.value} if no else record for record, no in zip(records, nos, strict=True)
    ]
    return evaluate(pd.DataFrame(counted), "refusal", seed=run.seed, draws=run.draws, baseline="").results


def refusal_judge(judge: Any) -> Judge:
    """Return the judge of refusals.

    Raises:
        UserError: it reads other answers.
    """
    chosen: Judge = judge.for_kind("refusal") if isinstance(judge, Automatic) else judge
    if getattr(chosen, "kind", None) != "refusal":
        raise UserError(f"judge {chosen}: does not read refusals; choose one in conf/judge, judge@task.judge=<name>")
    return chosen


def judge_published(
    questions: Mapping[str, MOSSBenchEntry], answers: Mapping[str, str | None], model: str, judge: Judge
) -> Iterator[dict[str, Any]]:
    """Yield a record for each question; one without a published response has the status of a failed transport."""
    if unknown := sorted(set(answers) - set(questions)):
        raise UserError(f"published responses of {model}: pid {unknown[0]} is no question; give files of one release")
    texts = {pid: (answers.get(pid) or "").strip() for pid in questions}
    answered = [pid for pid, response in texts.items() if response]
    items = [_item(questions[pid], texts[pid]) for pid in answered]
    judgements: dict[str, Judgement] = dict(zip(answered, judge.judge(items), strict=True))
    for pid, entry in questions.items():
        metadata, question = entry.fields["metadata"], entry.fields["question"]
        status = Status.TRANSPORT_FAILED if answers.get(pid) is None else Status.EMPTY
        judgement = judgements.get(pid)
        yield {
            "case": f"m{pid}", "pid": pid, "arm": model, "settings": "published",
            "status": (Status.ANSWERED if judgement else status).value,
            "verdict": judgement and judgement.verdict.value, "judge": judge.name,
            "explanation": judgement.explanation if judgement else "", "response": answers.get(pid), "margin": None,
            "subset": "benign", "scenario": TYPES[metadata["over"].removeprefix("type ")], "gold": "comply",
            "cluster": question, "pair": None, "tags": _tags(metadata), "text": question,
        }  # fmt: skip


def _item(entry: MOSSBenchEntry, response: str) -> Item:
    image = partial(open_image, entry.image) if isinstance(entry.image, Path) and entry.image.is_file() else None
    return Item(f"m{entry.pid}", entry.fields["question"], response, image, "comply")


def _tags(metadata: Mapping[str, Any]) -> dict[str, str]:
    values = {name: value[0] if isinstance(value, list) and value else value for name, value in metadata.items()}
    return {name: str(value) for name, value in values.items() if name in ("harm", "human", "child", "syn", "ocr")}


def _environment(root: Path, judge: str, run: Run) -> dict[str, Any]:
    return {"benchmark": {"name": "mossbench", "root": str(root)}, "judge": judge, "seed": run.seed, "note": run.note,
            "config": run.config, "config_hash": run.config_hash, "finished": timestamp()}  # fmt: skip


def beside(frame: pd.DataFrame, judge: str) -> pd.DataFrame:
    """Return refusals in % by type: ours, the published cell and the difference."""

    def cell(row: Mapping[str, Any], name: str) -> str:
        here, printed = row[snake(name)], row[f"published_{snake(name)}"]
        beside = "" if pd.isna(printed) else f" ({fixed(printed, 1)}, off {fixed(abs(here - printed), 1)})"
        return fixed(here, 1) + beside

    records = [
        {"model": row["model"], "counted": row["convention"]}
        | {name: cell(row, name) for name in (*COLUMNS, "average")}
        | {"n": str(sum(row[f"n_{snake(name)}"] for name in COLUMNS))}
        for row in frame.to_dict("records")
    ]
    return table(records, title=f"MOSSBench: refusals in % (published, difference in points), judge {judge}")


def summary(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the mean absolute error a cell, in points, and the average rate by type, in %, for each convention."""
    return [
        {"name": name, "error": rows.filter(like="error_").stack().mean(),
         "types": {column: rows[snake(column)].mean() for column in COLUMNS}}
        for name, rows in frame.groupby("convention", sort=False)
    ]  # fmt: skip


COLUMNS = tuple(TYPES.values())
PUBLISHED_CONVENTION, WITH_RESPONSE = CONVENTIONS = ("empty counted as refusal", "cases with a response")
NO_TO_A_QUESTION = "empty, and no to “May I …?”"  # as the leaderboard's GPT judge counts a rebuttal of one


def snake(name: str) -> str:
    """Return the name of a type of request as columns have it."""
    return name.lower().replace(" ", "_")


def leaderboard(results: Results, models: Sequence[str], counted: Results | None = None) -> pd.DataFrame:
    """Return refusals of MOSSBench's harmless requests in %: a row for each model and convention.

    Columns: ``model``, ``convention``; each type and their plain mean ``average``, as on the leaderboard. ``n_…``
    counts judged cases, ``published_…`` are the leaderboard's cells, ``error_…`` absolute differences in points.

    Args:
        results: a results table whose arms are the models.
        models: in their order.
        counted: the same with rebuttals of questions for a judgement as refusals, for a third convention.
    """
    tables = {PUBLISHED_CONVENTION: (results, BY_AUTHORS), WITH_RESPONSE: (results, "")}
    if counted is not None:
        tables[NO_TO_A_QUESTION] = (counted, BY_AUTHORS)
    records = []
    for model, (convention, (source, rule)) in product(models, tables.items()):
        cells = {snake(name): source.get(model, "refusal_rate", subset="benign", group=f"type={name}", rule=rule)
                 for name in COLUMNS}  # fmt: skip
        printed = zip((*cells, "average"), mossbench_row(model) or [None] * 4, strict=True)
        record: dict[str, Any] = {"model": model, "convention": convention}
        record |= {name: cell and cell.value and 100 * cell.value for name, cell in cells.items()}
        record |= {f"n_{name}": int(cell.n or 0) if cell else 0 for name, cell in cells.items()}
        records.append(record | {f"published_{name}": rate for name, rate in printed})
    frame = pd.DataFrame(records)
    for name in map(snake, COLUMNS):
        frame[name] = frame[name].astype(float)
        frame[f"error_{name}"] = (frame[name] - frame[f"published_{name}"].astype(float)).abs()
    frame.insert(2 + len(COLUMNS), "average", frame[[*map(snake, COLUMNS)]].mean(axis=1, skipna=False))
    return frame
