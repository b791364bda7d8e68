"""Where failures part from successes, by the margin that the model would give at each point. Pure."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from experiments.metrics.bootstrap import percentile_interval
from experiments.studies.mechanism.cases import Cases
from experiments.studies.mechanism.estimates import Resampling, onward
from experiments.types import SCORED_SUBSETS
from interp.errors import UserError
from interp.lens import departs_at, departure

SETTLED = 0.9  # of the failures lean to the wrong side


def parting(
    lens: Float[np.ndarray, "point row"],
    cases: Cases,
    subset: str | None,
    resampling: Resampling,
    *,
    points: Sequence[int],
) -> dict[str, Any]:
    """Margins by point and subset, failures and successes apart; where those of ``subset`` part, and are settled.

    ``settled`` is the first point from which on at least ``SETTLED`` of the failures' margins lie on the wrong side;
    ``pooled`` and ``within`` say from which point on failures and successes differ, all together and within the same
    sentence, with the gap (failures − successes, logits) at each point.
    """
    curves = []
    for name in SCORED_SUBSETS:
        for failed in (True, False):
            where = cases.of(name) & (cases.failed == failed)
            if where.any():
                means = [resampling.mean(row, where) for row in lens]
                curves.append({"subset": name, "failed": failed, "margin": means})
    found: dict[str, Any] = {"curves": curves, "auroc": [resampling.auroc(row, cases.safe) for row in lens]}
    if subset is None:
        return found | {"wrong": None, "settled": None, "pooled": None, "within": None}
    here = cases.of(subset)
    fails = here & cases.failed
    towards = np.where(cases.safe, 1.0, -1.0)
    wrong = [resampling.mean((towards * row <= 0).astype(float), fails) for row in lens]
    settled = onward([int(entry["value"] >= SETTLED) for entry in wrong], 1)
    return found | {
        "wrong": wrong,
        "settled": None if settled is None else points[settled],
        "pooled": _departure(lens, cases, here, resampling, points, None),
        "within": _departure(lens, cases, here, resampling, points, cases.sentences),
    }


def _departure(
    lens: np.ndarray,
    cases: Cases,
    here: np.ndarray,
    resampling: Resampling,
    points: Sequence[int],
    strata: np.ndarray | None,
) -> dict[str, Any]:
    draws = resampling.multiplicity[:, resampling.cluster[here]]
    try:
        found = departure(
            torch.from_numpy(lens[:, here]),
            cases.failed[here],
            draws,
            strata=None if strata is None else strata[here],
        )
    except UserError as error:
        return {"point": None, "gaps": None, "reason": str(error)}
    ends = [percentile_interval(found.draws[:, index]) for index in range(len(points))]
    low, high = (np.array([np.nan if end is None else end[i] for end in ends]) for i in (0, 1))
    first = departs_at(low, high)
    counted = {"failures": found.failures, "successes": found.successes}
    rows = [{"point": point, "value": found.gap[i], "low": low[i], "high": high[i], **counted}
            for i, point in enumerate(points)]  # fmt: skip
    return {"point": None if first is None else points[first], "gaps": rows, "reason": None}
