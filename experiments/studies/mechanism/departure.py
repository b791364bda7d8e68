"""Where failures depart from successes, by the Yes/No margin that the model would give at each layer (logit lens).

Margins in, rows out; no model is involved.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from experiments.metrics.bootstrap import ClusterBootstrap
from experiments.metrics.estimates import CLUSTER, Resamples, first_lasting
from experiments.studies.mechanism.cases import AnsweredCases
from experiments.types import SCORED_SUBSETS
from interp.errors import UserError

SETTLED = 0.9  # share of the failures whose margin lies on the wrong side


def lens_rows(
    lens: Float[np.ndarray, "layer row"],
    cases: AnsweredCases,
    subset: str | None,
    estimator: Resamples,
    *,
    layers: Sequence[int],
) -> dict[str, Any]:
    """Margins by layer and subset, failures and successes apart, and where those of ``subset`` depart and settle.

    ``settled`` is the first layer from which on at least ``SETTLED`` of the failures' margins lie on the wrong side.
    ``pooled`` and ``within`` say from which layer on failures and successes differ, all together and within one
    sentence, with the gap (failures − successes, logits) at each layer.
    """
    curves = []
    for name in SCORED_SUBSETS:
        for failed in (True, False):
            where = cases.in_subset(name) & (cases.failed == failed)
            if where.any():
                means = [estimator.mean(row, where) for row in lens]
                curves.append({"subset": name, "failed": failed, "margin": means})
    found: dict[str, Any] = {"curves": curves, "auroc": [estimator.auroc(row, cases.safe) for row in lens]}
    if subset is None:
        return found | {"wrong": None, "settled": None, "pooled": None, "within": None}
    here = cases.in_subset(subset)
    fails = here & cases.failed
    towards = np.where(cases.safe, 1.0, -1.0)
    wrong = [estimator.mean((towards * row <= 0).astype(float), fails) for row in lens]
    settled = first_lasting([int(entry["value"] >= SETTLED) for entry in wrong], 1)
    return found | {
        "wrong": wrong,
        "settled": None if settled is None else layers[settled],
        "pooled": _departure_row(lens, cases, here, estimator, layers, None),
        "within": _departure_row(lens, cases, here, estimator, layers, cases.questions[here]),
    }


def _departure_row(
    lens: np.ndarray,
    cases: AnsweredCases,
    here: np.ndarray,
    estimator: Resamples,
    layers: Sequence[int],
    strata: np.ndarray | None,
) -> dict[str, Any]:
    failed = cases.failed[here]

    def compared(some: ClusterBootstrap) -> Departure:
        return departure(lens[:, here], failed, some.multiplicity[:, some.cluster[here]], strata=strata)

    try:
        over = {name: compared(some) for name, some in estimator.schemes.items()}
    except UserError as error:
        return {"layer": None, "gaps": None, "reason": str(error)}
    found = over[CLUSTER]
    counted = np.zeros(len(here), dtype=bool)
    counted[here] = found.counted
    sides = (counted & cases.failed, counted & ~cases.failed)
    ends = [
        estimator.spread({name: one.draws[:, i] for name, one in over.items()}, sides).ends(float(found.gap[i]))
        for i in range(len(layers))
    ]
    low, high = (np.array([np.nan if end[name] is None else end[name] for end in ends]) for name in ("low", "high"))
    first = departs_at(low, high)
    counts = {"failures": int(failed[found.counted].sum()), "successes": int((~failed)[found.counted].sum())}
    rows = [{"layer": layer, "value": found.gap[i], **ends[i], **counts} for i, layer in enumerate(layers)]
    return {"layer": None if first is None else layers[first], "gaps": rows, "reason": None}


class Departure(NamedTuple):
    """How the margins of failures differ from those of successes, layer by layer: mean minus mean, within strata.

    ``draws`` is the same in each resample, NaN where a resample lacks one side. Failures and successes without a
    counterpart in their stratum are not counted, which ``counted`` says by case.
    """

    gap: Float[np.ndarray, " layer"]
    draws: Float[np.ndarray, "draw layer"]
    counted: Bool[np.ndarray, " row"]


def departure(
    margins: Float[np.ndarray, "layer row"],
    failed: Sequence[bool] | Bool[np.ndarray, " row"],
    multiplicity: np.ndarray,
    *,
    strata: Sequence[str] | np.ndarray | None = None,
) -> Departure:
    """Compares the failures and successes of *one* subset, in which all cases have the same right answer.

    Args:
        multiplicity: draw × row, how often each case occurs in each resample, which is as often as its cluster does
            (``ClusterBootstrap.multiplicity``). There may be no draws.
        strata: what failures and successes are compared within (a template, a matched pair), so that sentences on
            which all fail are not set against others on which none does. The weight of a stratum is n₁n₂/(n₁ + n₂)
            of its two sides.

    Raises:
        UserError: no stratum has both a failure and a success.
    """
    fails = np.asarray(failed, dtype=bool)
    stratum = np.zeros(len(fails), dtype=int) if strata is None else np.unique(strata, return_inverse=True)[1]
    both = [s for s in range(int(stratum.max()) + 1) if 0 < fails[stratum == s].sum() < (stratum == s).sum()]
    if not both:
        raise UserError(
            f"{int(fails.sum())} failures of {len(fails)} cases, and no stratum with both a failure and a success; "
            "a comparison needs them; take wider strata or another subset"
        )
    counted = np.isin(stratum, both)
    once = np.ones((1, len(fails)))
    return Departure(
        gap=_gaps(margins, fails, once, [stratum == s for s in both])[0],
        draws=_gaps(margins, fails, multiplicity, [stratum == s for s in both]),
        counted=counted,
    )


def departs_at(low: Float[np.ndarray, " layer"], high: Float[np.ndarray, " layer"]) -> int | None:
    """The first index from which on, to the last, every interval lies on one side of 0; None if the last does not."""
    sides = np.where(low > 0, 1, np.where(high < 0, -1, 0)).tolist()
    return first_lasting(sides, sides[-1]) if sides[-1] else None


def _gaps(
    margins: Float[np.ndarray, "layer row"],
    fails: Bool[np.ndarray, " row"],
    multiplicity: np.ndarray,
    strata: Sequence[Bool[np.ndarray, " row"]],
) -> Float[np.ndarray, "draw layer"]:
    """Weighted mean over strata of the difference of means in each resample; NaN where no stratum has both sides."""
    top = np.zeros((len(multiplicity), len(margins)))
    bottom = np.zeros(len(multiplicity))
    for here in strata:
        means, counts = [], []
        for side in (here & fails, here & ~fails):
            times = multiplicity[:, side].astype(float)
            counts.append(times.sum(1))
            means.append(times @ margins[:, side].T / np.maximum(counts[-1], 1)[:, None])
        total = counts[0] + counts[1]
        weight = np.divide(counts[0] * counts[1], total, out=np.zeros_like(total), where=total > 0)
        top += weight[:, None] * (means[0] - means[1])
        bottom += weight
    return np.divide(top, bottom[:, None], out=np.full_like(top, np.nan), where=bottom[:, None] > 0)
