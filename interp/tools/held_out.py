"""What a held-out number rests on: folds that keep groups together, and weights that balance nuisances."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from interp.errors import UserError

MOST_WEIGHT = 20.0  # maximum weight of a raked case, in mean weights: no single case may dominate the fit
RAKING_ROUNDS = 100
FOLDS = 5
FEWEST_CASES, FEWEST_GROUPS = 10, 2  # per class; with fewer, held-out numbers are not reported

Fold = tuple[np.ndarray, np.ndarray]
"""Rows to fit on, and rows held out."""


def columns_of(saved: np.ndarray, *columns: Sequence[Any] | np.ndarray) -> list[np.ndarray]:
    """Return the values of the cases that are ``saved``.

    Raises:
        UserError: a column of another length.
    """
    result = [np.asarray(column) for column in columns]
    for column in result:
        if len(column) != len(saved):
            raise UserError(f"{len(column)} labels or groups for {len(saved)} rows; there must be one for each row")
    return [column[saved] for column in result]


def raked(codes: Int[np.ndarray, " row"], nuisances: Sequence[np.ndarray]) -> Float[np.ndarray, " row"]:
    """Return the weights under which a binary label is balanced within each value of each nuisance; their mean is 1.

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
            first, other = (np.bincount(value, weights * (codes == code), int(value.max()) + 1) for code in (0, 1))
            with np.errstate(divide="ignore", invalid="ignore"):
                factors = np.where((first > 0) & (other > 0), (first + other) / 2 / np.stack([first, other]), 0.0)
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
    """Return splits that keep a group's cases together (scikit-learn's GroupKFold, shuffled with ``seed``).

    Raises:
        UserError: a class has too few cases or groups, or is missing from the training part of a fold. ``names`` name
            the classes.
    """
    from sklearn.model_selection import GroupKFold

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
