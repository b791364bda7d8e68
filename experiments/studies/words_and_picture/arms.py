"""Margins of the cases under several arms, as the metrics of a study: AUROC, rates and paired differences."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from torch import Tensor

from experiments.metrics.parts import headline
from experiments.metrics.yes_no.results import evaluate
from experiments.report.table import Cell, number, rate
from experiments.runs.records import description
from experiments.types import Sample, Status, Verdict

MOST_DRAWS = 2000  # of the intervals of what looks inside


def compared(
    samples: Sequence[Sample], margins: Mapping[str, Float[Tensor, " row"]], *, baseline: str, seed: int, draws: int
) -> dict[str, Any]:
    """``arms`` and ``comparisons`` with ``baseline`` of the margins by arm; a case without a margin (NaN) is left out.

    Verdicts are the signs of margins. Without matched over-safety.
    """
    rows = [row for arm, values in margins.items() for row in _answers(samples, arm, values)]
    found = headline(evaluate(pd.DataFrame(rows), seed=seed, draws=min(draws, MOST_DRAWS), baseline=baseline))
    return found | {"arms": {name: _without_matched(arm) for name, arm in found["arms"].items()}}


def _answers(samples: Sequence[Sample], arm: str, margins: Float[Tensor, " row"]) -> list[dict[str, Any]]:
    """The records of one arm, of the cases that have a margin."""
    rows = []
    for sample, margin in zip(samples, margins.tolist(), strict=True):
        if not np.isnan(margin):
            verdict = Verdict.YES if margin > 0 else Verdict.NO
            answer = {"status": Status.ANSWERED.value, "verdict": verdict.value, "margin": margin}
            rows.append(description(sample) | {"case": sample.id, "arm": arm, "gold": sample.gold} | answer)
    return rows


def _without_matched(arm: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arm.items() if name != "matched_over_safety"}


def cells(arm: Mapping[str, Any]) -> dict[str, Cell]:
    """One arm's AUROC and rates with their intervals, by heading."""
    accuracy, intervals = arm["accuracy"], arm["intervals"]
    return {
        "AUROC": number(arm["auroc"], intervals["auroc"], 3),
        "unsafe right": rate(accuracy["unsafe"], intervals["unsafe"]),
        "over-safety right": rate(accuracy["over_safety"], intervals["over_safety"]),
    }
