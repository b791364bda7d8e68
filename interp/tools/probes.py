"""How well a linear probe reads a label from hidden states, on held-out groups of cases.

That a label *can* be read at a layer does not mean that the model uses it (Belinkov 2022, "Probing classifiers"). To
test that, see ``interp.tools.directions`` and ``interp.tools.patching``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int
from scipy.stats import rankdata
from torch import Tensor

from interp.errors import UserError
from interp.tools.lda import FOLDS, Fold, discriminant, grouped_folds, raked

SHUFFLES = 3
DEALS = 100  # attempts at shuffling labels among groups


@dataclass(frozen=True)
class Probe:
    """The results of a probe at each layer. Rates are fractions of 1; undefined ones are NaN, explained by ``reason``.

    ``balanced_accuracy`` is the mean recall over classes, so chance is 1 / classes. ``control`` is the same for a probe
    fitted to shuffled labels. ``auroc`` (two classes only) takes the second class as positive. ``predicted`` (−1 for a
    case left out) and ``score`` are each case's held-out predictions, for resampling.
    """

    classes: tuple[str, ...]
    counts: tuple[int, ...]  # cases of each class
    groups: int
    accuracy: Float[np.ndarray, " layer"]
    balanced_accuracy: Float[np.ndarray, " layer"]
    control: Float[np.ndarray, " layer"]
    auroc: Float[np.ndarray, " layer"]
    predicted: Int[np.ndarray, "layer row"]
    score: Float[np.ndarray, "layer row"]
    reason: str | None = None

    @property
    def n(self) -> int:
        """Number of cases."""
        return sum(self.counts)

    @property
    def majority(self) -> float:
        """The accuracy of always predicting the most frequent class."""
        return max(self.counts) / self.n if self.n else float("nan")

    @property
    def selectivity(self) -> Float[np.ndarray, " layer"]:
        """Balanced accuracy minus that of the control task (Hewitt and Liang 2019)."""
        return self.balanced_accuracy - self.control

    def table(self, layers: Sequence[int] | None = None) -> pd.DataFrame:
        """One row per layer (numbered from 0 by default)."""
        rates = {name: getattr(self, name) for name in ("accuracy", "balanced_accuracy", "control", "selectivity")}
        layers = range(len(self.accuracy)) if layers is None else layers
        fixed = {"majority": self.majority, "classes": len(self.classes), "n": self.n, "groups": self.groups}
        return pd.DataFrame({"layer": list(layers)} | rates | {"auroc": self.auroc} | fixed | {"reason": self.reason})


def probe(
    hidden: Float[Tensor, "layer row width"],
    labels: Sequence[Any] | np.ndarray,
    groups: Sequence[Any] | np.ndarray,
    *,
    balance: Sequence[Sequence[Any] | np.ndarray] = (),
    tested: Float[Tensor, "layer row width"] | None = None,
    folds: int = FOLDS,
    shuffles: int = SHUFFLES,
    seed: int = 0,
) -> Probe:
    """Fits a shrunk linear discriminant to ``labels`` (of any type; sorted, they are the classes) at every layer.

    Cases of one group are never split between fitting and testing. Cases whose state is NaN (a prompt without such a
    place) are left out.

    Args:
        balance: columns (such as template and concept) within whose values two classes get equal weight in fitting;
            see ``interp.tools.lda.raked``.
        tested: states of the same cases in another run; the probe is fitted on ``hidden`` and tested on these.
        shuffles: how often the control's labels are drawn. They are shuffled among groups if each has a single label,
            otherwise among cases.

    Raises:
        UserError: columns of another length, fewer than two folds, or ``balance`` with more than two classes. Too few
            cases are not an error: they give NaN and a reason.
    """
    columns = [np.asarray(column) for column in (labels, groups, *balance)]
    for column in columns:
        if len(column) != hidden.shape[1]:
            raise UserError(
                f"{len(column)} labels or groups for {hidden.shape[1]} rows; there must be one for each row"
            )
    if folds < 2:
        raise UserError(f"folds={folds}: a held-out number needs at least 2")
    states = hidden.double().numpy()
    others = states if tested is None else tested.double().numpy()
    if others.shape != states.shape:
        raise UserError(
            f"states of {others.shape} to test on and of {states.shape} to fit on; both must be of one shape"
        )
    kept = ~np.isnan(states).any((0, 2)) & ~np.isnan(others).any((0, 2))
    values, group, *nuisances = (column[kept] for column in columns)
    names, codes = np.unique(values, return_inverse=True)
    classes = tuple(map(str, names.tolist()))
    found = _nothing(hidden, classes, codes, group)
    if not kept.any():
        return replace(found, reason="no case has such a place")
    try:
        splits = grouped_folds(codes, group, folds=folds, seed=seed, names=classes)
    except UserError as error:
        return replace(found, reason=str(error))
    rng = np.random.default_rng(seed)
    weighted = _weighted(codes, splits, nuisances)
    dealt = [_shuffled(codes, group, splits, rng) for _ in range(shuffles)]
    controls = [(labels, _weighted(labels, splits, nuisances)) for labels in dealt]
    for layer, (state, other) in enumerate(zip(states[:, kept], others[:, kept], strict=True)):
        scores = _held_out(state, other, codes, weighted)
        found.predicted[layer, kept] = guess = scores.argmax(1)
        found.accuracy[layer] = (guess == codes).mean()
        found.balanced_accuracy[layer] = _balanced(guess, codes)
        found.control[layer] = np.mean([_balanced(_held_out(state, other, *one).argmax(1), one[0]) for one in controls])
        if len(names) == 2:
            found.score[layer, kept] = margin = scores[:, 1] - scores[:, 0]
            found.auroc[layer] = auroc(margin, codes == 1)
    return found


def probe_balanced(
    hidden: Float[Tensor, "layer row width"],
    labels: np.ndarray,
    groups: np.ndarray,
    *,
    balance: Sequence[np.ndarray] = (),
    tested: Float[Tensor, "layer row width"] | None = None,
    seed: int = 0,
) -> Probe:
    """``probe``, without balancing where no value of ``balance`` occurs with both classes."""
    fit = partial(probe, hidden, labels, groups, tested=tested, seed=seed)
    try:
        return fit(balance=balance)
    except UserError:
        return fit()


def auroc(score: Float[np.ndarray, " row"], positive: Bool[np.ndarray, " row"]) -> float:
    """The probability that a positive case scores above a negative one, ties counting half; NaN if a class is empty."""
    if positive.all() or not positive.any():
        return float("nan")
    ranks = rankdata(score)
    wins = ranks[positive].sum() - positive.sum() * (positive.sum() + 1) / 2
    return float(wins / positive.sum() / (~positive).sum())


Weighted = list[tuple[np.ndarray, np.ndarray, np.ndarray]]
"""By fold: the cases to fit on that have a weight, these weights, and the cases held out."""


def _weighted(codes: Int[np.ndarray, " row"], splits: list[Fold], nuisances: Sequence[np.ndarray]) -> Weighted:
    found = []
    for train, test in splits:
        weights = raked(codes[train], [nuisance[train] for nuisance in nuisances])
        found.append((train[weights > 0], weights[weights > 0], test))
    return found


def _held_out(
    state: Float[np.ndarray, "row width"],
    tested: Float[np.ndarray, "row width"],
    codes: Int[np.ndarray, " row"],
    folds: Weighted,
) -> Float[np.ndarray, "row class"]:
    """The scores of each case's ``tested`` state by the probe that was fitted on ``state`` without the case."""
    scores = np.empty((len(state), int(codes.max()) + 1))
    for used, weights, test in folds:
        scores[test] = discriminant(state[used], codes[used], weights).scores(tested[test])
    return scores


def _balanced(guess: Int[np.ndarray, " row"], codes: Int[np.ndarray, " row"]) -> float:
    """Balanced accuracy: the mean recall over classes."""
    return float(np.mean([(guess[codes == code] == code).mean() for code in np.unique(codes)]))


def _shuffled(
    codes: Int[np.ndarray, " row"], groups: np.ndarray, splits: list[Fold], rng: np.random.Generator
) -> Int[np.ndarray, " row"]:
    """Shuffled labels: among groups if each has one label, otherwise among cases."""
    _, first, member = np.unique(groups, return_index=True, return_inverse=True)
    if (codes[first][member] == codes).all():
        for _ in range(DEALS):
            dealt = rng.permutation(codes[first])[member]
            # If all groups of a class fell into one fold, its probe would never see the class: shuffle again.
            if all(len(np.unique(dealt[train])) == len(np.unique(codes)) for train, _ in splits):
                return dealt
    return rng.permutation(codes)


def _nothing(hidden: Tensor, classes: tuple[str, ...], codes: np.ndarray, groups: np.ndarray) -> Probe:
    """A result filled with NaN."""
    layers, rows, _ = hidden.shape
    accuracy, balanced, control, area = np.full((4, layers), np.nan)
    return Probe(
        classes=classes,
        counts=tuple(np.bincount(codes, minlength=len(classes)).tolist()),
        groups=len(set(groups.tolist())),
        accuracy=accuracy,
        balanced_accuracy=balanced,
        control=control,
        auroc=area,
        predicted=np.full((layers, rows), -1),
        score=np.full((layers, rows), np.nan),
    )
