"""Whether prior correction can help a model, said beforehand and without labels: how much of its verdicts is prior.

A margin is taken as prior + picture: what the sentence alone gives, and what this case's picture adds. Pictures that
are safe and unsafe alike for the sentence make the prior a threshold that differs by sentence; in one AUROC over all
sentences it is noise. Taking it out leaves the difference of the two kinds as it is and the spread smaller. Pure; knows
nothing of models.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from interp.errors import UserError

WORTH = 1.25
"""``PriorShare.helps`` from this factor of d′ on: from an AUROC of .65 to .68, or from .60 to .62."""


class PriorShare(NamedTuple):
    """What margins owe to their sentences; shares are of the variance of the margins, over all cases.

    Attributes:
        cases, sentences: how many there were.
        between: share that lies between sentences (the means of their margins). With one picture a sentence it is 1 and
            says nothing.
        explained: R², the share that a straight line in the prior's margin explains: 0 where every sentence has the
            same prior (one threshold too low for all), near 1 where the prior decides and pictures hardly count.
        correlation: of margin and prior's margin; NaN where either is the same for all cases.
        weight: slope of that line, the label-free choice of ``PriorCorrection.weight``; 0 where the priors are all one.
        left: spread (standard deviation) of the corrected margins at that weight over that of the margins, √(1 − R²).
        factor: by how much d′ is expected to grow, 1 / left: exactly, if the prior says nothing of the truth and the
            two kinds of cases lie equally far apart and spread equally before and after. An expectation, not a promise:
            a prior that knows the truth (sentences that are unsafe with any picture) is lost with it.
        within: spread of the corrected margins within sentences over that of the margins; above 1 the correction adds
            noise of its own (a prior that draws anew for each case), below 1 the prior still sees the picture. NaN
            where no sentence has two pictures.
        helps: ``factor`` is at least ``WORTH``, and ``within`` does not tell that the picture's own part is taken.
    """

    cases: int
    sentences: int
    between: float
    explained: float
    correlation: float
    weight: float
    left: float
    factor: float
    within: float
    helps: bool


def prior_share(
    margins: Float[np.ndarray, "case"], priors: Float[np.ndarray, "other"], sentences: Sequence[str]
) -> PriorShare:
    """``margins`` with the picture and ``priors`` without (means over several) of cases that ask ``sentences``.

    UserError for lengths that differ, fewer than three cases, a number that is not finite, or margins all alike.
    """
    margins, priors = (np.asarray(values, dtype=np.float64) for values in (margins, priors))
    _check(margins, priors, sentences)
    groups, group = np.unique(np.asarray(sentences, dtype=object).astype(str), return_inverse=True)
    total, spread = float(margins.var()), float(priors.var())
    # Priors alike but for rounding have no slope: float32 margins carry about seven digits.
    flat = np.sqrt(spread) <= 1e-6 * max(1.0, float(np.abs(priors).max()))
    covariance = float(((margins - margins.mean()) * (priors - priors.mean())).mean())
    weight = 0.0 if flat else covariance / spread
    explained = 0.0 if flat else min(covariance**2 / (total * spread), 1.0)
    left = float(np.sqrt(1 - explained))
    factor = 1 / left if left > 0 else np.inf
    before, after = (_within(values, group) for values in (margins, margins - weight * priors))
    within = after / before if before > 0 else np.nan
    return PriorShare(
        cases=len(margins),
        sentences=len(groups),
        between=1 - before**2 / total,
        explained=explained,
        correlation=float(np.nan if flat else covariance / np.sqrt(total * spread)),
        weight=weight,
        left=left,
        factor=factor,
        within=within,
        helps=bool(factor >= WORTH and not within < 1 / WORTH),
    )


def _check(margins: np.ndarray, priors: np.ndarray, sentences: Sequence[str]) -> None:
    if not len(margins) == len(priors) == len(sentences):
        raise UserError(
            f"{len(margins)} margins, {len(priors)} priors and {len(sentences)} sentences; a case has one of each; "
            "hand over those of the same cases"
        )
    wrong = int((~(np.isfinite(margins) & np.isfinite(priors))).sum())
    if wrong:
        raise UserError(f"{wrong} of {len(margins)} cases have a margin that is not finite; leave those cases out")
    if len(margins) < 3 or not margins.var() > 0:
        raise UserError(
            f"{len(margins)} margins, all alike or fewer than three; there is no variance to share out; take more cases"
        )


def _within(values: Float[np.ndarray, "case"], group: np.ndarray) -> float:
    """Root mean square of what is left of ``values`` when each group's mean is taken off."""
    means = np.bincount(group, weights=values) / np.bincount(group)
    return float(np.sqrt(((values - means[group]) ** 2).mean()))
