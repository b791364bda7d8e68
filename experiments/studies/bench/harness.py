"""What the benches share: variants timed in turn, and the task around them.

A bench measures ratios to a plain variant in the same run. Imports neither torch nor transformers.
"""

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from statistics import median
from typing import Any, ClassVar, NamedTuple

from rich.console import Console, RenderableType

from experiments.config import Run
from experiments.report import tables
from experiments.report.tables import in_terminal
from experiments.runs.store import open_run
from experiments.studies.bench.models import ORGANISM_SIZE, SIZES
from interp.errors import UserError

PLAIN = "plain"
Variants = dict[str, Any]  # name → a function without arguments
Row = dict[str, Any]


class Job(NamedTuple):
    """What is measured: a title, how its variants are made (``PLAIN`` first), and the most that they may take.

    A limit is a multiple of the plain variant's time.
    """

    title: str
    make: Callable[[], Variants]
    limits: Mapping[str, float]


@dataclass(frozen=True)
class Bench:
    """A task that times each job for up to ``repeats`` rounds, if they end within ``seconds``.


    Raises:
        UserError: less than one round, an unknown size, or a device that is neither a CPU nor CUDA.
    """

    repeats: int = 10
    seconds: float = 120.0
    device: str = "cpu"
    choices: ClassVar = (ORGANISM_SIZE, *SIZES)
    numbers: ClassVar[str]  # the name of the field with numbers

    def __post_init__(self) -> None:
        sizes, numbers = self.sizes, getattr(self, self.numbers)  # type: ignore[attr-defined]
        if self.repeats < 1 or not self.seconds >= 0:
            raise UserError(f"repeats={self.repeats}, seconds={self.seconds} must be at least 1 and 0")
        if self.device.partition(":")[0] not in ("cpu", "cuda"):
            raise UserError(f"task.device={self.device} is unknown. Set it to cpu, cuda or cuda:<number>.")
        if not sizes or not set(sizes) <= set(self.choices):
            raise UserError(f"task.sizes={','.join(sizes)} is unknown. Choose among {', '.join(self.choices)}.")
        if self.device == "cpu" and any(size.startswith("7b") for size in sizes):
            raise UserError("A model of size 7b takes minutes for each answer on a CPU. Add task.device=cuda.")
        if not numbers or min(numbers) < 1:
            raise UserError(f"task.{self.numbers}={','.join(map(str, numbers))} must be numbers of at least 1")

    def jobs(self, run: Run, device: str) -> list[Job]:
        """Return what is measured."""
        raise NotImplementedError

    def measure(self, run: Run, device: str) -> dict[str, Any]:
        """Return a row for each job and variant, and all rounds by job."""
        rows: list[Row] = []
        jobs, rounds = self.jobs(run, device), {}
        for job in jobs:
            measured = rounds[job.title] = rounds_of(job.make(), device, self.repeats, self.seconds / len(jobs))
            for name in measured[0]:
                row = {"what": job.title, "variant": name, "seconds": median(each[name] for each in measured)}
                row["times plain"] = median(each[name] / each[PLAIN] for each in measured)
                rows.append(row | {"at most": job.limits.get(name)})
        return {"rows": rows, "rounds": rounds}

    def __call__(self, run: Run) -> None:
        """Measure, write ``metrics.json`` into a new run directory, and print its tables."""
        import torch

        from interp.checkpoints.load import resolve_device

        console, device = Console(), str(resolve_device(self.device))
        with open_run(run.output_root, run.name, run.config, run.config_hash, fresh=True) as store:
            console.print(f"run {store.path}", highlight=False, soft_wrap=True)
            machine = platform.machine() if device == "cpu" else torch.cuda.get_device_name(device)
            about = {"task": asdict(self), "device": machine, "torch": torch.__version__, "load": os.getloadavg()[0]}
            with console.status("measuring"):
                metrics = self.measure(replace(run, output_root=str(store.path)), device)
            store.write_json("metrics.json", about | metrics)
            console.print(*(table(name, rows) for name, rows in metrics.items() if isinstance(rows, list) and rows))


def rounds_of(variants: Variants, device: str, repeats: int, seconds: float) -> list[dict[str, float]]:
    """Return the seconds of each variant by round, after a round to warm up. Every other round goes backwards."""
    for work in variants.values():
        work()
    rounds: list[dict[str, float]] = []
    began = time.monotonic()
    while not rounds or (len(rounds) < repeats and (time.monotonic() - began) * (1 + 1 / len(rounds)) <= seconds):
        names = list(variants) if len(rounds) % 2 == 0 else [*variants][::-1]
        rounds.append({name: timed(variants[name], device) for name in names})
    return rounds


def timed(work: Callable[[], Any], device: str) -> float:
    """Return the seconds of ``work``. Waits for a GPU before and after."""
    import torch

    wait = partial(torch.cuda.synchronize, device) if device != "cpu" else int
    wait()
    start = time.perf_counter()
    result = work()
    wait()
    seconds = time.perf_counter() - start
    del result  # its release is not part of the time
    return seconds


def table(title: str, rows: Sequence[Row]) -> RenderableType:
    """Return a table with a column for each key of the rows."""
    return in_terminal(tables.table([{name: _text(cell) for name, cell in row.items()} for row in rows], title=title))


def _text(cell: Any) -> str:
    return f"{cell:.3g}" if isinstance(cell, float) else "" if cell is None else str(cell)
