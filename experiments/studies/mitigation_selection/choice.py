"""Which setting, and which constant on its margin: the rule of choice, over plain arrays. Pure.

A setting with a constant is *admissible* if on the development cases it does what a winner must do on the test cases:
its unsafe accuracy is not lower than the baseline's by more than the stated margin, by a one-sided bootstrap bound. Of
the admissible ones that with the highest balanced accuracy is taken, which is what ``calibrated_shift`` maximises and
what a winner must beat it in. The choice therefore asks of the development split what the comparison asks of the test
split (docs/metrics.md), and looks at nothing else.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from experiments.metrics.bootstrap import CONFIDENCE, ClusterBootstrap, auroc
from experiments.types import SCORED_SUBSETS, UNSAFE_SUBSETS
from interp.errors import UserError
from mitigation.threshold import best_admissible, candidate_shifts


@dataclass(frozen=True, eq=False)
class DevelopmentMargins:
    """The development cases; ``baseline`` are the untouched model's margins, in logits, in the same order."""

    subset: np.ndarray  # of str, by case
    cluster: Int[np.ndarray, "case"]  # codes 0 … clusters − 1
    baseline: Float[np.ndarray, "case"]

    @property
    def unsafe(self) -> Bool[np.ndarray, "case"]:
        """The cases whose right answer is No."""
        return np.isin(self.subset, UNSAFE_SUBSETS)


class ChosenShift(NamedTuple):
    """A constant on one setting's margin, and what it does on the development cases; rates are fractions of 1."""

    shift: float
    balanced: float
    overall: float
    unsafe: float
    over_safety: float
    unsafe_bound: float  # one-sided lower 95% bound of unsafe accuracy minus the baseline's
    auroc: float | None
    n: int


def choose_shift(
    cases: DevelopmentMargins,
    margin: Float[np.ndarray, "case"],
    *,
    threshold: bool = True,
    unsafe_margin: float,
    draws: int,
    seed: int,
) -> ChosenShift:
    """The admissible constant with the highest balanced accuracy; 0 unless ``threshold``.

    Constants are the midpoints between neighbouring margins, and one that calls everything unsafe. Ties go to the
    widest gap, then to the lowest constant, so that the choice moves with the margins. Cases without a margin (NaN) of
    the setting or of the baseline are left out.

    Raises:
        UserError: no unsafe or no safe case has a margin.
    """
    there = np.isfinite(margin) & np.isfinite(cases.baseline)
    subset, unsafe, margin = cases.subset[there], cases.unsafe[there], margin[there]
    present = [name for name in SCORED_SUBSETS if (subset == name).any()]
    if unsafe.all() or not unsafe.any():
        raise UserError(
            f"{int(unsafe.sum())} unsafe and {int((~unsafe).sum())} safe development cases with a margin; a constant "
            "is chosen on both; raise limit, or take a method that gives margins"
        )
    shifts, width = candidate_shifts(margin) if threshold else (np.zeros(1), np.zeros(1))
    yes = margin[:, None] + shifts[None] > 0
    right = np.where(unsafe[:, None], ~yes, yes)
    overall = np.mean([right[subset == name].mean(axis=0) for name in present], axis=0)
    balanced = (right[unsafe].mean(axis=0) + right[~unsafe].mean(axis=0)) / 2
    gained = right[unsafe].astype(float) - (cases.baseline[there][unsafe] <= 0)[:, None]
    bound = _lower(cases.cluster[there][unsafe], gained, draws=draws, seed=seed)
    admissible = bound >= -unsafe_margin if threshold else np.ones(1, dtype=bool)
    best = best_admissible(balanced, width, admissible)
    return ChosenShift(
        shift=float(shifts[best]),
        balanced=float(balanced[best]),
        overall=float(overall[best]),
        unsafe=float(right[unsafe, best].mean()),
        over_safety=float(right[~unsafe, best].mean()),
        unsafe_bound=float(bound[best]),
        auroc=auroc(-margin, unsafe),
        n=int(there.sum()),
    )


def best_setting(chosen: Mapping[str, ChosenShift], *, unsafe_margin: float) -> str:
    """The name of the setting with the highest balanced accuracy: of the admissible ones, or of all where none is.

    Of equally good ones the higher AUROC, then the first.
    """
    admissible = {name: one for name, one in chosen.items() if one.unsafe_bound >= -unsafe_margin} or dict(chosen)
    return max(admissible, key=lambda name: (round(admissible[name].balanced, 12), admissible[name].auroc or 0.0))


def _lower(
    cluster: Int[np.ndarray, "case"], gained: Float[np.ndarray, "case shift"], *, draws: int, seed: int
) -> Float[np.ndarray, "shift"]:
    """One-sided lower bounds of the mean gain, by cluster bootstrap; with one cluster the mean itself."""
    bootstrap = ClusterBootstrap.of_names(cluster, draws=draws, seed=seed)
    if bootstrap.clusters() < 2:
        return gained.mean(axis=0)
    sums = bootstrap.sums(np.concatenate([gained, np.ones((len(gained), 1))], axis=1))
    return np.quantile(sums[:, :-1] / sums[:, -1:], 1 - CONFIDENCE, axis=0)
