"""Records → metrics.json, table and sentences, by what the benchmark's answers are read for. Reads no model."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from rich.console import RenderableType

from experiments import metrics
from experiments.benchmarks.sample import Loaded
from experiments.refusal import metrics as refusal
from experiments.refusal import terminal as refusal_terminal
from experiments.report import terminal
from experiments.schema import Run
from interp.errors import UserError

NO_VERDICT_TO_SHIFT = "it is a constant on the margin between Yes and No, which an open answer does not have"


def evaluate(
    run: Run, predictions: Sequence[Mapping[str, Any]], *, where: str, caveat: str = "", missing: Mapping[str, str] = {}
) -> dict[str, Any]:
    """The contents of metrics.json. ``missing`` are arms that cannot enter here, with the reason."""
    frame = pd.DataFrame(predictions)
    if run.benchmark.kind == "refusal":
        return refusal.evaluate(
            frame,
            seed=run.seed,
            draws=run.draws,
            study=None if run.arm in missing else run.arm,
            empty_as_refusal=run.count_empty_as_refusal,
            safety_margin=run.unsafe_margin,
            not_applicable=missing,
            where=where,
            caveat=caveat,
        )
    return metrics.evaluate(
        frame,
        seed=run.seed,
        draws=run.draws,
        study=run.arm,
        unsafe_margin=run.unsafe_margin,
        where=where,
        caveat=caveat,
    )


def shown(result: Mapping[str, Any]) -> RenderableType:
    """The result as a terminal shows it."""
    return refusal_terminal.results(result) if result.get("kind") == "refusal" else terminal.results(result)


def not_applicable(run: Run) -> dict[str, str]:
    """Arms that cannot enter a refusal benchmark, and why; UserError where the judge reads other answers."""
    if run.judge.kind != run.benchmark.kind:
        raise UserError(
            f"judge {run.judge.name} reads {run.judge.kind} answers and {run.benchmark.name} asks for "
            f"{run.benchmark.kind}; leave judge out, or choose one of that kind in conf/judge"
        )
    if run.benchmark.kind == "yes_no":
        return {}
    return {arm: NO_VERDICT_TO_SHIFT for arm, method in run.arms.items() if getattr(method, "yes_no_only", False)}


def shortfall(loaded: Loaded) -> str:
    """How many of a benchmark's cases cannot run here, and why, in a sentence; "" where all can."""
    if not loaded.missing:
        return ""
    reasons = Counter(reason.partition(":")[0] for reason in loaded.missing.values())
    listed = ", ".join(f"{count:,} × {reason}" for reason, count in reasons.most_common())
    total = len(loaded.samples) + len(loaded.missing)
    return f"{len(loaded.samples):,} of the benchmark's {total:,} cases can run here ({listed})."


def caveat(run: Run) -> str:
    """What a reader must know before the numbers: the organism understands IconWorld alone."""
    path = getattr(run.model, "path", "")
    if path.startswith("organism:") and run.benchmark.name != "iconworld":
        return (
            "The model is the bundled organism, which knows IconWorld's words and pictures alone: on "
            f"{run.benchmark.name} its answers mean nothing, and this run shows only that every step works."
        )
    return ""
