"""``task=attention``: the failure analysis of a finished run, or of a baseline run made for it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from experiments.config import Run
from experiments.evaluation import study
from experiments.report.build import build
from experiments.report.findings.attention import word_line
from experiments.runs.directory import PREDICTIONS
from experiments.runs.saved import read_records
from experiments.studies.attention.analysis import analyse_failures
from experiments.types import Loaded
from interp.errors import UserError

if TYPE_CHECKING:
    from interp.vlm import VLM


@dataclass(frozen=True)
class FailureAnalysis:
    """The task, on ``run.run``, a finished study of this model and benchmark, or on a baseline that is run first.

    ``failures`` is the most failures of a subset (None: all), ``layers`` and ``segments`` what is logged and kept
    (None: all), ``figures`` how many of the worst failures are drawn.
    """

    failures: int | None = 24
    layers: list[int] | None = None
    segments: list[str] | None = None
    figures: int = 3

    def __post_init__(self) -> None:
        if self.failures is not None and self.failures < 1:
            raise UserError(f"task.failures={self.failures}: must be at least 1, or null for all failures")
        if self.figures < 0:
            raise UserError(f"task.figures={self.figures}: must be at least 0")

    def __call__(self, run: Run) -> None:
        """Analyses, and prints two sentences and the words that draw most attention."""
        console = Console()
        folder = None if run.run is None else Path(run.run)
        environment = None if folder is None else _finished(folder)
        loaded = study.load_cases(run, console)
        if folder is not None and environment is not None:
            _check_benchmark(folder, environment, run, loaded)
        from interp.vlm import load  # torch and transformers: only when everything else is in order

        vlm = load(run.weights)
        if folder is not None and environment is not None:
            _check_model(folder, environment, vlm)
            result = self.analyse(vlm, run, loaded, read_records(folder), folder)
            build(folder)
        else:
            folder, result = self._with_baseline(run, vlm, loaded, console)
        for line in [*result["sentences"], word_line(result["words"]), f"attention: {folder / 'attention.json'}"]:
            console.print(line, highlight=False, soft_wrap=True, markup=False)

    def analyse(
        self, vlm: "VLM", run: Run, loaded: Loaded, records: list[dict[str, Any]], folder: Path
    ) -> dict[str, Any]:
        """The analysis with this task's options, of records that are there."""
        return analyse_failures(
            vlm,
            loaded.samples,
            records,
            folder,
            seed=run.seed,
            draws=run.draws,
            limit=self.failures,
            batch_size=run.batch_size,
            max_new_tokens=run.max_new_tokens,
            layers=self.layers,
            segments=self.segments,
            figures=self.figures,
            captum=run.attribution == "captum",
        )

    def _with_baseline(self, run: Run, vlm: "VLM", complete: Loaded, console: Console) -> tuple[Path, dict[str, Any]]:
        """A study of the baseline alone, in a run directory of the name ``attention``."""
        alone = replace(study.baseline_only(run), name="attention")
        with study.opened(alone, cases=complete, vlm=vlm, console=console) as work:
            work.answer_all()
            result = self.analyse(vlm, run, work.loaded, work.records(), work.store.path)
            work.conclude()
            return work.store.path, result


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
