"""``task=vcd_grid``: VCD's weights and noise steps on one split, against every constant shift of the baseline's margin.

A constant added to the baseline's margin gives one pair of accuracies; all constants give a curve (the margin's ROC
curve, mirrored). A setting on that curve only shifts the threshold; a setting above it tells safe from unsafe better.
Whether discrimination changed is decided by the AUROC difference alone (docs/metrics.md); the height above the curve is
shown beside it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from experiments.config import Run
from experiments.evaluation import study
from experiments.evaluation.analyses import Analysis
from experiments.evaluation.cases import development_cases
from experiments.metrics.bootstrap import CONFIDENCE, ClusterBootstrap
from experiments.metrics.findings import Finding, change_evidence, deciding_statement, plain
from experiments.metrics.paired import Difference, rate_floor, simultaneous
from experiments.metrics.yes_no.findings import DISCRIMINATION
from experiments.metrics.yes_no.quantities import YesNoArms
from experiments.metrics.yes_no.shift_curve import height_above_shifts, shift_curve
from experiments.report.sentences import vcd_grid as findings
from experiments.report.table import Column, Table, terminal
from experiments.report.words import foreign
from experiments.runs.launch import Launch, sharded
from experiments.studies.mitigation_selection.candidates import Candidate, check_grid, configured
from experiments.studies.mitigation_selection.grid import (
    BASELINE,
    COLUMNS,
    LEGEND,
    GridAnswers,
    difference_cell,
    row,
)
from experiments.types import Loaded
from interp.errors import UserError
from mitigation.method import Baseline
from mitigation.vcd import VCD

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SPLITS = ("development", "test")
ABOVE = "above shifts"


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
        check_grid({"alphas": self.alphas, "noise_steps": self.noise_steps}, "task")
        self.settings()

    def settings(self) -> dict[str, VCD]:
        """The grid by the arms' names, noise step by noise step.

        Raises:
            UserError: a setting is outside its range.
        """
        vcd = Candidate(VCD(beta=self.beta, seed=self.seed), {"noise_step": self.noise_steps, "alpha": self.alphas})
        methods = [configured(vcd.method, setting) for setting in vcd.settings()]
        return {f"alpha={one.alpha:.12g} step={one.noise_step}": one for one in methods}

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
        cases, grid = self._cases(run, console), self.settings()
        run = replace(run, arm=next(iter(grid)), arms={BASELINE: Baseline(), **grid})
        _ = run.weights  # a margin is needed
        with study.opened(run, cases=cases, console=console) as work:
            console.print(f"run {work.store.path}\n{run.model.name} on {len(work.samples)} {self.split} cases of "
                          f"{run.benchmark.name}: {len(grid)} settings", highlight=False, soft_wrap=True)  # fmt: skip
            work.answering.answer(work.run.arms, work.samples)
            result = self._result(work, grid) if work.store.launch.first else {}
            drawn: Analysis[study.Study] = Analysis(
                "frontier", "the frontier was not drawn", partial(_drawn, result=result)
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
    file = work.store.path / "figures" / "frontier.svg"
    file.parent.mkdir(exist_ok=True)
    draw(result).savefig(file, metadata={"Date": None, "Creator": None})
    return [f"figure: {file}"]


def evaluate(
    lines: Sequence[Mapping[str, Any]], grid: Mapping[str, VCD], *, seed: int, draws: int, where: str
) -> dict[str, Any]:
    """The contents of metrics.json: ``points`` (one a setting), ``baseline``, ``shift_curve``, ``best``, ``summary``.

    ``lines`` are the records of the baseline and of every arm of ``grid``. Intervals are 95%, paired, by cluster
    bootstrap; ``simultaneous`` ones hold for all settings at once, and by them the best of many is spoken of.

    Raises:
        UserError: safe or unsafe cases, or the baseline's margins, are missing.
    """
    found = GridAnswers.of(lines, seed=seed, draws=draws)
    cases, baseline, counted = found.cases, found.answers[BASELINE], found.reading(BASELINE).margins
    if not (counted & cases.unsafe).any() or not (counted & ~cases.unsafe).any():
        raise UserError(
            "no curve of constant shifts: it needs margins of safe and of unsafe cases; raise limit, or take a model "
            "with logits"
        )
    heights = heights_above_shifts(found)
    against = found.against_baseline(grid, "overall", "auroc")
    simultaneous(heights[name] for name in grid)
    points, said = [], []
    for name, vcd in grid.items():
        delta = plain(against[name])
        auroc = delta["auroc"]  # by the interval that holds for all settings at once
        said.append(Finding(DISCRIMINATION, deciding_statement(auroc, studied=False), change_evidence(auroc), name))
        setting = {"name": name, "alpha": vcd.alpha, "noise_step": vcd.noise_step}
        shown = {"delta": delta, "above_shift_curve": heights[name].entry, "conclusion": said[-1].answer.value}
        points.append({**setting, **found.values(name), **shown})
    best = max(points, key=lambda point: point["overall"])  # of equals the first: the mildest
    curve = shift_curve(baseline.margin[counted], cases.unsafe[counted], np.ones(int(counted.sum())))
    result = {
        "kind": "frontier",
        "points": points,
        "baseline": found.values(BASELINE),
        "shift_curve": [{"over_safety": s, "unsafe": u} for s, u in zip(*curve, strict=True)],
        "best": best["name"],
        "method": {"seed": seed, "draws": draws, "confidence": CONFIDENCE, "clusters": cases.clusters},
        "findings": [finding.as_json() for finding in said],
        "summary": [findings.best(best, len(points), where)],
        "caveats": [findings.caveat(len(points), int(baseline.kept.sum()))] if len(points) > 1 else [],
    }
    return plain(result)


def heights_above_shifts(arms: YesNoArms) -> dict[str, Difference]:
    """By arm: unsafe accuracy minus that of the constant shift of equal over-safety accuracy.

    On the cases that the arm and the baseline both answered; between two corners the curve is a straight line.
    """
    cases, resamples, margin = arms.cases, arms.over_cases, arms.answers[BASELINE].margin
    found: dict[str, Difference] = {}
    groups: dict[bytes, list[str]] = {}
    for name, arm in arms.answers.items():
        groups.setdefault((arm.kept & arms.reading(BASELINE).margins).tobytes(), []).append(name)
    for mask, names in groups.items():  # mostly one: every arm answered every case
        kept = np.frombuffer(mask, dtype=bool)
        right = np.stack([arms.answers[name].right[kept] for name in names])
        sides = (kept & cases.unsafe, kept & ~cases.unsafe)

        def drawn(some: ClusterBootstrap, kept: np.ndarray = kept, right: np.ndarray = right) -> np.ndarray:
            multiplicity, cluster = some.multiplicity, some.cluster[kept]
            return height_above_shifts(multiplicity, cluster, margin[kept], cases.unsafe[kept], right)

        value = drawn(ClusterBootstrap.once(cases.cluster))[0]
        draws, floor = resamples.drawn(drawn), rate_floor(int(sides[0].sum()))
        for at, name in enumerate(names):
            columns = {scheme: some[:, at] for scheme, some in draws.items()}
            found[name] = resamples.difference(0.0, float(value[at]), columns, sides, int(kept.sum()), floor=floor)
    return found


def draw(result: Mapping[str, Any]) -> "Figure":
    """A line for each noise step, labelled with α at both ends, beside every constant shift of the margin."""
    from experiments.report.figures import trade_off

    lines: dict[str, list[dict[str, Any]]] = {}
    for point in sorted(result["points"], key=lambda point: point["alpha"]):
        line = lines.setdefault(f"VCD, noise step {point['noise_step']}", [])
        line.append(point | {"label": f"α={point['alpha']:g}"})
    baseline = {BASELINE: {"accuracy": result["baseline"], "intervals": {}}}
    return trade_off({"arms": baseline}, curve=result["shift_curve"], lines=lines)


def table(result: Mapping[str, Any]) -> Table:
    """One row for each setting, the baseline first. The last column is ``above_shift_curve``, in points."""
    rows = [row(BASELINE, result["baseline"], {})]
    for point in result["points"]:
        setting = f"α={point['alpha']:g}, step {point['noise_step']}"
        rows.append(row(setting, point, point["delta"]) | {ABOVE: difference_cell(point["above_shift_curve"])})
    legend = (
        f"{LEGEND} Above shifts: unsafe accuracy minus that of the constant shift of the baseline's margin with the "
        "same over-safety accuracy, in points."
    )
    columns = [*COLUMNS, Column(ABOVE, short="above\nshifts")]
    return Table.of("VCD by weight and noise step", rows, columns=columns, legend=legend)
