"""``task=mossbench_safety``: is a model that refuses more harmful requests also the more oversensitive one?"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from rich.console import Console

from experiments.config import Run
from experiments.evaluation import finished_runs
from experiments.metrics.bootstrap import Interval, percentile_interval
from experiments.metrics.findings import Answer, Finding, plain, statement
from experiments.metrics.refusal.quantities import RefusalArms
from experiments.metrics.refusal.results import evaluate
from experiments.metrics.statistical_tests import Correlation, resampled_spearman, spearman
from experiments.report import safety_figure as figures
from experiments.report.numbers import fixed, percent
from experiments.report.sentences.mossbench_safety import sentence
from experiments.runs.records import now
from experiments.runs.resumption import open_run
from experiments.runs.saved_run import read_records
from experiments.types import REFUSAL_SUBSETS
from interp.errors import UserError

QUESTION = "refusals of benign requests against refusals of harmful ones"


class SafetyCorrelation(NamedTuple):
    """Spearman's ρ over models between the refusal rates of benign and of harmful requests.

    ``interval`` resamples questions with the models held fixed: how much ρ owes to the choice of cases. ``p`` in
    ``correlation`` is over models. None where there are fewer than three models, or where one side is constant.
    """

    correlation: Correlation | None
    interval: Interval | None


@dataclass(frozen=True)
class SafetyAgainstOversensitivity:
    """The task, on ``runs`` (or one ``run``): finished runs on a refusal benchmark with harmful twins, one a model.

    ``arm`` is the arm of each; of a single run all arms are taken. Writes safety.svg, safety.png and safety.json.
    """

    arm: str = "baseline"
    run: str | None = None
    runs: list[str] | None = None

    def __call__(self, run: Run) -> None:
        """Draws the plot and prints the correlation in a sentence."""
        folders = finished_runs.given(self.run, self.runs)
        if not folders:
            raise UserError("runs=null: needs finished runs on a refusal benchmark; give runs=[<run>,<run>]")
        table = records_by_model(folders, self.arm)
        metrics = evaluate(table, seed=run.seed, draws=run.draws, baseline="")
        shown = figures.points(metrics)
        found = safety_correlation(table, seed=run.seed, draws=run.draws)
        concluded = finding(found, len(shown))
        text = sentence(concluded)
        with open_run(run.output_root, run.name, run.config, run.config_hash, fresh=True) as store:
            drawn = figures.safety_against_oversensitivity(shown, title=_title(found))
            for kind in ("svg", "png"):
                drawn.savefig(store.path / f"safety.{kind}")
            store.write_json("safety.json", _contents(found, concluded, shown) | {"runs": [str(f) for f in folders]})
            store.finish()
        console = Console()
        for line in (*(_line(point) for point in shown), text, f"figure: {store.path / 'safety.svg'}"):
            console.print(line, highlight=False, soft_wrap=True, markup=False)


def records_by_model(folders: Sequence[Path], arm: str) -> pd.DataFrame:
    """The records of every run's ``arm``, with the model's name in place of the arm's; of one run, all its arms."""
    parts = []
    for folder in folders:
        run = finished_runs.read(folder)
        if run.metrics.get("kind") != "refusal":
            raise UserError(f"{folder}: is a run on {run.benchmark}, no refusal benchmark; give runs on mossbench")
        records = pd.DataFrame(read_records(folder))
        if len(folders) > 1:
            own = finished_runs.arm_of(run.metrics, arm)
            records = records[records["arm"] == own].assign(arm=run.model)
            if records.empty:
                raise UserError(f"{folder}: has no arm {arm!r}; choose one with task.arm=<name>")
        parts.append(records)
    table = pd.concat(parts, ignore_index=True)
    if not (twice := table[table.duplicated(["case", "arm"])]).empty:
        raise UserError(f"two runs are of the model {twice.iloc[0]['arm']}; give one run a model")
    return table


def safety_correlation(table: pd.DataFrame, *, seed: int, draws: int) -> SafetyCorrelation:
    """ρ over the arms that have both rates, and its interval over questions."""
    asked = RefusalArms.of(table, draws=draws, seed=seed)
    arms, cases, resamples = asked.answers, asked.cases, asked.resamples
    drawn = [asked.drawn(one.refused, one.kept) for one in arms.values()]
    points = [asked.point(one.refused, one.kept) for one in arms.values()]
    rates = np.array([[one[subset] for subset in REFUSAL_SUBSETS] for one in points], dtype=float)
    known = ~np.isnan(rates).any(axis=1)
    if known.sum() < 3:
        return SafetyCorrelation(None, None)
    benign, contrast = (
        np.stack([one[subset] for one, usable in zip(drawn, known, strict=True) if usable], axis=1)
        for subset in ("benign", "contrast")
    )
    complete = ~np.isnan(benign).any(axis=1) & ~np.isnan(contrast).any(axis=1)
    sides = [np.logical_or.reduce([one.kept for one in arms.values()]) & (cases.subset == subset) for subset in
             REFUSAL_SUBSETS]  # fmt: skip
    drawn_rho = resampled_spearman(benign[complete], contrast[complete])
    interval = percentile_interval(drawn_rho, clusters=resamples.clusters(tuple(sides)))
    return SafetyCorrelation(spearman(rates[known, 0], rates[known, 1], seed=seed), interval)


def finding(found: SafetyCorrelation, models: int) -> Finding:
    """Whether models that refuse more harmful requests refuse more benign ones, or fewer; by the interval over models.

    ``models`` is the number of models with both rates.
    """
    if found.correlation is None:
        return Finding(QUESTION, Answer.CANNOT_TELL, {"models": models})
    over_models = found.correlation.entry()
    evidence = found.correlation._asdict() | {
        "over_models": over_models,
        "over_questions": found.interval and found.interval._asdict(),
        "models": models,
    }
    return Finding(QUESTION, statement(over_models, small=None), plain(evidence))


def _title(found: SafetyCorrelation) -> str:
    if found.correlation is None:
        return ""
    return f"Spearman's ρ = {fixed(found.correlation.rho, 2)} over {found.correlation.n} models"


def _line(point: figures.Point) -> str:
    return f"  {point.name}: benign refused {percent(point.benign)}%, harmful refused {percent(point.contrast)}%"


def _contents(found: SafetyCorrelation, concluded: Finding, shown: Sequence[figures.Point]) -> dict[str, Any]:
    return plain({
        "sentence": sentence(concluded),
        "findings": [concluded.as_json()],
        "spearman": None if found.correlation is None else found.correlation._asdict(),
        "interval_over_questions": found.interval,
        "models": [point._asdict() for point in shown],
        "finished": now(),
    })  # fmt: skip
