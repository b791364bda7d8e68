"""Times of variants of one computation, taken in turns so that a machine's moods fall on all alike. Knows no models."""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from statistics import median


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
