"""``task=attention``: the failure analysis of a finished run, or of a baseline run made for it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from experiments.config import Run, digest
from experiments.evaluation import study
from experiments.evaluation.analyses import Analysis, perform
from experiments.evaluation.arms import check_arms
from experiments.report.build import build
from experiments.runs import analyses
from experiments.runs.resumption import PREDICTIONS, reopened
from experiments.runs.saved_run import read_records
from experiments.studies.attention.analysis import check_selection
from experiments.studies.attention.within_study import BASELINE, CASES, of_cases, of_failures
from experiments.types import Loaded
from interp.errors import UserError

if TYPE_CHECKING:
    from interp.vlm import VLM


@dataclass(frozen=True)
class FailureAnalysis:
    """The task, on ``run``, a finished study of this model and benchmark, or on a baseline that is run first.

    ``failures`` is the most failures of a subset (None: all), ``layers`` and ``segments`` what is logged and kept
    (None: all), ``figures`` how many of the worst failures are drawn.
    """

    failures: int | None = 24
    layers: list[int] | None = None
    segments: list[str] | None = None
    figures: int = 3
    run: str | None = None

    def __post_init__(self) -> None:
        if self.failures is not None and self.failures < 1:
            raise UserError(f"task.failures={self.failures}: must be at least 1, or null for all failures")
        if self.figures < 0:
            raise UserError(f"task.figures={self.figures}: must be at least 0")

    def __call__(self, run: Run) -> None:
        """Analyses, and prints two sentences and the words that draw most attention."""
        console = Console()
        folder = None if self.run is None else Path(self.run)
        environment = None if folder is None else _finished(folder)
        loaded = study.load_cases(run, console)
        if folder is not None and environment is not None:
            _check_benchmark(folder, environment, run, loaded)
        from interp.loading import load  # torch and transformers: only when everything else is in order

        vlm = load(run.weights)
        check_selection(vlm, self.layers, self.segments)
        if folder is not None and environment is not None:
            _check_model(folder, environment, vlm)
            self._of_a_run(run, vlm, loaded, folder, environment, console)
        else:
            self._with_baseline(run, vlm, loaded, console)

    def analysis(self, run: Run) -> Analysis:
        """The analysis with this task's options."""
        return of_failures(run, limit=self.failures, layers=self.layers, segments=self.segments, figures=self.figures,
                           in_full=True)  # fmt: skip

    def _of_a_run(
        self, run: Run, vlm: "VLM", loaded: Loaded, folder: Path, environment: dict[str, Any], console: Console
    ) -> None:
        """Analyses a run where it lies, and single cases too where that run asked for them and they are missing.

        Raises:
            UserError: something failed; the sentences are printed.
        """
        read_records(folder)  # whether they can be read
        with reopened(folder) as store:
            work = study.Study(run, vlm, store, loaded, console, environment)
            whole = perform(work, [self.analysis(run)], again=True)
            if CASES in analyses.unfinished(folder):
                if _same_arms(run, environment):
                    work.not_applicable = check_arms(run)
                    whole = perform(work, [of_cases()]) and whole
                else:
                    console.print(
                        "the attention of single cases is still missing: repeat that run's command, or add "
                        f"task=attention run={folder} to it",
                        highlight=False,
                        soft_wrap=True,
                        markup=False,
                    )
            console.print(f"report: {build(folder)}", highlight=False, soft_wrap=True, markup=False)
            analyses.settle(folder)
        if not whole:
            raise UserError(
                f"run={folder}: the analysis is not whole; its sentences stand above and in the report; mend the cause "
                "and run the same command again"
            )

    def _with_baseline(self, run: Run, vlm: "VLM", complete: Loaded, console: Console) -> None:
        """A study of the baseline alone, in a run directory of the name ``attention``."""
        alone = replace(study.baseline_only(run), name="attention")
        with study.opened(alone, cases=complete, vlm=vlm, console=console) as work:
            work.answer_all()
            work.conclude([self.analysis(alone)])


def _same_arms(run: Run, environment: Mapping[str, Any]) -> bool:
    """Whether this command configures the two arms that are shown as that run did, and they answer as configured."""
    recorded, studied = environment["config"], environment["arm_under_study"]
    plain = (recorded.get("task") or {}).get("_target_") == "experiments.evaluation.study.run"
    return (
        plain
        and studied == run.arm
        and all(digest(recorded["arms"].get(arm)) == digest(run.config["arms"].get(arm)) for arm in (BASELINE, studied))
    )


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


def _check_benchmark(folder: Path, environment: Mapping[str, Any], run: Run, loaded: Loaded) -> None:
    recorded = environment["benchmark"]
    if recorded["manifest"] != loaded.manifest:
        raise UserError(
            f"run={folder}: that run is of other cases ({recorded['name']} {recorded['manifest']}) than this "
            f"command's ({run.benchmark.name} {loaded.manifest}); give the benchmark options of that run"
        )


def _check_model(folder: Path, environment: Mapping[str, Any], vlm: "VLM") -> None:
    recorded = environment["model"]
    if recorded["revision"] != vlm.revision:
        raise UserError(
            f"run={folder}: that run is of {recorded['name']} {recorded['revision']}, and this command loads "
            f"{vlm.name} {vlm.revision}; give the model options of that run"
        )
