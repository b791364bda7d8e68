"""The cases of a run: loaded, checked before any weights load, and limited. All studies take them from here."""

from collections.abc import Sequence

from rich.console import Console

from experiments.benchmarks.checks import checked, disjoint
from experiments.config import Run
from experiments.report.text import shortfall
from experiments.types import Loaded, Sample
from interp.errors import UserError

SUBSETS_BY_TURNS = ("over_safety", "typical", "attack", "control", "benign", "contrast")


def load_cases(run: Run, console: Console) -> Loaded:
    """Return the benchmark's cases, and print which cannot run here.

    Raises:
        UserError: none can run, or some fail their checks and ``benchmark.skip_bad`` is not set.
    """
    loaded = _checked(run, run.benchmark.load(), run.benchmark.name)
    if not loaded.samples:
        raise UserError(f"benchmark {run.benchmark.name} has no case that can run here; check benchmark.root")
    if loaded.missing:
        sentence = shortfall(len(loaded.samples), loaded.missing)
        console.print(f"[yellow]{sentence} Their ids are in environment.json.[/yellow]", highlight=False)
    return loaded


def development_cases(run: Run, tested: Sequence[Sample]) -> Loaded | None:
    """Return the cases of the benchmark's development split, none of them ``tested``; None where it has none.

    Raises:
        UserError: some fail their checks, or are tested too, and ``benchmark.skip_bad`` is not set.
    """
    loaded = run.benchmark.development()
    if loaded is None:
        return None
    name, clusters = f"{run.benchmark.name}, development split", not getattr(run.benchmark, "clusters_recur", False)
    return disjoint(_checked(run, loaded, name), tested, name=name, skip_bad=run.skip_bad, clusters=clusters)


def limited(samples: Sequence[Sample], limit: int | None) -> list[Sample]:
    """``limit`` cases in the benchmark's order, spread evenly over the subsets; over-safety comes first."""
    if limit is None or limit >= len(samples):
        return list(samples)
    queues = [[sample for sample in samples if sample.subset == subset] for subset in SUBSETS_BY_TURNS]
    turns = [queue[index] for index in range(max(map(len, queues))) for queue in queues if index < len(queue)]
    chosen = {sample.id for sample in turns[:limit]}
    return [sample for sample in samples if sample.id in chosen]


def _checked(run: Run, loaded: Loaded, name: str) -> Loaded:
    return checked(loaded, kind=run.benchmark.kind, name=name, skip_bad=run.skip_bad)
