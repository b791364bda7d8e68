"""``task=gpu_report`` (``make gpu``): everything that only a GPU can tell, in one go, written to a page.

Each step is a process of its own, with a limit on its time: one that fails, or takes too long, becomes a line of the
page and frees its memory for the next. Imports neither torch nor transformers.
"""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from experiments.bench.gpu_readings import Reading
from experiments.bench.gpu_steps import ROOT, Step, steps_of
from experiments.config import Run
from experiments.runs.directory import open_run
from interp.errors import UserError

PAGE = "docs/gpu.md"
LEAST = 10.0  # seconds below which no step is begun
NEEDS = (
    "task=gpu_report needs a CUDA device (an 80 GB card for all of it), and torch {torch} sees none here; run `make "
    "gpu` where there is one; {page} stays as it is"
)


@dataclass
class Outcome:
    """What came of a step: its readings, or why there are none."""

    name: str
    seconds: float = 0.0
    readings: list[Reading] = field(default_factory=list)
    why_not: str = ""


@dataclass(frozen=True)
class GpuReport:
    """The task. ``size=7b`` measures on a GPU; ``size=tiny`` runs small models, for tests of the task itself.

    ``seconds`` is the time for all steps together. Each gets a share of what the ones before it have left; one that
    would have less than ten seconds is left out. ``only`` are the steps to run (default: all), ``page`` where the
    result goes, relative to the repository.

    Raises:
        UserError: an unknown size, step or device, or no time.
    """

    size: str = "7b"
    seconds: float = 525.0
    device: str = "cuda"
    page: str = PAGE
    only: list[str] | None = None

    def __post_init__(self) -> None:
        if self.size not in ("7b", "tiny"):
            raise UserError(f"task.size={self.size!r}: known are 7b and tiny; choose one of them")
        if not self.seconds > 0:
            raise UserError(f"task.seconds={self.seconds}: must be above 0; the whole of it takes about 525")
        if self.device not in ("cuda", "cpu") or (self.device == "cpu" and self.size == "7b"):
            raise UserError(
                f"task.device={self.device!r} with task.size={self.size}: set cuda, or cpu with task.size=tiny, which "
                "tests the task"
            )
        known = [step.name for step in self.steps(Path())]
        if unknown := [name for name in self.only or () if name not in known]:
            raise UserError(f"task.only={unknown}: known are {', '.join(known)}; choose among them")

    def __call__(self, run: Run) -> None:
        """Runs the steps in their order and writes the page; the page stays as it is where there is no CUDA device.

        Raises:
            UserError: there is no CUDA device.
        """
        import torch

        if self.device == "cuda" and not torch.cuda.is_available():
            raise UserError(NEEDS.format(torch=torch.__version__, page=self.page))
        console = Console()
        began = time.monotonic()
        with (
            open_run(run.output_root, run.name, run.config, run.config_hash, fresh=True) as store,
            TemporaryDirectory() as scratch,
        ):
            console.print(f"run {store.path}", highlight=False, soft_wrap=True)
            outcomes = []
            steps = self.steps(Path(scratch))
            for at, step in enumerate(steps):
                left = began + self.seconds - time.monotonic()
                shares = [other.share for other in steps[at:] if self._wanted(other)]
                outcomes.append(self._outcome(step, shares, left, store.path, console))
            found = {
                "where": where(self.device),
                "size": self.size,
                "seconds": round(time.monotonic() - began, 1),
                "steps": [as_record(outcome) for outcome in outcomes],
            }
            store.write_json("metrics.json", found)
            page = ROOT / self.page
            page.write_text(written(found), encoding="utf-8")
            store.finish()
        console.print(f"page: {page}", highlight=False, soft_wrap=True)

    def steps(self, scratch: Path) -> list[Step]:
        """All steps, in their order; ``scratch`` is where their processes write."""
        return steps_of(self.size, self.device, scratch)

    def _wanted(self, step: Step) -> bool:
        return self.only is None or step.name in self.only

    def _outcome(self, step: Step, shares: Sequence[float], left: float, logs: Path, console: Console) -> Outcome:
        if not self._wanted(step):
            return Outcome(step.name, why_not="not asked for (task.only)")
        limit = left * step.share / sum(shares)
        if limit < min(LEAST, self.seconds / 10):
            return Outcome(
                step.name, why_not=f"left out: {max(0.0, limit):.0f} s of the {self.seconds:.0f} s were left for it"
            )
        console.print(f"{step.name} (at most {limit:.0f} s)", highlight=False)
        outcome = performed(step, limit, logs)
        said = outcome.why_not or f"{len(outcome.readings)} numbers in {outcome.seconds:.0f} s"
        console.print(f"  {said}", highlight=False, markup=False, soft_wrap=True)
        return outcome


def performed(step: Step, limit: float, logs: Path) -> Outcome:
    """The step in a process of its own, which is ended with all it started after ``limit`` seconds."""
    log = logs / f"{step.name.replace(' ', '_').replace('/', '_')}.log"
    began = time.monotonic()
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            list(step.command), cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            _end(process)
            return Outcome(step.name, limit, why_not=f"ended after {limit:.0f} s, its share of the time ({log.name})")
        except BaseException:
            _end(process)
            raise
    seconds = time.monotonic() - began
    try:
        readings = step.read(log)
    except Exception as error:
        why = _last_line(log) if code else f"its result cannot be read: {type(error).__name__}: {error}"
        return Outcome(step.name, seconds, why_not=f"failed: {why} ({log.name})")
    return Outcome(step.name, seconds, readings)


def _end(process: "subprocess.Popen[bytes]") -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it said nothing"


def where(device: str) -> dict[str, Any]:
    """The device, versions and date."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    import torch

    found: dict[str, Any] = {"date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")}
    if device == "cuda":
        about = torch.cuda.get_device_properties(0)
        found |= {"device": f"{about.name}, {about.total_memory / 2**30:.0f} GiB", "CUDA": str(torch.version.cuda)}
    else:
        found |= {"device": f"CPU ({platform.machine()})"}
    for package in ("torch", "transformers", "triton"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    from experiments.runs.provenance import machine

    about_run = machine(None)
    return found | {"commit": f"{about_run['commit']}{' with changes' if about_run['dirty'] else ''}"}


def as_record(outcome: Outcome) -> dict[str, Any]:
    """For metrics.json."""
    return {
        "step": outcome.name,
        "seconds": round(outcome.seconds, 1),
        "why_not": outcome.why_not,
        "readings": [reading.as_record() for reading in outcome.readings],
    }


def written(found: Mapping[str, Any]) -> str:
    """The page."""
    rows = [(step, reading) for step in found["steps"] for reading in step["readings"]]
    absent = [step for step in found["steps"] if step["why_not"]]
    took = [f"{step['step']} {step['seconds']:.0f} s" for step in found["steps"] if step["seconds"]]
    return "\n".join(
        [
            *("# On a GPU", "", _summary(found, [reading for _, reading in rows], len(absent)), ""),
            *("| where | |", "|---|---|"),
            *(f"| {name} | {_cell(value)} |" for name, value in found["where"].items()),
            *("", "| step | what | measured | bound | met |", "|---|---|---|---|---|"),
            *(_row(step["step"], reading) for step, reading in rows),
            *("", "## What did not run", ""),
            *([f"- **{step['step']}**: {_cell(step['why_not'])}" for step in absent] or ["Everything ran."]),
            *("", "## How long the steps took", "", ", ".join(took) or "Nothing ran.", ""),
        ]
    )


def _summary(found: Mapping[str, Any], readings: Sequence[Mapping[str, Any]], absent: int) -> str:
    held = [reading["met"] for reading in readings if reading["met"] is not None]
    small = "**Small models, for a test of this page: no number here means anything.** "
    return (
        f"Written by `make gpu` on {found['where']['date']}, in {found['seconds']:.0f} s. "
        f"{'' if found['size'] == '7b' else small}"
        f"Numbers with a bound: {len(held)}; bound met: {sum(held)}; not met: {len(held) - sum(held)}. "
        f"Steps: {len(found['steps'])}; did not run: {absent}. Weights are random: time and memory depend on a model's "
        "shape, not on its weights."
    )


def _row(step: str, reading: Mapping[str, Any]) -> str:
    met = {None: "–", True: "yes", False: "**no**"}[reading["met"]]
    cells = map(_cell, (step, reading["what"], reading["value"], reading["bound"] or "–"))
    return f"| {' | '.join(cells)} | {met} |"


def _cell(value: Any) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
