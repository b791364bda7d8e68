"""``task=attention``: the failure analysis of a finished run, or of a baseline run made for it."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from experiments.config import Run
from experiments.evaluation import study
from experiments.evaluation.analyses import Analysis, perform
from experiments.evaluation.cases import load_cases
from experiments.evaluation.validated_run import ValidatedRun
from experiments.report.build import build
from experiments.report.figures import check_format
from experiments.runs import analyses
from experiments.runs.records import read_records
from experiments.runs.store import PREDICTIONS, reopened
from experiments.studies.attention.analysis import FIGURES, LIMIT, check_selection
from experiments.studies.attention.figures import SCREEN_ALONE
from experiments.studies.attention.within_study import of_failures
from interp.errors import UserError


@dataclass(frozen=True)
class FailureAnalysis:
    """The task, on ``run``, a finished study of this model and benchmark, or on a baseline that is run first.

    ``failures`` is the most failures of a subset (None: all), ``layers`` and ``segments`` what is logged and kept
    (None: all), ``figures`` how many of the worst failures are drawn; with ``format`` svg or pdf, as such files beside
    PNG, at a column's width, and attention by layer too.
    """

    failures: int | None = LIMIT
    layers: list[int] | None = None
    segments: list[str] | None = None
    figures: int = FIGURES
    run: str | None = None
    format: str = SCREEN_ALONE

    def __post_init__(self) -> None:
        if self.failures is not None and self.failures < 1:
            raise UserError(f"task.failures={self.failures}: must be at least 1, or null for all failures")
        if self.figures < 0:
            raise UserError(f"task.figures={self.figures}: must be at least 0")
        check_format(self.format, SCREEN_ALONE)

    def __call__(self, run: Run) -> None:
        """Analyses, and prints two sentences and the words that draw most attention."""
        if self.run is None:
            self._with_baseline(run)
        else:
            self._of_a_run(run, Path(self.run))

    def analysis(self, run: Run) -> Analysis:
        """The analysis with this task's options."""
        options = {"limit": self.failures, "layers": self.layers, "segments": self.segments, "figures": self.figures,
                   "form": self.format}  # fmt: skip
        return of_failures(options, in_full=True)

    def _of_a_run(self, run: Run, folder: Path) -> None:
        """Analyses a run where it lies.

        Raises:
            UserError: the run is none, is unfinished, or of another model or other cases; or something failed, whose
                sentences are printed.
        """
        console = Console()
        environment = _finished(folder)
        benchmark, model = environment["benchmark"], environment["model"]
        loaded = load_cases(run, console)
        if benchmark["manifest"] != loaded.manifest:
            raise UserError(
                f"run={folder}: that run is of other cases ({benchmark['name']} {benchmark['manifest']}) than this "
                f"command's ({run.benchmark.name} {loaded.manifest}); give the benchmark options of that run"
            )
        from interp.loading import load  # torch and transformers: only when everything else is in order

        vlm = load(run.weights)
        check_selection(vlm, self.layers, self.segments)
        if other := vlm.other_than(model):
            raise UserError(
                f"run={folder}: that run is of {model['name']}, which differs from {vlm.name}, which this command "
                f"loads, in {other}; give the model options of that run"
            )
        read_records(folder)  # whether they can be read
        with reopened(folder) as store:
            work = study.Study(run, ValidatedRun(loaded, loaded), vlm, store, console, environment)
            complete = perform(work, [self.analysis(run)])
            console.print(f"report: {build(folder)}", highlight=False, soft_wrap=True, markup=False)
            analyses.mark_finished(folder)
        if not complete:
            raise UserError(
                f"run={folder}: the analysis is not whole; its sentences stand above and in the report; mend the cause "
                "and run the same command again"
            )

    def _with_baseline(self, run: Run) -> None:
        """A study of the baseline alone, in a run directory of the name ``attention``."""
        alone = replace(study.baseline_only(run), name="attention")
        with study.open_study(alone) as work:
            check_selection(work.vlm, self.layers, self.segments)
            work.answer_all()
            work.conclude([self.analysis(alone)])


def _finished(folder: Path) -> dict[str, Any]:
    """environment.json of a finished run.

    Raises:
        UserError: ``folder`` is no run's directory, or the run is unfinished.
    """
    try:
        environment = json.loads((folder / "environment.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        environment = None
    if not isinstance(environment, dict) or not (folder / PREDICTIONS).is_file():
        raise UserError(f"run={folder}: is no run's directory; give one, outputs/<name>/<time>")
    if not environment.get("finished"):
        raise UserError(f"run={folder}: that run is unfinished; repeat its command, which finishes it, then this")
    return environment
