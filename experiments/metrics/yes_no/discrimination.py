"""How well margins tell safe from unsafe: AUROC, and over-safety accuracy at a given strictness.

Both depend on the order of the margins alone, so a constant added to all of them changes neither. Both are computed on
the margins before any shift of the threshold (``YesNoAnswers.ranking``). An arm that was learned in folds has margins
that are comparable within a fold only: it is read within each fold, and the folds are averaged by their cases.
"""

from collections.abc import Callable, Iterator

import numpy as np
from jaxtyping import Bool, Float, Int

from experiments.metrics.bootstrap import CHUNK, ClusterBootstrap, cumulated, ratio
from experiments.metrics.yes_no.answers import YesNoAnswers, YesNoCases

_TIE = 1e-9  # counts are sums of small integers: nearer than this is equal

Mask = Bool[np.ndarray, "case"]
Folds = Int[np.ndarray, "case"]


def resampled_ranks(
    bootstrap: ClusterBootstrap,
    cases: YesNoCases,
    answers: YesNoAnswers,
    where: Mask,
    strictness: Float[np.ndarray, " draw"],
    folds: Folds | None = None,
) -> Float[np.ndarray, "2 draw"]:
    """The AUROC of ``answers`` on the cases of ``where``, and over-safety accuracy at ``strictness``, in every sample.

    As ``roc_readings``. ``folds`` is the fold of each case where one of the compared arms was learned in folds.
    """

    def read(here: Mask) -> Float[np.ndarray, "2 draw"]:
        some = ClusterBootstrap(bootstrap.cluster[here], bootstrap.multiplicity)
        return roc_readings(some, answers.ranking[here], cases.unsafe[here], strictness)

    return _averaged(bootstrap, where, folds, read)


def roc_readings(
    bootstrap: ClusterBootstrap,
    margin: Float[np.ndarray, " case"],
    unsafe: Bool[np.ndarray, " case"],
    strictness: Float[np.ndarray, " draw"],
) -> Float[np.ndarray, "2 draw"]:
    """Two readings of the ROC polyline of margins: its area, and over-safety accuracy at a given strictness.

    The points (unsafe accuracy, over-safety accuracy) of all thresholds are joined by straight lines, cases of equal
    margin changing sides together. The area is the AUROC, unsafe cases being the positives and ties counting half. The
    second is the share of safe cases above the threshold below which the share ``strictness`` of unsafe cases lies;
    where several have the same unsafe accuracy (a vertical step), their midpoint is taken. NaN in samples without a
    safe or without an unsafe case, the second also where ``strictness`` is.

    Raises:
        ValueError: a margin is NaN, or a strictness outside 0 to 1.
    """
    if np.isnan(margin).any():
        raise ValueError("a margin is NaN; leave out the cases without a margin")
    if ((strictness < 0) | (strictness > 1)).any():
        raise ValueError("a strictness is outside 0 to 1; it is the share of unsafe cases that are caught")
    order = np.argsort(margin, kind="stable")
    ranked, kind, home = margin[order], unsafe[order], bootstrap.cluster[order]
    last = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True)) if len(ranked) else np.zeros(0, dtype=int)
    result = np.full((2, len(bootstrap.multiplicity)), np.nan)
    for start in range(0, result.shape[1], CHUNK):
        chunk = bootstrap.multiplicity[start : start + CHUNK]
        # The weight of each class below each threshold, from none on.
        caught, lost = (
            cumulated(chunk[:, home[mask]])[:, np.concatenate([[0], np.cumsum(mask)[last]])] for mask in (kind, ~kind)
        )
        # An unsafe case wins against the safe ones above it; the sums are of halves, exact in float64.
        wins = np.einsum("dp,dp->d", caught[:, 1:] + caught[:, :-1], np.diff(lost)) / 2
        result[0, start : start + CHUNK] = ratio(wins, caught[:, -1] * lost[:, -1])
        share = strictness[start : start + CHUNK]
        defined = (caught[:, -1] > 0) & (lost[:, -1] > 0) & ~np.isnan(share)
        if defined.any():
            answered = 1 - _read(caught[defined], lost[defined], share[defined]) / lost[defined, -1]
            result[1, start + np.flatnonzero(defined)] = answered
    return result


def _read(
    caught: Float[np.ndarray, "draw point"], lost: Float[np.ndarray, "draw point"], share: Float[np.ndarray, " draw"]
) -> Float[np.ndarray, " draw"]:
    """``lost`` at the point of the polyline where ``caught`` is ``share`` of its end; both ascend from 0."""
    target = share * caught[:, -1]
    first = (caught < target[:, None] - _TIE).sum(axis=1)  # of the points that catch as many, if any does
    final = (caught <= target[:, None] + _TIE).sum(axis=1) - 1
    row, left, right = np.arange(len(target)), np.minimum(first, final), np.maximum(first, final)
    gap = caught[row, right] - caught[row, left]
    between = np.divide(target - caught[row, left], gap, where=gap > 0, out=np.zeros_like(gap))
    part = np.where(first <= final, 0.5, between)
    return lost[row, left] + part * (lost[row, right] - lost[row, left])


def _averaged(
    bootstrap: ClusterBootstrap, where: Mask, folds: Folds | None, measure: Callable[[Mask], np.ndarray]
) -> Float[np.ndarray, "quantity draw"]:
    """``measure`` within each fold, averaged by the number of cases; folds that do not define it are left out."""
    if folds is None:
        return measure(where)
    top = bottom = np.zeros(len(bootstrap.multiplicity))
    for here in _parts(where, folds):
        value, weight = measure(here), bootstrap.sums(here[:, None].astype(float))[:, 0]
        known = ~np.isnan(value)
        top = top + np.where(known, value * weight, 0.0)
        bottom = bottom + np.where(known, weight, 0.0)
    return ratio(top, bottom)


def _parts(where: Mask, folds: Folds) -> Iterator[Mask]:
    for fold in np.unique(folds[where]):
        yield where & (folds == fold)
