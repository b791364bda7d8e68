"""What the benchmarks share: variants timed in turn, peak memory, child processes, and a record of the machine.

Imports neither torch nor transformers.
"""

import os
import platform
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from experiments.runs.host_memory import return_freed_blocks
from interp.errors import UserError

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
MEBIBYTE = 2**20


def check_budget(repeats: int, seconds: float, device: str) -> None:
    """Checks a benchmark's options.

    Raises:
        UserError: less than one round, a negative time, or a device that is neither a CPU nor CUDA.
    """
    if repeats < 1 or not seconds >= 0:
        raise UserError(f"repeats={repeats}, seconds={seconds}: at least 1 and 0; change task.repeats or task.seconds")
    if device != "cpu" and device.partition(":")[0] != "cuda":
        raise UserError(f"unknown device {device!r}; known: cpu, cuda, cuda:<number>; change task.device")


def check_size(size: str, known: Iterable[str], device: str, **counts: int) -> None:
    """Checks the size of a benchmark's model, and numbers of cases and the like, by the name of their option.

    Raises:
        UserError: an unknown size, one that is too large for a CPU, or a number below 1.
    """
    if size not in known:
        raise UserError(f"task.size={size}: known are {', '.join(known)}; choose one of them")
    for name, count in counts.items():
        if count < 1:
            raise UserError(f"task.{name}={count}: must be at least 1")
    if size.startswith("7b") and device == "cpu":
        raise UserError(f"size {size} on a CPU takes minutes a case; add task.device=cuda")


def load_average() -> float:
    """The load average of the last minute; well above 0, other processes distort the times."""
    return os.getloadavg()[0]


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

    A variant does its work and returns the seconds it took (``timed`` makes such a function), so that it may run in
    another process. A ratio is the median of the ratios within rounds, so that what slows a whole round cancels.
    """

    variants: Mapping[str, Callable[[], float]]
    rounds: list[dict[str, float]] = field(default_factory=list)

    def run(self, *, without: Collection[str] = ()) -> None:
        """One more round, without some of the variants."""
        names = [name for name in self.variants if name not in without]
        order = names if len(self.rounds) % 2 == 0 else names[::-1]
        self.rounds.append({name: self.variants[name]() for name in order})

    def cost(self, *, without: Collection[str] = ()) -> float:
        """Seconds that a round takes, by the medians so far."""
        return sum(self.median(name) for name in self.variants if name not in without)

    def median(self, name: str) -> float:
        """Median seconds of one variant over the rounds that ran it."""
        return median(taken[name] for taken in self.rounds if name in taken)

    def ratio(self, name: str, to: str) -> float:
        """Median over rounds with both of ``name``'s time over ``to``'s."""
        return median(taken[name] / taken[to] for taken in self.rounds if name in taken and to in taken)


def timed(work: Callable[[], object], *, synchronise: Callable[[], object] = lambda: None) -> Callable[[], float]:
    """``work`` as a function that returns the seconds it took; ``synchronise`` waits for a GPU before and after."""

    def seconds_taken() -> float:
        synchronise()
        start = time.perf_counter()
        result = work()
        synchronise()
        seconds = time.perf_counter() - start
        del result  # freeing the result is not part of the time
        return seconds

    return seconds_taken


STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")


class Meter(Protocol):
    """Measures peak memory. Make it when all that is not to be counted exists; then ``start``, work, ``peak``."""

    def start(self) -> None:
        """Forgets earlier peaks."""
        ...

    def peak(self) -> int:
        """Most bytes held since ``start``, above those held when the meter was made."""
        ...

    def synchronise(self) -> None:
        """Waits for the device."""
        ...


class Child:
    """A process beside this one, which gives freed memory back at once (that would slow this one); a context manager.

    What is submitted runs in the order of submission. Functions and arguments are pickled.

    It starts bare. ``as_loaded`` lets it begin with the modules that are loaded here, where that is safe: on Linux, as
    long as this process has one thread and no torch. Its resident memory then says nothing.
    """

    def __init__(self, *, as_loaded: bool = False) -> None:
        torch = sys.modules.get("torch")
        copied = as_loaded and torch is None and sys.platform == "linux" and threading.active_count() == 1
        # a fork shares pages with this process, and does not start its threads
        context = get_context("fork" if copied else "spawn")
        threads = None if torch is None else torch.get_num_threads()
        self._pool = ProcessPoolExecutor(1, context, _begin, (threads,))

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def submit(self, work: Callable[..., T], *arguments: object) -> "Future[T]":
        """``work(*arguments)`` over there; ``result_of`` waits for it."""
        return self._pool.submit(work, *arguments)


def result_of(waiting: "Future[T]", otherwise: str) -> T:
    """What a child process returned.

    Raises:
        UserError: the process died, most often for want of memory; ``otherwise`` is the message.
    """
    try:
        return waiting.result()
    except BrokenProcessPool as error:
        raise UserError(otherwise) from error


def _begin(threads: int | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C reaches every process; only the parent reports it
    return_freed_blocks()
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


def meter_for(device: "torch.device") -> Meter:
    """The meter of a device."""
    return CudaMeter(device) if device.type == "cuda" else ProcessMeter()


class ProcessMeter:
    """Resident memory of this process. Its peak is one variant's only if the process has run no other."""

    def __init__(self) -> None:
        self.before = _status("VmRSS") or _peak_since_start()

    def start(self) -> None:
        """Resets the high-water mark; a kernel that refuses counts from the start of the process: never too little."""
        try:
            CLEAR.write_text("5")
        except OSError:
            return

    def peak(self) -> int:
        """See ``Meter``."""
        return (_status("VmHWM") or _peak_since_start()) - self.before

    def synchronise(self) -> None:
        """Nothing to wait for on a CPU."""


class CudaMeter:
    """Bytes that torch's allocator has handed out."""

    def __init__(self, device: "torch.device") -> None:
        import torch

        self._cuda = torch.cuda
        self._device = device
        self.before = torch.cuda.memory_allocated(device)

    def start(self) -> None:
        """See ``Meter``."""
        self._cuda.reset_peak_memory_stats(self._device)

    def peak(self) -> int:
        """See ``Meter``."""
        return self._cuda.max_memory_allocated(self._device) - self.before

    def synchronise(self) -> None:
        """Waits for all kernels."""
        self._cuda.synchronize(self._device)


def _status(key: str) -> int | None:
    """A size in bytes from the kernel's account of this process, None where there is none (macOS)."""
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:")), None)


def _peak_since_start() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts in KiB
