"""``+exp=papers``: one model on both papers' benchmarks, with the same arms and the published rows beside.

MMSafeAware (arXiv 2502.11184) asks for a verdict, MOSSBench (arXiv 2406.17806) for an answer in words, so each is a
study of its own, in a run directory of its own; the weights are loaded once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.benchmarks.mmsafeaware import MMSafeAware
from experiments.benchmarks.mossbench import PARTS, MOSSBench
from experiments.config import Run
from experiments.evaluation import study
from experiments.evaluation.arms import check_arms
from experiments.evaluation.cases import check_cases, on_benchmark
from experiments.runs.launch import Launch, sharded
from experiments.types import Benchmark
from interp.errors import UserError

CLONES = {
    "mmsafeaware": "https://github.com/Jarviswang94/MMSafetyAwareness",
    "mossbench": "https://github.com/turningpoint-ai/MOSSBench",
}


@sharded
@dataclass(frozen=True)
class BothPapers:
    """The task, on the clones ``run.mmsafeaware`` and ``run.mossbench``; one of them may be left out.

    ``sets`` are those of MOSSBench (benign, contrast, both); ``answer_tokens`` is how long its answers may be, for
    verdicts ``run.max_new_tokens`` holds.
    """

    sets: str = "both"
    answer_tokens: int = 128

    def __post_init__(self) -> None:
        if self.sets not in PARTS:
            raise UserError(f"task.sets={self.sets!r} is not known; known: {', '.join(PARTS)}; choose one")
        if self.answer_tokens < 1:
            raise UserError(f"task.answer_tokens={self.answer_tokens}: must be at least 1")

    def __call__(self, run: Run) -> None:
        """Runs one study after the other; ends with where their reports are."""
        runs = self._runs(run)
        if not runs:
            cloned = "; ".join(f"git clone {url}, then {name}=<its folder>" for name, url in CLONES.items())
            raise UserError(f"+exp=papers has no benchmark to ask; {cloned}")
        console = Launch.current().console()
        for one in runs:  # what is wrong with the second is said before the first is answered
            check_arms(one)
            check_cases(one, one.benchmark.name)
        vlm: Any = None
        folders = []
        for one in runs:
            with study.opened(one, vlm=vlm, announce=True) as work:
                vlm = work.vlm
                work.complete(alone=False)
                folders.append(work.store.path)
        if Launch.current().first:
            for line in _lines(runs, folders):
                console.print(line, highlight=False, soft_wrap=True, markup=False)
            work.say_next()

    def _runs(self, run: Run) -> list[Run]:
        """The study of each benchmark at hand."""
        found: list[Run] = []
        if run.mmsafeaware:
            verdicts = MMSafeAware(root=run.mmsafeaware, strict=run.strict)
            found.append(_study(run, verdicts, root=run.mmsafeaware, tokens=run.max_new_tokens))
        if run.mossbench:
            answers = MOSSBench(root=run.mossbench, sets=self.sets, strict=run.strict)
            found.append(_study(run, answers, root=run.mossbench, tokens=self.answer_tokens, sets=self.sets))
        return found


def _study(run: Run, benchmark: Benchmark, *, root: str, tokens: int, **more: str) -> Run:
    """The run on ``benchmark``, under its own name and with its kind's judge."""
    name = f"{run.name}_{benchmark.name}"
    described = {"name": benchmark.name, "root": root, **more}
    return on_benchmark(run, benchmark, name, tokens=tokens, described=described)


def _lines(runs: Sequence[Run], folders: Sequence[Path]) -> list[str]:
    """Where each benchmark's report is, and what was left out."""
    lines = [
        f"{one.benchmark.name}, with the published rows beside: {folder / 'report.html'}"
        for one, folder in zip(runs, folders, strict=True)
    ]
    asked = {one.benchmark.name for one in runs}
    lines += [f"{name} was left out; git clone {url} and add {name}=<its folder>"
              for name, url in CLONES.items() if name not in asked]  # fmt: skip
    return lines
