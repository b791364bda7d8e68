"""Linear discriminant analysis with shrinkage, weights that balance nuisances, and folds that keep groups together."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from interp.errors import UserError

MOST_WEIGHT = 20.0  # maximum weight of a raked case, in mean weights: no single case may dominate the fit
CONSTANT = 1e-5  # a feature counts as constant if it varies by less than this share of its mean,
FAINT = 1e-6  # or by less than this share of the states' root mean square
RAKING_ROUNDS = 100
FOLDS = 5
FEWEST_CASES, FEWEST_GROUPS = 10, 2  # per class; with fewer, held-out numbers are not reported

Fold = tuple[np.ndarray, np.ndarray]
"""Rows to fit on, and rows held out."""


@dataclass(frozen=True)
class Discriminant:
    """A linear classifier: the score of class k for a state x is ``weights[k] · x + bias[k]``."""

    weights: Float[np.ndarray, "class width"]
    bias: Float[np.ndarray, "class"]

    def scores(self, hidden: Float[np.ndarray, "row width"]) -> Float[np.ndarray, "row class"]:
        """The log-probability of each class under equal priors, up to a constant per row."""
        return hidden @ self.weights.T + self.bias


def discriminant(
    hidden: Float[np.ndarray, "row width"], codes: Int[np.ndarray, " row"], weights: Float[np.ndarray, " row"]
) -> Discriminant:
    """Fisher's linear discriminant on standardised features, with equal priors.

    The within-class covariance is shrunk towards a multiple of the identity by Ledoit and Wolf's formula (2004,
    "A well-conditioned estimator for large-dimensional covariance matrices"), which needs no tuning and allows more
    features than rows. ``codes`` are 0 … k − 1; each class has some positive weight.
    """
    classes = int(codes.max()) + 1
    member = (codes[:, None] == np.arange(classes)) * weights[:, None]
    totals = member.sum(0)
    assert (totals > 0).all(), totals
    share = (member / totals).sum(1) / classes  # sums to 1, equally over classes
    centre = share @ hidden
    spread = np.sqrt(share @ (hidden - centre) ** 2)
    least = np.maximum(CONSTANT * np.abs(centre), FAINT * np.sqrt((hidden**2).mean()))
    spread = np.where(spread > least, spread, np.inf)
    features = (hidden - centre) / spread
    means = (member / totals).T @ features
    within = (features - means[codes]) * np.sqrt(len(codes) * share)[:, None]
    inward = _inverse_times(within, means)
    return Discriminant(inward / spread, -0.5 * (inward * means).sum(1) - (inward / spread) @ centre)


def shrinkage(centred: Float[np.ndarray, "row width"]) -> float:
    """Ledoit and Wolf's weight of the identity for the covariance of centred rows, which is never formed."""
    rows, width = centred.shape
    gram = centred @ centred.T if width > rows else centred.T @ centred
    squares = float((gram**2).sum()) / rows**2  # the covariance's squared Frobenius norm, either way
    scale = float((centred**2).sum()) / rows / width
    noise = (float(((centred**2).sum(1) ** 2).sum()) / rows - squares) / rows
    distance = squares - width * scale**2
    return min(noise, distance) / distance if noise > 0 and distance > 0 else 0.0


def _inverse_times(
    centred: Float[np.ndarray, "row width"], vectors: Float[np.ndarray, "class width"]
) -> Float[np.ndarray, "class width"]:
    """The inverse of the shrunk covariance of ``centred`` times each vector, solved in the smaller dimension."""
    rows, width = centred.shape
    scale = float((centred**2).sum()) / rows / width
    kept = 1 - max(shrinkage(centred), 1e-6)
    ridge = max((1 - kept) * scale, 1e-12)
    if width <= rows:
        covariance = kept * (centred.T @ centred) / rows
        return np.linalg.solve(covariance + ridge * np.eye(width), vectors.T).T
    # Woodbury: (aI + bX'X)⁻¹ = (I − X'(XX' + (a/b) I)⁻¹X) / a
    gram = centred @ centred.T + ridge * rows / max(kept, 1e-12) * np.eye(rows)
    return (vectors - np.linalg.solve(gram, centred @ vectors.T).T @ centred) / ridge


def raked(codes: Int[np.ndarray, " row"], nuisances: Sequence[np.ndarray]) -> Float[np.ndarray, " row"]:
    """Weights under which a binary label is balanced within each value of each nuisance; their mean is 1.

    Iterative proportional fitting (Deming and Stephan 1940). If a benchmark is balanced by template and concept,
    holding out one combination tilts the rest of its template and concept the other way. A probe that reads only the
    words then scores well *below* chance on held-out combinations, which also lowers the score of one that reads the
    truth. Cases of a value that occurs with only one label get weight 0. Without nuisances all weights are 1.

    Raises:
        UserError: not two classes, or no value occurs with both.
    """
    weights = np.ones(len(codes))
    if not len(nuisances):
        return weights
    if set(codes.tolist()) != {0, 1}:
        raise UserError(
            f"{len(set(codes.tolist()))} classes to balance; weights can balance only two within each value; "
            "leave `balance` out"
        )
    values = [np.unique(nuisance, return_inverse=True)[1] for nuisance in nuisances]
    for _ in range(RAKING_ROUNDS):
        for value in values:
            one, other = (np.bincount(value, weights * (codes == code), int(value.max()) + 1) for code in (0, 1))
            with np.errstate(divide="ignore", invalid="ignore"):
                factors = np.where((one > 0) & (other > 0), (one + other) / 2 / np.stack([one, other]), 0.0)
            weights = weights * factors[codes, value]
    if not (weights > 0).any():
        raise UserError(
            "no value of the balanced columns occurs with both labels; such a read-out has no cases; "
            "balance fewer things"
        )
    return np.minimum(weights / weights[weights > 0].mean(), MOST_WEIGHT)


def grouped_folds(
    codes: Int[np.ndarray, " row"], groups: np.ndarray, *, folds: int, seed: int, names: Sequence[str]
) -> list[Fold]:
    """Splits that keep a group's cases together (scikit-learn's GroupKFold, shuffled with ``seed``).

    Raises:
        UserError: a class has too few cases or groups, or is missing from the training part of a fold. ``names`` are
            those of the classes.
    """
    from sklearn.model_selection import GroupKFold

    if folds < 2:
        raise UserError(f"{folds} folds; a held-out number needs at least 2")
    for code, name in enumerate(names):
        cases, apart = int((codes == code).sum()), len(set(groups[codes == code].tolist()))
        if cases < FEWEST_CASES or apart < FEWEST_GROUPS:
            raise UserError(
                f"class '{name}' has {cases} cases in {apart} groups; a held-out number takes at least {FEWEST_CASES} "
                f"cases in {FEWEST_GROUPS} groups; give more cases or leave the class out"
            )
    if len(names) < 2:
        raise UserError(f"only class {', '.join(map(repr, names))} occurs; a read-out takes at least two classes")
    if len(set(groups.tolist())) < folds:
        raise UserError(
            f"{len(set(groups.tolist()))} groups for {folds} folds; each fold needs one; choose fewer folds"
        )
    splits = list(GroupKFold(folds, shuffle=True, random_state=seed).split(codes, codes, groups))
    for train, _ in splits:
        missing = [name for code, name in enumerate(names) if code not in codes[train]]
        if missing:
            raise UserError(f"all cases of class '{missing[0]}' fell into one fold of {folds}; choose another seed")
    return splits
