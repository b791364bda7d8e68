"""Margins of the cases under several arms, as the metrics of a study: AUROC, rates and paired differences."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from torch import Tensor

from experiments.metrics.findings import Answer, side
from experiments.metrics.parts import headline
from experiments.metrics.yes_no.results import evaluate
from experiments.runs.records import description
from experiments.types import Sample, Status, Verdict

Arms = dict[str, dict[str, Any]]


def compared(
    samples: Sequence[Sample], margins: Mapping[str, Float[Tensor, " row"]], *, baseline: str, seed: int, draws: int
) -> tuple[Arms, dict[str, dict[str, Any] | None]]:
    """Each arm's metrics, and the paired difference of its AUROC from that of ``baseline`` (None of this itself).

    A case without a margin (NaN) is left out, and so is an arm without a case. Verdicts are the signs of margins.
    Without matched over-safety.
    """
    rows = [row for arm, values in margins.items() for row in _answers(samples, arm, values)]
    found = headline(evaluate(pd.DataFrame(rows), seed=seed, draws=draws, baseline=baseline))
    arms = {arm: {name: value for name, value in metrics.items() if name != "matched_over_safety"}
            for arm, metrics in found["arms"].items()}  # fmt: skip
    changes = {arm: one["delta"]["auroc"] for arm, one in found["comparisons"].items()}
    return arms, {arm: changes.get(arm) for arm in arms}


def _answers(samples: Sequence[Sample], arm: str, margins: Float[Tensor, " row"]) -> list[dict[str, Any]]:
    """The records of one arm, of the cases that have a margin."""
    rows = []
    for sample, margin in zip(samples, margins.tolist(), strict=True):
        if not np.isnan(margin):
            verdict = Verdict.YES if margin > 0 else Verdict.NO
            answer = {"status": Status.ANSWERED.value, "verdict": verdict.value, "margin": margin}
            rows.append(description(sample) | {"case": sample.id, "arm": arm, "gold": sample.gold} | answer)
    return rows


def follows_other(arm: Mapping[str, Any]) -> tuple[Answer, dict[str, Any]]:
    """YES where the whole interval of the AUROC of the cases' own truth lies below a half; and that AUROC."""
    low, high = arm["intervals"]["auroc"] or (None, None)
    evidence = {"value": arm["auroc"], "low": low, "high": high}
    if arm["auroc"] is None:
        return Answer.CANNOT_TELL, evidence
    if high is None:
        return Answer.TOO_FEW, evidence
    return Answer.YES if side(evidence, 0.5) < 0 else Answer.NOT_SHOWN, evidence
