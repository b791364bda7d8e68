"""``task=vcd_grid``: which weight and noise step, and is any of them more than another threshold?

Configuration and order of work; importing this module loads neither torch nor transformers.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from experiments.config import Run
from experiments.evaluation.answer import Answering
from experiments.evaluation.study import describe, limited, load_cases
from experiments.runs import records
from experiments.runs.directory import PREDICTIONS, RunStore, open_run
from experiments.runs.launch import Launch, sharded, whole_weights
from experiments.types import Loaded
from interp.errors import UserError
from mitigation.method import Baseline
from mitigation.vcd import VCD

if TYPE_CHECKING:
    from mitigation.method import Method

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
        """Answers, scores, draws and prints; what an earlier run of this name has answered is taken from there."""
        launch = Launch.current()
        console = launch.console()
        if run.benchmark.kind != "yes_no":
            raise UserError(
                f"benchmark {run.benchmark.name} asks for no Yes or No; the frontier needs a yes/no benchmark"
            )
        complete = self._cases(run, console)
        loaded = complete._replace(samples=limited(complete.samples, run.limit))
        grid = {name_of(vcd): vcd for vcd in self.settings()}
        arms: dict[str, Method] = {BASELINE: Baseline(), **grid}
        run = replace(run, arm=next(iter(grid)), arms=arms)
        weights = run.weights
        with open_run(run.output_root, run.name, run.config, run.config_hash, fresh=run.fresh) as store:
            console.print(f"run {store.path}\n{weights.name} on {len(loaded.samples)} {self.split} cases of "
                          f"{run.benchmark.name}: {len(grid)} settings", highlight=False, soft_wrap=True)  # fmt: skip
            from interp.vlm import load  # torch and transformers: only when everything else is in order

            with whole_weights():
                vlm = load(launch.placed(weights))
            environment = describe(run, vlm, loaded)
            store.write_json("environment.json", environment)
            answering = Answering(run, vlm, store, console)
            if not run.fresh:
                self._reuse(answering, arms, loaded, console)
            self._answer(answering, grid, loaded)
            if launch.first:
                self._conclude(run, store, loaded, console)
            store.write_json("environment.json", {**environment, "finished": records.now()})
            store.finish()

    def _cases(self, run: Run, console: Console) -> Loaded:
        if self.split == "test":
            return load_cases(run, console)
        loaded = run.benchmark.development()
        if loaded is None:
            raise UserError(
                f"benchmark {run.benchmark.name} has no development split to choose settings on; set task.split=test, "
                "and say that what is best was chosen on the cases it is judged by"
            )
        return loaded

    def _answer(self, answering: Answering, grid: dict[str, VCD], loaded: Loaded) -> None:
        from experiments.studies.vcd_grid.sweep import SharedBranches

        answering.answer(BASELINE, Baseline(), loaded.samples, loaded.manifest)
        for step in self.noise_steps:
            here = {name: vcd for name, vcd in grid.items() if vcd.noise_step == step}
            shared = SharedBranches(next(iter(here.values())))
            for name, vcd in here.items():
                answering.answer(name, shared.method(vcd.alpha), loaded.samples, loaded.manifest)

    def _reuse(self, answering: Answering, arms: "dict[str, Method]", loaded: Loaded, console: Console) -> None:
        """Copies the records that earlier runs of this name made of these very cases and settings."""
        store, judge = answering.store, answering.run.judge.name
        settings = {arm: answering.settings(method, loaded.manifest) for arm, method in arms.items()}
        wanted = {(sample.id, arm, settings[arm]) for arm in arms for sample in loaded.samples}
        wanted -= {records.key(record) for record in store.records(PREDICTIONS)}
        found = {}
        for file in sorted(store.path.parent.glob(f"*/{PREDICTIONS}")):
            for record in _readable(file) if file.parent != store.path and wanted else ():
                if records.key(record) in wanted and record.get("judge") == judge:
                    found[records.key(record)] = record
        if store.launch.first:
            store.append(found.values(), PREDICTIONS)
        store.gather(PREDICTIONS)
        if found:
            console.print(f"{len(found)} of {len(wanted)} answers taken from earlier runs", highlight=False)

    def _conclude(self, run: Run, store: RunStore, loaded: Loaded, console: Console) -> None:
        from experiments.evaluation import scoring
        from experiments.report.table import terminal
        from experiments.studies.vcd_grid.scores import evaluate
        from experiments.studies.vcd_grid.tables import draw, table

        cases = {sample.id for sample in loaded.samples}
        lines = [r for r in records.current(store.records(PREDICTIONS)) if r["arm"] in run.arms and r["case"] in cases]
        result = evaluate(
            lines,
            {name: vcd for name, vcd in run.arms.items() if isinstance(vcd, VCD)},
            seed=run.seed,
            draws=run.draws,
            where=f"{run.model.name} on the {self.split} cases of {run.benchmark.name}",
        )
        result["caveats"] = [*filter(None, [scoring.caveat(run)]), *result["caveats"]]
        store.write_json("metrics.json", result)
        folder = store.path / "figures"
        folder.mkdir(exist_ok=True)
        draw(result).savefig(folder / "frontier.svg", metadata={"Date": None, "Creator": None})
        console.print(terminal(table(result)))
        for sentence in (*result["summary"], *result["caveats"], f"figure: {folder / 'frontier.svg'}"):
            console.print(sentence, highlight=False, soft_wrap=True, markup=False)


def name_of(vcd: VCD) -> str:
    """The arm's name in the records: its weight and noise step."""
    return f"alpha={vcd.alpha:.12g} step={vcd.noise_step}"


def _readable(file: Path) -> list[dict[str, Any]]:
    """An earlier run's records; a line that cannot be read is passed over, for nothing here depends on it."""
    lines = (record for _, record in records.parsed(file.read_bytes().split(b"\n")))
    return [record for record in lines if isinstance(record, dict) and {"case", "arm", "settings"} <= record.keys()]
