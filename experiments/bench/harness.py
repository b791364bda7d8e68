"""Peak memory of a computation above what was there before: of this process on a CPU, of the allocator on CUDA.

Times of variants of one computation, taken in turns so that a machine's moods fall on all alike. Knows no models.
"""

import ctypes
import resource
import sys
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


@dataclass
class Turns:
    """Variants that are run by turns, a round at a time; every other round goes backwards.

    A variant does its work and returns the seconds it took (``timed`` makes such a function), so that it may run in
    another process. A ratio is the median of the ratios within rounds: what slows a whole round cancels.
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

    def taking() -> float:
        synchronise()
        start = time.perf_counter()
        result = work()
        synchronise()
        seconds = time.perf_counter() - start
        del result  # what the work made is freed outside of its time
        return seconds

    return taking


STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")
M_MMAP_THRESHOLD = -3  # glibc's malloc.h
MEBIBYTE = 2**20


class Meter(Protocol):
    """Made once all that is not to be counted is there; then ``start``, work, ``peak``."""

    def start(self) -> None:
        """Forgets earlier peaks."""
        ...

    def peak(self) -> int:
        """Most bytes held since ``start``, above those held when the meter was made."""
        ...

    def synchronise(self) -> None:
        """Waits for the device."""
        ...


def return_freed_blocks() -> None:
    """Has glibc give every freed tensor of a MiB or more back at once, in this process.

    Else it keeps some, by the order of earlier allocations, and equal forwards peak 200 MiB apart. No-op elsewhere.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, MEBIBYTE)


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
        """A CPU has done what it was told."""


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
