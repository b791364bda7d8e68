"""``+exp=oversensitivity_suite``: one model on every benchmark of over-caution at hand, on one page.

``+exp=papers`` is the suite of two: MMSafeAware (arXiv 2502.11184) and MOSSBench (arXiv 2406.17806). Each benchmark is
a study of its own, in a run directory of its own; the weights are loaded once. The page has a panel an arm, in each
panel a dot a benchmark: how often benign requests are refused against how often harmful ones are. Of MMSafeAware, which
asks for a verdict, calling a sentence unsafe stands for refusing it.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from experiments.benchmarks import holisafe, lvlm_safer, mmsafeaware, mossbench, mssbench, vscbench
from experiments.config import Run
from experiments.evaluation import study
from experiments.evaluation.admission import Admitted, admit
from experiments.evaluation.cases import on_benchmark
from experiments.report import suite_page
from experiments.report.table import say
from experiments.runs.launch import Launch, sharded
from experiments.runs.resumption import open_run, read_object
from interp.errors import UserError

# Key of the command line → the benchmark in that folder; the order is that of the page.
MADE: Mapping[str, Any] = {
    "mmsafeaware": mmsafeaware.MMSafeAware,
    "mossbench": mossbench.MOSSBench,
    "mssbench": mssbench.MSSBench,
    "lvlm_safer": lvlm_safer.LVLMSafeR,
    "vscbench": vscbench.VSCBench,
    "holisafe": holisafe.HoliSafe,
}
CLONES = {"mmsafeaware": mmsafeaware.REPOSITORY, "mossbench": mossbench.REPOSITORY}


@sharded
@dataclass(frozen=True)
class OversensitivitySuite:
    """The task, on the folders given as ``mssbench=<folder>`` and so on; those not given are left out.

    ``benchmarks`` are those that may be asked, by their keys. ``sets`` are those of MOSSBench (benign, contrast, both).
    ``answer_tokens`` is how long answers in words may be; verdicts take ``run.max_new_tokens``.

    Raises:
        UserError: an unknown benchmark or set, or no token to answer with.
    """

    benchmarks: tuple[str, ...] = tuple(MADE)
    sets: str = "both"
    answer_tokens: int = 128
    mmsafeaware: str | None = None
    mossbench: str | None = None
    mssbench: str | None = None
    lvlm_safer: str | None = None
    vscbench: str | None = None
    holisafe: str | None = None

    def __post_init__(self) -> None:
        if unknown := [name for name in self.benchmarks if name not in MADE]:
            raise UserError(f"task.benchmarks: {unknown[0]!r} is not known; known: {', '.join(MADE)}; choose of these")
        if self.sets not in mossbench.PARTS:
            raise UserError(f"task.sets={self.sets!r} is not known; known: {', '.join(mossbench.PARTS)}; choose one")
        if self.answer_tokens < 1:
            raise UserError(f"task.answer_tokens={self.answer_tokens}: must be at least 1")

    def __call__(self, run: Run) -> None:
        """Runs one study after the other, then draws the page from their metrics.

        Raises:
            UserError: no folder was given, or a benchmark cannot be used; that is said before anything is asked.
        """
        given = {name: str(root) for name in self.benchmarks if (root := getattr(self, name))}
        if not given:
            raise UserError(
                f"{run.name} has no benchmark to ask; give the folder of one at least: "
                f"{', '.join(map(_asked_for, self.benchmarks))} (docs/guide-judges.md says where to get them)"
            )
        runs = {name: self._study(run, name, root) for name, root in given.items()}
        admitted = {name: _admitted(one, name) for name, one in runs.items()}
        vlm: Any = None
        folders: dict[str, Path] = {}
        for name, one in runs.items():
            with study.opened(one, admitted=admitted[name], vlm=vlm, announce=True) as work:
                vlm = work.vlm
                work.answer_all()
                work.conclude(work.attention(), alone=False)
                folders[name] = work.store.path
                title = work.model_title
        if Launch.current().first:
            self._page(run, folders, title)
            work.say_next()

    def _study(self, run: Run, name: str, root: str) -> Run:
        """The run on one benchmark, under its own name and with its kind's judge."""
        more = {"sets": self.sets} if name == "mossbench" else {}
        benchmark: Any = MADE[name](root=root, strict=run.strict, **more)
        tokens = run.max_new_tokens if benchmark.kind == "yes_no" else self.answer_tokens
        return on_benchmark(run, benchmark, f"{run.name}_{name}", tokens=tokens, described=asdict(benchmark))

    def _page(self, run: Run, folders: Mapping[str, Path], title: str) -> None:
        """Writes suite.html, suite.svg, suite.png and suite.json, and says where they are."""
        metrics = {name: read_object(folder / "metrics.json") for name, folder in folders.items()}
        left_out = [_asked_for(name) for name in self.benchmarks if name not in folders]
        with open_run(run.output_root, run.name, run.config, run.config_hash, fresh=True) as store:
            suite_page.write(store.path, metrics, model=title, reports=folders, left_out=left_out)
            store.finish()
            page = store.path / "suite.html"
        reports = [f"report of {name}: {folder / 'report.html'}" for name, folder in folders.items()]
        say(*suite_page.sentences(metrics, left_out), *reports, f"page: {page}")


def _admitted(run: Run, key: str) -> Admitted:
    """The arms and cases of one benchmark; messages name ``key``, which gave its folder."""
    try:
        return admit(run)
    except UserError as error:
        message = str(error).replace("benchmark root ", f"{key}=").replace("benchmark.root", key)
        raise UserError(message) from error


def _asked_for(name: str) -> str:
    """What to type, and for the benchmarks that are a repository what to clone."""
    return f"{name}=<folder>" + (f" (git clone {CLONES[name]})" if name in CLONES else "")
