"""Records → metrics.json, table and sentences, by what the benchmark's answers are read for. Reads no model."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd
from rich.console import RenderableType

from experiments import metrics, protocol
from experiments.benchmarks.sample import Kind, Loaded
from experiments.refusal import metrics as refusal
from experiments.refusal import terminal as refusal_terminal
from experiments.refusal.corrected import corrected, sentences
from experiments.report import terminal
from experiments.schema import Run
from interp.errors import UserError

NO_VERDICT_TO_SHIFT = "it is a constant on the margin between Yes and No, which an open answer does not have"


@dataclass(frozen=True)
class Rules:
    """By what rules answers are scored: the same for a run and for its verdicts judged again."""

    kind: Kind
    seed: int
    draws: int
    unsafe_margin: float
    count_empty_as_refusal: bool
    judge: str  # name
    judge_card: str | None  # path, to correct refusal rates for that judge's error

    @classmethod
    def of(cls, run: Run, kind: Kind | None = None, judge: str | None = None) -> "Rules":
        """Those of a run's configuration."""
        return cls(
            kind or run.benchmark.kind,
            run.seed,
            run.draws,
            run.unsafe_margin,
            run.count_empty_as_refusal,
            judge or run.judge.name,
            run.judge_card,
        )


def evaluate(
    rules: Rules,
    predictions: Sequence[Mapping[str, Any]],
    *,
    study: str,
    where: str,
    caveat: str = "",
    missing: Mapping[str, str] = MappingProxyType({}),
    baseline: str = "baseline",
    control: str = "calibrated_shift",
) -> dict[str, Any]:
    """The contents of metrics.json. ``study`` is the arm under study; ``missing`` arms cannot enter (reasons)."""
    frame = pd.DataFrame(predictions)
    if rules.kind == "refusal":
        result = refusal.evaluate(
            frame,
            seed=rules.seed,
            draws=rules.draws,
            baseline=baseline,
            study=None if study in missing else study,
            empty_as_refusal=rules.count_empty_as_refusal,
            safety_margin=rules.unsafe_margin,
            not_applicable=missing,
            where=where,
            caveat=caveat,
        )
        return result if rules.judge_card is None else _beside(result, rules.judge, rules.judge_card)
    return metrics.evaluate(
        frame,
        seed=rules.seed,
        draws=rules.draws,
        baseline=baseline,
        control=control,
        study=study,
        unsafe_margin=rules.unsafe_margin,
        where=where,
        caveat=caveat,
    )


def _beside(result: dict[str, Any], judge: str, card: str) -> dict[str, Any]:
    """The raw rates with the corrected ones beside."""
    found = corrected(result, Path(card), judge)
    return result | {"corrected": found, "caveats": [*result["caveats"], *sentences(found)]}


def shown(result: Mapping[str, Any]) -> RenderableType:
    """The result as a terminal shows it."""
    return refusal_terminal.results(result) if result.get("kind") == "refusal" else terminal.results(result)


def not_applicable(run: Run) -> dict[str, str]:
    """Arms that cannot enter a refusal benchmark, or by this protocol, and why.

    Raises:
        UserError: the judge reads other answers, or nothing here can be scored.
    """
    protocol.check(run)
    if run.judge.kind != run.benchmark.kind:
        raise UserError(
            f"judge {run.judge.name} reads {run.judge.kind} answers and {run.benchmark.name} asks for "
            f"{run.benchmark.kind}; leave judge out, or choose one of that kind in conf/judge"
        )
    if run.benchmark.kind == "yes_no":
        return protocol.not_applicable(run)
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
