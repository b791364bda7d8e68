"""``task=gpu_report``: everything that only a GPU can tell, in parts, appended to one record and written to a page.

Each step is a process of its own with a limit on its time: one that fails, or takes too long, becomes a line of the
page and frees its memory for the next. Importing this module loads neither torch nor transformers.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from rich.console import Console

from experiments.config import Run
from interp.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
MEASURED = "## Measured"  # of the page, everything from this heading on is written anew
NEEDS = (
    "task=gpu_report needs a CUDA device (80 GB for all of it), and torch {torch} sees none here; run it where "
    "there is one (docs/gpu.md says how); task.only=[] writes the page from a record that is there already"
)


class Step(NamedTuple):
    """A part of the report, the seconds after which it is ended, and the model whose shape it is measured on."""

    part: str
    limit: float
    model: str = ""

    @property
    def name(self) -> str:
        """What it is called in the record."""
        return f"{self.part} {self.model}".strip()


MODELS = {"LLaVA-1.5": {"7b": "7b", "tiny": "tiny"}, "Qwen2.5-VL": {"7b": "7b_qwen", "tiny": "small_qwen"}}
STEPS = (
    Step("tests", 200),
    *(Step(part, limit, model) for part, limit in (("attention", 90), ("vcd", 120), ("eval", 200)) for model in MODELS),
    Step("sharing", 150, "LLaVA-1.5"),
    *(Step("prove", 90, model) for model in MODELS),
    Step("precision", 120),
    Step("waits", 80, "LLaVA-1.5"),
    *(Step("tools", 120, model) for model in MODELS),
)
"""In the order in which they are wanted."""
PARTS = tuple(dict.fromkeys(step.part for step in STEPS))
BEGUN = "begun, and the call was ended before it was done"


class Reading(NamedTuple):
    """A number: what it is, its value in words, its bound in words and whether it is met (None: it has none)."""

    what: str
    value: str
    bound: str = ""
    met: bool | None = None


@dataclass
class Outcome:
    """What came of a step, a line of the record: its readings, or why there are none; where and when it ran."""

    step: str
    seconds: float = 0.0
    readings: list[Reading] = field(default_factory=list)
    why_not: str = ""
    where: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class GpuReport:
    """The task. ``size=7b`` measures on a GPU; ``size=tiny`` runs small models, for tests of the task itself.

    ``only`` are the parts to run; None: every step that the record has no numbers of yet, those that failed last, and
    an empty list: none. No step is begun whose limit would end after ``seconds``; the same command goes on with it.
    ``record`` (JSON lines) is appended to, when a step begins and when it ends; ``page`` is written from it, in the
    repository. A step that fails does not stop those after it.

    Raises:
        UserError: an unknown size, part or device, or no time.
    """

    size: str = "7b"
    seconds: float = 540.0
    device: str = "cuda"
    record: str = "outputs/gpu_report.jsonl"
    page: str = "docs/gpu.md"
    only: list[str] | None = None

    def __post_init__(self) -> None:
        if self.size not in ("7b", "tiny"):
            raise UserError(f"task.size={self.size!r}: known are 7b and tiny; choose one of them")
        if not self.seconds >= min(step.limit for step in STEPS):
            raise UserError(f"task.seconds={self.seconds}: the shortest step takes up to 80; give that or more")
        if self.device not in ("cuda", "cpu") or (self.device == "cpu" and self.size == "7b"):
            raise UserError(
                f"task.device={self.device!r} with task.size={self.size}: set cuda, or cpu with task.size=tiny, which "
                "tests the task"
            )
        if unknown := [name for name in self.only or () if name not in PARTS]:
            raise UserError(f"task.only={unknown}: known are {', '.join(PARTS)}; choose among them")

    def __call__(self, run: Run) -> None:
        """Runs the steps in their order, each appended to the record at once, and writes the page.

        Raises:
            UserError: there is no CUDA device; or, once the page is written, steps gave no numbers.
        """
        import torch

        console, began = Console(highlight=False, soft_wrap=True), time.monotonic()
        record, page = Path(self.record), ROOT / self.page
        wanted = self.wanted(recorded(record))
        if wanted and self.device == "cuda" and not torch.cuda.is_available():
            raise UserError(NEEDS.format(torch=torch.__version__))
        record.parent.mkdir(parents=True, exist_ok=True)
        place, logs, failed = where(self.device, self.size) if wanted else {}, record.with_suffix(".logs"), []
        for step in wanted:
            left = began + self.seconds - time.monotonic()
            if step.limit > left:
                console.print(f"{step.name}: not begun, {left:.0f} s are left and it has {step.limit:.0f}")
                continue
            console.print(f"{step.name} (at most {step.limit:.0f} s)")
            appended(record, Outcome(step.name, why_not=BEGUN, where=place))
            outcome = performed(step, self.size, self.device, logs)
            outcome.where = place
            appended(record, outcome)
            numbers = f"{len(outcome.readings)} numbers in {outcome.seconds:.0f} s"
            console.print(f"  {outcome.why_not or numbers}", markup=False)
            failed += [step.name] if outcome.why_not else []
        head = page.read_text(encoding="utf-8").partition(MEASURED)[0] if page.exists() else "# On a GPU\n\n"
        page.write_text(head + written(recorded(record)), encoding="utf-8")
        console.print(f"record: {record}\npage: {page}")
        if failed:
            raise UserError(
                f"no numbers from {', '.join(failed)}; their output is in {logs}, and the same command tries them again"
            )

    def wanted(self, found: Sequence[Outcome]) -> list[Step]:
        """The steps to run: those asked for, or those that were not tried, then those without numbers."""
        if self.only is not None:
            return [step for step in STEPS if step.part in self.only]
        tried = {outcome.step: bool(outcome.readings) for outcome in found}
        return sorted((step for step in STEPS if not tried.get(step.name)), key=lambda step: step.name in tried)


def recorded(record: Path) -> list[Outcome]:
    """The last outcome of every step in the record, in the order of the steps; half a line of a killed call is none."""
    last: dict[str, Outcome] = {}
    for line in record.read_text(encoding="utf-8", errors="replace").splitlines() if record.exists() else ():
        try:
            outcome = Outcome(**json.loads(line))
        except ValueError:
            continue
        outcome.readings = [Reading(*reading) for reading in outcome.readings]
        if outcome.why_not != BEGUN or outcome.step not in last:
            last[outcome.step] = outcome
    return [last[step.name] for step in STEPS if step.name in last]


def appended(record: Path, outcome: Outcome) -> None:
    """Adds a line to the record, behind whatever a killed call left, on the disk before it returns."""
    with record.open("a", encoding="utf-8") as lines:
        lines.write(f"\n{json.dumps(vars(outcome), ensure_ascii=False)}\n")
        lines.flush()
        os.fsync(lines.fileno())


def performed(step: Step, size: str, device: str, logs: Path) -> Outcome:
    """The step in a process of its own, which is ended with all it started when its time is up."""
    logs.mkdir(parents=True, exist_ok=True)
    log = logs / f"{step.name.replace(' ', '_')}.log"
    began = time.monotonic()
    with TemporaryDirectory() as folder, log.open("w", encoding="utf-8") as output:
        found = Path(folder) / "readings.json"
        process = subprocess.Popen(
            command(step, size, device, found),
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(timeout=step.limit)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            return Outcome(step.name, step.limit, why_not=f"ended after {step.limit:.0f} s ({log.name})")
        outcome = Outcome(step.name, round(time.monotonic() - began, 1))
        if code:
            said = log.read_text(encoding="utf-8", errors="replace").split("\n")
            last = next((line.strip() for line in reversed(said) if line.strip()), "it said nothing")
            outcome.why_not = f"failed: {last[:300]} ({log.name})"
        else:
            outcome.readings = [Reading(*one) for one in json.loads(found.read_text(encoding="utf-8"))]
        return outcome


def command(step: Step, size: str, device: str, out: Path) -> list[str]:
    """What measures the step and writes its readings to ``out``."""
    shape = MODELS[step.model][size] if step.model else size
    arguments = [step.part, shape, device, str(step.limit), str(out)]
    return [sys.executable, "-m", "experiments.bench.gpu_steps", *arguments]


def where(device: str, size: str) -> dict[str, str]:
    """The device, versions and date."""
    import torch

    from experiments.runs.provenance import commit, installed

    name = "a CPU"
    if device == "cuda":
        about = torch.cuda.get_device_properties(0)
        name = f"{about.name}, {about.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}"
    return {
        "device": name,
        "models": "random weights" if size == "7b" else "small ones, for a test of this page: no number means anything",
        **{package: installed(package) for package in ("torch", "transformers")},
        "commit": commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }


def written(found: Sequence[Outcome]) -> str:
    """The part of the page that has the numbers, and where they are from: a line for each machine and date."""
    held = [reading.met for outcome in found for reading in outcome.readings if reading.met is not None]
    missing = [step.name for step in STEPS if step.name not in {outcome.step for outcome in found}]
    places: dict[str, list[str]] = {}
    for outcome in found:
        place = "; ".join(f"{name}: {value}" for name, value in outcome.where.items())
        places.setdefault(place, []).append(f"{outcome.step} {outcome.seconds:.0f} s")
    lines = [
        MEASURED,
        "",
        f"Numbers with a bound: {len(held)}; bound met: {sum(held)}; not met: {len(held) - sum(held)}. Weights are "
        "random: time and memory depend on a model's shape, not on its weights.",
        "",
        "| step | what | measured | bound | met |",
        "|---|---|---|---|---|",
        *(line for outcome in found for line in _rows(outcome)),
        "",
        f"Not run yet: {', '.join(missing) or 'nothing'}.",
        "",
        *(f"- {_cell(place)}. {', '.join(steps)}." for place, steps in places.items()),
    ]
    return "\n".join(lines)


def _rows(outcome: Outcome) -> Iterator[str]:
    for reading in outcome.readings or [Reading("–", outcome.why_not)]:
        met = {None: "–", True: "yes", False: "**no**"}[reading.met]
        cells = map(_cell, (outcome.step, reading.what, reading.value, reading.bound or "–"))
        yield f"| {' | '.join(cells)} | {met} |"


def _cell(value: Any) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
