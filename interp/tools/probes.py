"""How well a linear probe reads a label from hidden states, on held-out groups of cases.

That a label *can* be read at a layer does not mean that the model uses it (Belinkov 2022, "Probing classifiers"). To
test that, see ``interp.tools.directions`` and ``interp.tools.patching``.

The probe is Fisher's linear discriminant. scikit-learn's shrinks each class by itself and knows no weights of cases:
with some thirty cases of a class it reads much less (of 24 things 58% where this one reads 77%).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from sklearn.metrics import balanced_accuracy_score, roc_auc_score
from torch import Tensor

from interp.errors import UserError
from interp.tools.held_out import FOLDS, Fold, columns_of, grouped_folds, raked

SHUFFLES = 3
DEALS = 100  # attempts at shuffling labels among groups
CONSTANT = 1e-5  # a feature counts as constant if it varies by less than this share of its mean,
FAINT = 1e-6  # or by less than this share of the states' root mean square


@dataclass(frozen=True)
class Probe:
    """The results of a probe at each layer. Rates are fractions of 1; undefined ones are NaN, explained by ``reason``.

    ``balanced_accuracy`` is the mean recall over classes, so chance is 1 / classes. ``auroc`` (two classes only) takes
    the second class as positive. ``control`` and ``control_auroc`` are the same for probes fitted to shuffled labels,
    the mean over ``shuffles``. ``predicted`` (−1 for a case left out) and ``score`` are each case's held-out
    predictions, for resampling.
    """

    classes: tuple[str, ...]
    balanced_accuracy: Float[np.ndarray, " layer"]
    control: Float[np.ndarray, " layer"]
    auroc: Float[np.ndarray, " layer"]
    control_auroc: Float[np.ndarray, " layer"]
    predicted: Int[np.ndarray, "layer row"]
    score: Float[np.ndarray, "layer row"]
    reason: str | None = None


def probe(
    hidden: Float[Tensor, "layer row width"],
    labels: Sequence[Any] | np.ndarray,
    groups: Sequence[Any] | np.ndarray,
    *,
    balance: Sequence[Sequence[Any] | np.ndarray] = (),
    folds: int = FOLDS,
    shuffles: int = SHUFFLES,
    seed: int = 0,
) -> Probe:
    """Fit a shrunk linear discriminant to ``labels`` (of any type; sorted, they are the classes) at every layer.

    Cases of one group are never split between fitting and testing. Cases whose state is NaN (a prompt without this
    position) are excluded.

    Args:
        balance: columns (such as template and concept) within whose values two classes get equal weight in fitting;
            see ``interp.tools.held_out.raked``.
        shuffles: how often the control's labels are drawn; 0: no control. They are shuffled among groups if each has
            a single label, otherwise among cases.

    Raises:
        UserError: columns of another length, fewer than two folds, or ``balance`` with more than two classes. Too few
            cases are not an error: they give NaN and a reason.
    """
    if folds < 2:
        raise UserError(f"folds={folds}: a held-out number needs at least 2")
    states = hidden.double().numpy()
    saved = ~np.isnan(states).any((0, 2))
    values, group, *nuisances = columns_of(saved, labels, groups, *balance)
    names, codes = np.unique(values, return_inverse=True)
    classes = tuple(map(str, names.tolist()))
    layers, rows, _ = hidden.shape
    rates = np.full((4, layers), np.nan)
    result = Probe(
        classes, rates[0], rates[1], rates[2], rates[3], np.full((layers, rows), -1), np.full((layers, rows), np.nan)
    )
    if not saved.any():
        return replace(result, reason="no case has such a place")
    try:
        splits = grouped_folds(codes, group, folds=folds, seed=seed, names=classes)
    except UserError as error:
        return replace(result, reason=str(error))
    rng = np.random.default_rng(seed)
    weighted = _weighted(codes, splits, nuisances)
    draws = [_shuffled(codes, group, splits, rng) for _ in range(shuffles)]
    controls = [(dealt, _weighted(dealt, splits, nuisances)) for dealt in draws]
    for layer, state in enumerate(states[:, saved]):
        scores = _held_out(state, codes, weighted)
        result.predicted[layer, saved] = guess = scores.argmax(1)
        result.balanced_accuracy[layer] = balanced_accuracy_score(codes, guess)
        if len(names) == 2:
            result.score[layer, saved] = margin = scores[:, 1] - scores[:, 0]
            result.auroc[layer] = roc_auc_score(codes, margin)
        if not controls:
            continue
        shuffled = [(one[0], _held_out(state, *one)) for one in controls]
        result.control[layer] = np.mean([balanced_accuracy_score(dealt, one.argmax(1)) for dealt, one in shuffled])
        if len(names) == 2:
            result.control_auroc[layer] = np.mean(
                [roc_auc_score(dealt, one[:, 1] - one[:, 0]) for dealt, one in shuffled]
            )
    return result


def discriminant(
    hidden: Float[np.ndarray, "row width"], codes: Int[np.ndarray, " row"], weights: Float[np.ndarray, " row"]
) -> tuple[Float[np.ndarray, "class width"], Float[np.ndarray, " class"]]:
    """Return Fisher's linear discriminant on standardised features, with equal priors: a vector and a bias for each
    class.

    A state's log-probability of class k is vector k · state + bias k, up to a constant. The within-class covariance is
    shrunk towards a multiple of the identity by Ledoit and Wolf's formula (2004, "A well-conditioned estimator for
    large-dimensional covariance matrices"), which needs no tuning and allows more features than rows. ``codes`` are
    0 … k − 1; each class has some positive weight.
    """
    member = (codes[:, None] == np.arange(codes.max() + 1)) * weights[:, None]
    shares = member / member.sum(0)  # each class's cases weigh 1 together
    share = shares.mean(1)
    centre = share @ hidden
    spread = np.sqrt(share @ (hidden - centre) ** 2)
    least = np.maximum(CONSTANT * np.abs(centre), FAINT * np.sqrt((hidden**2).mean()))
    spread = np.where(spread > least, spread, np.inf)
    features = (hidden - centre) / spread
    means = shares.T @ features
    within = (features - means[codes]) * np.sqrt(len(codes) * share)[:, None]
    inward = _inverse_times(within, means)
    vectors = inward / spread
    return vectors, -0.5 * (inward * means).sum(1) - vectors @ centre


def _inverse_times(
    centred: Float[np.ndarray, "row width"], vectors: Float[np.ndarray, "class width"]
) -> Float[np.ndarray, "class width"]:
    """Return the inverse of the shrunk covariance of ``centred`` times each vector.

    Along its axes, of which there are no more than rows, so that the covariance of wide states is never formed.
    """
    rows, width = centred.shape
    _, lengths, axes = np.linalg.svd(centred, full_matrices=False)
    variances = lengths**2 / rows
    scale, squares = variances.sum() / width, (variances**2).sum()
    noise = (((centred**2).sum(1) ** 2).sum() / rows - squares) / rows
    distance = squares - width * scale**2
    shrunk = min(max(noise / distance, 1e-6), 1.0) if distance > 0 else 1e-6
    ridge = max(shrunk * scale, 1e-12)
    along = vectors @ axes.T
    return vectors / ridge + along * (1 / ((1 - shrunk) * variances + ridge) - 1 / ridge) @ axes


Weighted = list[tuple[np.ndarray, np.ndarray, np.ndarray]]
"""By fold: the cases to fit on that have a weight, these weights, and the cases held out."""


def _weighted(codes: Int[np.ndarray, " row"], splits: list[Fold], nuisances: Sequence[np.ndarray]) -> Weighted:
    result = []
    for train, test in splits:
        weights = raked(codes[train], [nuisance[train] for nuisance in nuisances])
        result.append((train[weights > 0], weights[weights > 0], test))
    return result


def _held_out(
    state: Float[np.ndarray, "row width"], codes: Int[np.ndarray, " row"], folds: Weighted
) -> Float[np.ndarray, "row class"]:
    """Return the scores of each case by the probe that was fitted without it."""
    scores = np.empty((len(state), int(codes.max()) + 1))
    for used, weights, test in folds:
        vectors, bias = discriminant(state[used], codes[used], weights)
        scores[test] = state[test] @ vectors.T + bias
    return scores


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
