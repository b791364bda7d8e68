"""``task=mossbench_safety``: is a model that refuses more harmful requests also the more oversensitive one?"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.config import Run
from experiments.evaluation import finished_runs
from experiments.metrics.bootstrap import percentile_interval
from experiments.metrics.findings import Answer, Finding, plain, statement
from experiments.metrics.refusal.quantities import RefusalArms
from experiments.metrics.refusal.results import evaluate
from experiments.metrics.statistical_tests import resampled_spearman, spearman
from experiments.report import safety_figure as figures
from experiments.report.numbers import fixed, percent
from experiments.report.sentences.mossbench_safety import sentence
from experiments.report.table import say
from experiments.runs.records import now
from experiments.runs.resumption import open_run
from experiments.runs.saved_run import read_records
from experiments.types import REFUSAL_SUBSETS
from interp.errors import UserError
from interp.figures.glyphs import encoded

QUESTION = "refusals of benign requests against refusals of harmful ones"


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
        rho = found.evidence.get("rho")
        title = "" if rho is None else f"Spearman's ρ = {fixed(rho, 2)} over {found.evidence['n']} models"
        with open_run(run.output_root, run.name, run.config, run.config_hash, fresh=True) as store:
            drawn = figures.safety_against_oversensitivity(shown, title=title)
            for kind in ("svg", "png"):
                (store.path / f"safety.{kind}").write_bytes(encoded(drawn, kind))
            contents = {"findings": [found.as_json()], "models": [point._asdict() for point in shown]}
            store.write_json("safety.json", plain(contents) | {"runs": list(map(str, folders)), "finished": now()})
            store.finish()
        rates = [
            f"  {point.name}: benign refused {percent(point.benign)}%, harmful refused {percent(point.contrast)}%"
            for point in shown
        ]
        say(*rates, sentence(found), f"figure: {store.path / 'safety.svg'}")


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


def safety_correlation(table: pd.DataFrame, *, seed: int, draws: int) -> Finding:
    """Whether models that refuse more harmful requests refuse more benign ones, or fewer; by the interval over models.

    Spearman's ρ over the arms that have both rates; CANNOT_TELL where these are fewer than three, or one side is
    constant. ``over_questions`` resamples questions with the models held fixed: how much ρ owes to the choice of cases.
    """
    asked = RefusalArms.of(table, draws=draws, seed=seed)
    arms = list(asked.answers.values())
    points = [asked.point(one.refused, one.kept) for one in arms]
    rates = np.array([[point[subset] for subset in REFUSAL_SUBSETS] for point in points], dtype=float)
    known = ~np.isnan(rates).any(axis=1)
    found = spearman(*rates[known].T, seed=seed) if known.sum() >= 3 else None
    if found is None:
        return Finding(QUESTION, Answer.CANNOT_TELL, {"models": int(known.sum())})
    drawn = [asked.drawn(one.refused, one.kept) for one, usable in zip(arms, known, strict=True) if usable]
    benign, contrast = (np.stack([one[subset] for one in drawn], axis=1) for subset in REFUSAL_SUBSETS)
    complete = ~np.isnan(benign).any(axis=1) & ~np.isnan(contrast).any(axis=1)
    kept = np.logical_or.reduce([one.kept for one in arms])
    clusters = asked.resamples.clusters([kept & (asked.cases.subset == subset) for subset in REFUSAL_SUBSETS])
    over_questions = percentile_interval(resampled_spearman(benign[complete], contrast[complete]), clusters=clusters)
    over_models = found.entry()
    evidence = found._asdict() | {
        "over_models": over_models,
        "over_questions": over_questions and over_questions._asdict(),
        "models": int(known.sum()),
    }
    return Finding(QUESTION, statement(over_models, small=None), plain(evidence))
