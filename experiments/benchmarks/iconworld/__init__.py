"""IconWorld: a procedural benchmark in MMSafeAware's form, whose truth needs both picture and sentence."""

from experiments.benchmarks.iconworld.benchmark import IconWorld, IconWorldRequests

__all__ = ["IconWorld", "IconWorldRequests"]
