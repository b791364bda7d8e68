"""``task=vcd_grid``: which weight and noise step, and is any of them more than another threshold?

Configuration and order of work; importing this module loads neither torch nor transformers.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rich.console import Console

from experiments.config import Run
from experiments.evaluation import study
from experiments.evaluation.analyses import Analysis
from experiments.evaluation.cases import development_cases
from experiments.report.words import foreign
from experiments.runs.launch import Launch, sharded
from experiments.types import Loaded
from interp.errors import UserError
from mitigation.method import Baseline
from mitigation.vcd import VCD

BASELINE = "baseline"
SPLITS = ("development", "test")


@sharded
@dataclass(frozen=True)
class VcdGrid:
    """Every pair of ``alphas`` and ``noise_steps``, with one cutoff ``beta``, on one split of a yes/no benchmark.

    ``split`` is ``development``, on which settings may be chosen, or ``test``: all that the benchmark evaluates, for
    sets without a development split; what is best there has been chosen on the cases it is judged by.
    """

    alphas: list[float] = field(default_factory=lambda: [0.5, 1.0, 2.0, 4.0, 8.0])
    noise_steps: list[int] = field(default_factory=lambda: [500, 700, 850, 999])
    beta: float | None = 0.1
    split: str = "development"
    seed: int = 0

    def __post_init__(self) -> None:
        """Checks the grid.

        Raises:
            UserError: a value is outside its range, or a list is empty or repeats a value.
        """
        if self.split not in SPLITS:
            raise UserError(f"task.split={self.split!r}: must be one of {', '.join(SPLITS)}")
        for key, values in (("alphas", self.alphas), ("noise_steps", self.noise_steps)):
            if not values or len(set(values)) < len(values):
                raise UserError(f"task.{key}={list(values)}: must be a list of one or more different numbers")
        list(self.settings())

    def settings(self) -> Iterator[VCD]:
        """The grid, noise step by noise step.

        Raises:
            UserError: a setting is outside its range.
        """
        for step in self.noise_steps:
            for alpha in self.alphas:
                yield VCD(alpha=alpha, beta=self.beta, noise_step=step, seed=self.seed)

    def __call__(self, run: Run) -> None:
        """Answers, scores, draws and prints.

        Raises:
            UserError: not a yes/no benchmark, no cases in ``split``, or a model without weights here.
        """
        console = Launch.current().console()
        if run.benchmark.kind != "yes_no":
            raise UserError(
                f"benchmark {run.benchmark.name} asks for no Yes or No; the frontier needs a yes/no benchmark"
            )
        cases = self._cases(run, console)
        grid = {arm_name(vcd): vcd for vcd in self.settings()}
        run = replace(run, arm=next(iter(grid)), arms={BASELINE: Baseline(), **grid})
        _ = run.weights  # a margin is needed
        with study.opened(run, cases=cases, console=console) as work:
            console.print(f"run {work.store.path}\n{run.model.name} on {len(work.samples)} {self.split} cases of "
                          f"{run.benchmark.name}: {len(grid)} settings", highlight=False, soft_wrap=True)  # fmt: skip
            work.answering.answer(work.run.arms, work.samples)
            result = self._result(work, grid) if work.store.launch.first else {}
            drawn: Analysis[study.Study] = Analysis(
                "frontier", "the frontier was not drawn", lambda work: _drawn(work, result)
            )
            work.finish([drawn])

    def _cases(self, run: Run, console: Console) -> Loaded:
        if self.split == "test":
            return study.load_cases(run, console)
        loaded = development_cases(run, tested=())
        if loaded is None:
            raise UserError(
                f"benchmark {run.benchmark.name} has no development split to choose settings on; set task.split=test, "
                "and say that what is best was chosen on the cases it is judged by"
            )
        return loaded

    def _result(self, work: study.Study, grid: Mapping[str, VCD]) -> dict[str, Any]:
        """Writes metrics.json, prints it, and returns its contents."""
        from experiments.report.table import terminal
        from experiments.studies.vcd_grid.frontier import evaluate, table

        run = work.run
        where = f"{work.model_title} on the {self.split} cases of {run.benchmark.name}"
        result = evaluate(work.records(), grid, seed=run.seed, draws=run.draws, where=where)
        warning = foreign(str(getattr(run.model, "path", "")), run.benchmark.name)
        result["caveats"] = [*filter(None, [warning]), *result["caveats"]]
        work.store.write_json("metrics.json", result)
        work.console.print(terminal(table(result)))
        for sentence in (*result["summary"], *result["caveats"]):
            work.console.print(sentence, highlight=False, soft_wrap=True, markup=False)
        return result


def _drawn(work: study.Study, result: Mapping[str, Any]) -> list[str]:
    from experiments.studies.vcd_grid.frontier import draw

    folder = work.store.path / "figures"
    folder.mkdir(exist_ok=True)
    draw(result).savefig(folder / "frontier.svg", metadata={"Date": None, "Creator": None})
    return [f"figure: {folder / 'frontier.svg'}"]


def arm_name(vcd: VCD) -> str:
    """The arm's name in the records: its weight and noise step."""
    return f"alpha={vcd.alpha:.12g} step={vcd.noise_step}"
