"""What the benchmarks share: variants timed in turn, peak memory, child processes, and the task around them.

Imports neither torch nor transformers.
"""

import os
import platform
import resource
import signal
import sys
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

import psutil
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from experiments.config import Run
from experiments.runs.host_memory import return_freed_blocks
from experiments.runs.resumption import open_run
from experiments.studies.bench.models import LONGEST, random_model
from interp.errors import UserError

if TYPE_CHECKING:
    import torch

    from interp.vlm import VLM

T = TypeVar("T")
MEBIBYTE = 2**20
TEXTUAL = ("model", "asked", "step", "what")  # columns of words
STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")
Say = Callable[[str], None]


class Bound(NamedTuple):
    """A number, ``value``, that is to be at most (``least``: at least) ``limit``."""

    what: str
    value: float
    limit: float
    least: bool = False

    @property
    def met(self) -> bool:
        """Whether it is."""
        return self.value >= self.limit if self.least else self.value <= self.limit

    @property
    def wanted(self) -> str:
        """The limit in words."""
        return f"at {'least' if self.least else 'most'} {self.limit:.2f}"

    def __str__(self) -> str:
        return f"{self.what}: {self.value:.2f}, {self.wanted} wanted: {'kept' if self.met else 'missed'}"


class Result(NamedTuple):
    """What a benchmark found: ``metrics`` and ``bounds`` for metrics.json; tables, bounds and sentences are printed."""

    metrics: dict[str, Any]
    tables: Sequence[Table]
    bounds: Sequence[Bound]
    sentences: Sequence[str]


@dataclass(frozen=True)
class Bench:
    """A task that times variants in turn, up to ``repeats`` rounds, as far as they end within ``seconds``.

    Raises:
        UserError: less than one round, a negative time, or a device that is neither a CPU nor CUDA.
    """

    repeats: int = 5
    seconds: float = 120.0
    device: str = "cpu"
    seed: int = 0
    name: ClassVar[str]
    about: ClassVar[str]

    def __post_init__(self) -> None:
        if self.repeats < 1 or not self.seconds >= 0:
            raise UserError(
                f"repeats={self.repeats}, seconds={self.seconds}: at least 1 and 0; change task.repeats or task.seconds"
            )
        if self.device != "cpu" and self.device.partition(":")[0] != "cuda":
            raise UserError(f"unknown device {self.device!r}; known: cpu, cuda, cuda:<number>; change task.device")

    def check(self, option: str, sizes: Sequence[str], known: Collection[str], **numbers: Sequence[int]) -> None:
        """Checks sizes of models, and numbers by the name of their option.

        Raises:
            UserError: no size, an unknown one, one that is too large for a CPU, no number, or one below 1.
        """
        if not sizes or not set(sizes) <= set(known):
            raise UserError(f"task.{option}={','.join(sizes)}: known are {', '.join(known)}; choose among them")
        for name, given in numbers.items():
            if not given or min(given) < 1:
                raise UserError(f"task.{name}={','.join(map(str, given))}: must be at least 1")
        if self.device == "cpu" and (large := [size for size in sizes if size.startswith("7b")]):
            raise UserError(f"size {large[0]} on a CPU takes minutes for each answer; add task.device=cuda")

    def measure(self, run: Run, device: str, say: Say) -> Result:
        """Measures on ``device``; ``say`` shows what is being done. Runs of its own go below ``run.output_root``."""
        raise NotImplementedError

    def __call__(self, run: Run) -> None:
        """Measures, writes ``metrics.json`` into a new run directory, prints tables and sentences."""
        from interp.checkpoints.load import resolve_device

        console, device = Console(), str(resolve_device(self.device))
        with open_run(run.output_root, run.name, run.config, run.config_hash, fresh=True) as store:
            console.print(f"run {store.path}\n{self.about}", highlight=False, soft_wrap=True)
            busy, started = os.getloadavg()[0], time.monotonic()
            with console.status("building models") as status:
                found = self.measure(replace(run, output_root=str(store.path)), device, status.update)
            taken = {"environment": machine(device, busy), "seconds": round(time.monotonic() - started, 1)}
            bounds = [bound._asdict() | {"met": bound.met} for bound in found.bounds]
            about = {"benchmark": self.name, "task": asdict(self), **taken}
            store.write_json("metrics.json", {**about, **found.metrics, "bounds": bounds})
            console.print(*found.tables, *map(str, found.bounds), *found.sentences, sep="\n", highlight=False)


def machine(device: str, busy: float) -> dict[str, Any]:
    """The machine and library versions that times depend on; ``busy`` is the load average before the first of them."""
    import torch
    import transformers

    return {
        "device": platform.machine() if device == "cpu" else torch.cuda.get_device_name(device),
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "load_average_before": busy,
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }


@dataclass
class Turns:
    """Variants that are run in turn, a round at a time; every other round goes backwards.

    A variant does its work and returns the seconds it took (``timed`` makes such a function). A ratio is the median of
    the ratios within rounds, so that what slows a whole round cancels. ``once`` are left out after the first round.
    """

    variants: Mapping[str, Callable[[], float]]
    once: Collection[str] = ()
    rounds: list[dict[str, float]] = field(default_factory=list)
    spent: float = 0.0  # seconds that all rounds took, with what is not part of a variant's time

    def run(self) -> None:
        """One more round."""
        names = [name for name in self.variants if not (self.rounds and name in self.once)]
        order = names if len(self.rounds) % 2 == 0 else names[::-1]
        began = time.monotonic()
        self.rounds.append({name: self.variants[name]() for name in order})
        self.spent += time.monotonic() - began

    @property
    def cost(self) -> float:
        """Seconds that one more round will take, by those so far."""
        return (self.spent - sum(self.rounds[0][name] for name in self.once)) / len(self.rounds)

    def median(self, name: str) -> float:
        """Median seconds of one variant over the rounds that ran it."""
        return median(taken[name] for taken in self.rounds if name in taken)

    def ratio(self, name: str, to: str) -> float:
        """Median over rounds with both of ``name``'s time over ``to``'s."""
        return median(taken[name] / taken[to] for taken in self.rounds if name in taken and to in taken)

    def ratios(self, names: Iterable[str]) -> dict[str, float]:
        """The ratios called ``a_over_b``, by their names."""
        return {name: self.ratio(*name.split("_over_")) for name in names}


def repeat(measured: Sequence[Turns], repeats: int, seconds: float, *, least: float = 0.0) -> None:
    """A round of each, and more up to ``repeats`` as far as they end within ``seconds``.

    Each has ``least`` seconds first, so that no bound is judged by a single short round. Then what has taken the least
    time so far goes next, so that short rounds are repeated more often.
    """
    deadline = time.monotonic() + seconds
    for turns in measured:
        turns.run()
        while turns.spent + turns.cost < least and len(turns.rounds) < repeats:
            turns.run()
    while fitting := [
        turns for turns in measured if len(turns.rounds) < repeats and time.monotonic() + turns.cost <= deadline
    ]:
        min(fitting, key=lambda turns: turns.spent).run()


def timed(work: Callable[[], object], device: "torch.device") -> Callable[[], float]:
    """``work`` as a function that returns the seconds it took; a GPU is waited for before and after."""

    def seconds_taken() -> float:
        synchronise(device)
        start = time.perf_counter()
        result = work()
        synchronise(device)
        seconds = time.perf_counter() - start
        del result  # freeing the result is not part of the time
        return seconds

    return seconds_taken


def synchronise(device: "torch.device") -> None:
    """Waits until a GPU has done what it was asked for; on a CPU there is nothing to wait for."""
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)


def table(title: str, records: Sequence[Mapping[str, str]], legend: str = "") -> Table:
    """A row for each record; the unit of a heading, or what a time is divided by, stands below the name."""
    options: dict[str, Any] = {"box": SIMPLE_HEAD, "show_edge": False, "padding": 0}
    shown = Table(title=title, title_justify="left", caption=legend, caption_justify="left", **options)
    for name in records[0]:
        words = name.replace(" (", "\n(").replace("/", "\n/").replace("two-", "two-\n")
        wide = 10 if name == "model" else None
        shown.add_column(words, justify="left" if name in TEXTUAL else "right", overflow="fold", max_width=wide)
    for record in records:
        shown.add_row(*record.values())
    return shown


class Setting(NamedTuple):
    """A model with random weights: all that a child process needs to build the same one."""

    size: str
    dtype: str
    device: str
    seed: int
    longest: int = LONGEST  # tokens of a prompt with its answer

    def build(self, config: Any) -> "VLM":
        """The model of that configuration."""
        import torch

        device, dtype = torch.device(self.device), getattr(torch, self.dtype)
        return random_model(config, device=device, dtype=dtype, seed=self.seed, longest=self.longest)


def peaks(
    make: Callable[..., Any], setting: Hashable, cases: Iterable[int], variants: Iterable[str], device: str, say: Say
) -> dict[int, dict[str, int]]:
    """By case and variant, bytes above the model itself: of torch's allocator on a GPU, elsewhere of a child process.

    ``make(setting)`` has a model on its ``device``; ``prepare(case)`` makes inputs, tokens of a prompt or prompts in a
    batch, and ``once(variant, case)`` runs a variant as far as its peak.

    Raises:
        UserError: a variant ran out of memory.
    """
    found: dict[int, dict[str, int]] = {}
    work = list(product(sorted(cases), variants))
    if device != "cpu" and work:
        case, variant = work[0]
        _peak(make, setting, variant, case)  # the first use of a GPU takes work space for good
    with child() as other:
        for case, variant in work:
            say(f"memory of {case}, {variant}")
            try:
                if device == "cpu":
                    peak = other.submit(_peak, make, setting, variant, case).result()
                else:
                    peak = _peak(make, setting, variant, case)
            except BrokenProcessPool as error:
                raise UserError(no_memory(variant, case)) from error
            found.setdefault(case, {})[variant] = peak
    return found


def no_memory(variant: str, case: int) -> str:
    """The error message for a variant that ran out of memory."""
    return (
        f"{variant} of {case} did not end, most likely for want of memory; leave that out with task.lengths=[...] or "
        "task.items=[...], or choose a smaller model with task.size or task.sizes"
    )


@lru_cache(maxsize=1)  # one model at a time
def runner(make: Callable[..., T], setting: Hashable) -> T:
    """``make(setting)``, made once in this process."""
    return make(setting)


def _peak(make: Callable[..., Any], setting: Hashable, variant: str, case: int) -> int:
    model = runner(make, setting)
    model.prepare(case)
    meter = Meter(model.device)
    meter.start()
    model.once(variant, case)
    return meter.peak()


def child() -> ProcessPoolExecutor:
    """A process beside this one, which gives freed memory back at once (that would slow this one); a context manager.

    What is submitted runs in the order of submission. Functions and arguments are pickled.
    """
    import torch

    return ProcessPoolExecutor(1, get_context("spawn"), _begin, (torch.get_num_threads(),))


def _begin(threads: int) -> None:
    import torch

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C reaches every process; only the parent reports it
    return_freed_blocks()
    torch.set_num_threads(threads)


class Meter:
    """Peak memory: what torch's allocator has handed out on a GPU, elsewhere what is resident of this process.

    Make it when all that is not to be counted exists; then ``start``, work, ``peak``. The peak of a process is one
    variant's only if it has run no other.
    """

    def __init__(self, device: "torch.device") -> None:
        import torch

        self._device = device
        self._cuda = torch.cuda if device.type == "cuda" else None
        self.before = self._cuda.memory_allocated(device) if self._cuda else psutil.Process().memory_info().rss

    def start(self) -> None:
        """Forgets earlier peaks; a kernel that refuses counts from the start of the process: never too little."""
        if self._cuda:
            self._cuda.reset_peak_memory_stats(self._device)
        else:
            with suppress(OSError):
                CLEAR.write_text("5")

    def peak(self) -> int:
        """Most bytes held since ``start``, above those held when the meter was made."""
        most = self._cuda.max_memory_allocated(self._device) if self._cuda else _peak_of_process()
        return int(most - self.before)


def _peak_of_process() -> int:
    """By the kernel's account of this process, or where there is none (macOS) since its start."""
    try:
        lines = dict(line.split(":", 1) for line in STATUS.read_text().splitlines())
        return int(lines["VmHWM"].split()[0]) * 1024
    except (OSError, KeyError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
