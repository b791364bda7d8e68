"""``task=attention``: the failure analysis of a finished run, or of a baseline run made for it."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from experiments.config import Run
from experiments.evaluation import study
from experiments.evaluation.cases import load_cases
from experiments.evaluation.fitting import BASELINE
from experiments.evaluation.refusal_margins import margins_of
from experiments.evaluation.validated_run import ValidatedRun
from experiments.report.build import build
from experiments.report.sections import Analysis, mark_finished, perform
from experiments.runs.record_fields import read_records
from experiments.runs.store import PREDICTIONS, read_object, reopened
from experiments.studies.attention.analysis import FIGURES, LIMIT
from experiments.studies.attention.within_study import of_failures
from experiments.studies.questions import check_sizes
from interp.errors import UserError


@dataclass(frozen=True)
class FailureAnalysis:
    """The task, on ``run``, a finished study of this model and benchmark, or on a baseline that is run first.

    ``failures`` is the most failures of a subset (None: all). ``layers`` are recorded and cut (None: all). ``figures``
    is how many of the worst failures are drawn.
    """

    failures: int | None = LIMIT
    layers: list[int] | None = None
    figures: int = FIGURES
    run: str | None = None

    def __post_init__(self) -> None:
        check_sizes(self, failures=1, figures=0)

    def __call__(self, run: Run) -> None:
        """Analyse, and print two sentences and the words that draw most attention.

        Raises:
            UserError: the run is none, is unfinished, or of another model or other cases; or something failed.
        """
        if self.run is not None:
            self._of_a_run(run, Path(self.run))
            return
        with study.open_study(replace(study.baseline_only(run), name="attention")) as work:
            self._check_layers(work.vlm)
            work.answer_all()
            work.conclude([self.analysis])

    @property
    def analysis(self) -> Analysis:
        """The analysis with this task's options."""
        return of_failures(limit=self.failures, layers=self.layers, figures=self.figures)

    def _check_layers(self, vlm: Any) -> None:
        from interp.hooks.attention import chosen_layers

        chosen_layers(vlm, self.layers)

    def _of_a_run(self, run: Run, folder: Path) -> None:
        """Analyse a run in its own directory."""
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
        self._check_layers(vlm)
        if other := vlm.other_than(model):
            raise UserError(
                f"run={folder}: that run is of {model['name']}, which differs from {vlm.name}, which this command "
                f"loads, in {other}; give the model options of that run"
            )
        read_records(folder)  # whether they can be read
        with reopened(folder) as store:
            work = study.Study(run, ValidatedRun(loaded, loaded), vlm, store, console, environment)
            work.methods = {arm: method for arm, method in run.arms.items() if arm == BASELINE}
            work.margins = margins_of(work)
            complete = perform(work, [self.analysis])
            console.print(f"report: {build(folder)}", highlight=False, soft_wrap=True, markup=False)
            mark_finished(folder)
        if not complete:
            raise UserError(
                f"run={folder}: a part of the analysis failed; the sentences above and in the report say why; correct "
                "the cause and run the same command again"
            )


def _finished(folder: Path) -> dict[str, Any]:
    """Return environment.json of a finished run.

    Raises:
        UserError: ``folder`` is no run's directory, or the run is unfinished.
    """
    environment = read_object(folder / "environment.json")
    if not environment or not (folder / PREDICTIONS).is_file():
        raise UserError(f"run={folder}: is no run's directory; give one, outputs/<name>/<time>")
    if not environment.get("finished"):
        raise UserError(f"run={folder}: that run is unfinished; run its command again to finish it, then this command")
    return environment
