"""What comes back when something is taken away: changed margins, each set against the margins as they are.

Margins in, rows out; no model is involved.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from experiments.metrics.tests import mcnemar, wilson
from experiments.studies.mechanism.estimates import Estimator
from mitigation.prior_correction import prior_share

AS_IT_IS = "as it is"
PRIOR = "sentence’s prior taken away"


def reversal_rows(
    margins: Float[np.ndarray, "case"],
    arms: Mapping[str, Float[np.ndarray, "case"]],
    safe: Bool[np.ndarray, "case"],
    estimator: Estimator,
) -> list[dict[str, Any]]:
    """A row for each arm (name → margins), the model as it is first; a case is called safe where its margin is above 0.

    ``change`` is the AUROC minus that of the margins as they are, on the same cases. ``fixed`` wrong answers turn right
    and ``broken`` right ones wrong. ``shift`` is what a constant does that is added to every margin and says Yes as
    often: it moves the threshold and discriminates no better.
    """
    rows = []
    for name, now in {AS_IT_IS: margins, **arms}.items():
        yes = int((now > 0).sum())
        rows.append({
            "arm": name,
            "auroc": estimator.auroc(now, safe),
            "change": None if name == AS_IT_IS else estimator.auroc(now, safe, less=margins),
            "yes": yes / len(now),
            **_flips(margins, now, safe),
            "shift": _flips(margins, shifted(margins, yes), safe),
        })  # fmt: skip
    return rows


def shifted(margins: Float[np.ndarray, "case"], yes: int) -> Float[np.ndarray, "case"]:
    """The margins plus the constant with which ``yes`` of them are above 0 (but for ties)."""
    ordered = np.sort(margins)[::-1]
    if yes <= 0:
        return margins - ordered[0] - 1.0
    edge = ordered[yes - 1]
    below = ordered[yes] if yes < len(ordered) else edge - 1.0
    return margins - (edge + below) / 2


def _flips(before: np.ndarray, after: np.ndarray, safe: np.ndarray) -> dict[str, Any]:
    was, now = (before > 0) == safe, (after > 0) == safe
    flips = mcnemar(was, now)
    wrong, right = int((~was).sum()), int(was.sum())
    return {
        "fixed": flips.fixed,
        "wrong": wrong,
        "fixed_interval": wilson(flips.fixed, wrong),
        "broken": flips.broken,
        "right": right,
        "broken_interval": wilson(flips.broken, right),
        "p": flips.p,
    }


def prior_shares(
    margins: np.ndarray, priors: np.ndarray, questions: np.ndarray, estimator: Estimator
) -> dict[str, Any]:
    """``mitigation.prior_correction.prior_share`` of the cases, with a bootstrap interval of R²."""
    found = prior_share(margins, priors, questions.tolist())
    draws = estimator.bootstrap.multiplicity[:, estimator.bootstrap.cluster].astype(float)
    total = draws.sum(1)
    centred = [values - values.mean() for values in (margins, priors)]
    means = [draws @ values / total for values in centred]
    moments = {(i, j): draws @ (centred[i] * centred[j]) / total - means[i] * means[j] for i in (0, 1) for j in (i, 1)}
    with np.errstate(divide="ignore", invalid="ignore"):
        explained = moments[0, 1] ** 2 / (moments[0, 0] * moments[1, 1])
    defined = explained[np.isfinite(explained)]
    low, high = np.quantile(defined, [0.025, 0.975]) if len(defined) * 2 >= len(draws) else (None, None)
    clusters = estimator.bootstrap.multiplicity.shape[1]
    return {**found._asdict(), "r2": {"value": found.explained, "low": low, "high": high, "n": len(margins),
                                      "clusters": clusters}}  # fmt: skip
