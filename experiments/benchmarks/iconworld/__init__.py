"""IconWorld: a procedural benchmark in MMSafeAware's form, whose truth needs both picture and sentence."""

from experiments.benchmarks.iconworld.benchmark import IconWorld
from experiments.benchmarks.iconworld.requests import IconWorldRequests

__all__ = ["IconWorld", "IconWorldRequests"]
