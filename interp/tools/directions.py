"""Directions in the residual stream that separate a yes-or-no property, with their accuracy on held-out cases.

Difference of means (Marks and Tegmark 2023; Arditi et al. 2024, "Refusal in Language Models Is Mediated by a Single
Direction"), or Fisher's discriminant. The best direction to *read* a property is not necessarily the best to *steer*
it: the mean difference connects the two classes, while the discriminant also rotates away from other sources of
variance.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float
from sklearn.metrics import roc_auc_score
from torch import Tensor

from interp.errors import UserError
from interp.tensor_file import check_model, read_tensors, write_tensors
from interp.tools.held_out import FOLDS, columns_of, grouped_folds, raked
from interp.tools.probes import discriminant

if TYPE_CHECKING:
    from interp.vlm import VLM, Prompt

Kind = Literal["mean_difference", "discriminant"]
KIND = "directions"


@dataclass(frozen=True, eq=False)
class Direction:
    """A unit vector. A state whose projection is above ``threshold`` is read as having the property ``name``.

    ``gap`` is the distance between the two class means along the vector, the natural unit of a steering strength.
    ``accuracy`` (the mean over both classes) and ``auroc`` are on held-out groups. ``n``, ``positives`` and ``groups``
    count the cases it was fitted on.
    """

    name: str
    position: str
    layer: int
    kind: str  # one of ``Kind``
    vector: Float[Tensor, " width"]
    threshold: float
    gap: float
    accuracy: float
    auroc: float
    n: int
    positives: int
    groups: int


def fit_direction(
    hidden: Float[Tensor, "row width"],
    labels: Sequence[Any] | np.ndarray,
    groups: Sequence[Any] | np.ndarray,
    *,
    name: str,
    position: str,
    layer: int,
    kind: str = "mean_difference",
    balance: Sequence[Sequence[Any] | np.ndarray] = (),
    folds: int = FOLDS,
    seed: int = 0,
) -> Direction:
    """Fit a direction for binary ``labels`` on all cases, and evaluate it by cross-validation over ``groups``.

    Cases whose state is NaN are left out. ``balance`` as in ``interp.tools.probes.probe``.

    Raises:
        UserError: an unknown kind, columns of different lengths, too few cases, or states that do not vary.
    """
    if kind not in get_args(Kind):
        raise UserError(f"kind={kind!r}: must be one of {', '.join(get_args(Kind))}")
    states = hidden.double().numpy()
    saved = ~np.isnan(states).any(1)
    states, (label, group, *nuisances) = states[saved], columns_of(saved, labels, groups, *balance)
    label = label.astype(bool)
    splits = grouped_folds(label.astype(int), group, folds=folds, seed=seed, names=(f"not {name}", name))
    score = np.empty(len(label))
    for train, test in splits:
        vector, threshold = _fit(states[train], label[train], [values[train] for values in nuisances], kind)
        score[test] = states[test] @ vector - threshold
    vector, threshold = _fit(states, label, nuisances, kind)
    along = states @ vector
    return Direction(
        name=name,
        position=position,
        layer=layer,
        kind=kind,
        vector=torch.from_numpy(vector).float(),
        threshold=threshold,
        gap=float(along[label].mean() - along[~label].mean()),
        accuracy=float(((score[label] > 0).mean() + (score[~label] <= 0).mean()) / 2),
        auroc=float(roc_auc_score(label, score)),
        n=len(label),
        positives=int(label.sum()),
        groups=len(set(group.tolist())),
    )


def project(hidden: Float[Tensor, "*any width"], direction: Direction) -> Float[Tensor, "*any"]:
    """Return the projection of each state on the direction, in float32; compare with ``direction.threshold``."""
    return hidden.float() @ direction.vector.to(hidden.device)


def save_directions(
    path: Path, directions: Sequence[Direction], *, vlm: "VLM", learned_from: "Sequence[Prompt] | None" = None
) -> None:
    """Write an ``interp.tensor_file``, with hashes of the cases in ``learned_from``.

    Equal directions of the same model and cases give equal bytes.
    """
    plain = [field.name for field in fields(Direction) if field.name != "vector"]
    about = {"directions": [{name: getattr(direction, name) for name in plain} for direction in directions]}
    tensors = {str(i): direction.vector for i, direction in enumerate(directions)}
    write_tensors(path, KIND, tensors, about, vlm=vlm, learned_from=learned_from)


def load_directions(path: Path, *, vlm: "VLM") -> list[Direction]:
    """Read what ``save_directions`` wrote, in the same order.

    Raises:
        UserError: the file has no directions, is of another version, or of a model with other weights or another width.
    """
    read = read_tensors(path, KIND)
    try:
        result = [Direction(vector=read.tensors[str(i)], **row) for i, row in enumerate(read.about["directions"])]
    except (KeyError, TypeError) as error:
        raise UserError(f"{path}: no directions can be read of another version ({error}); learn them again") from error
    check_model(vlm, read)
    return result


def _fit(
    states: Float[np.ndarray, "row width"], label: Bool[np.ndarray, " row"], nuisances: Sequence[np.ndarray], kind: str
) -> tuple[Float[np.ndarray, " width"], float]:
    """Return a unit vector, and the threshold on the projection. Both classes have equal weight."""
    weights = raked(label.astype(int), nuisances)
    states, label, weights = states[weights > 0], label[weights > 0], weights[weights > 0]
    if kind == "discriminant":
        vectors, biases = discriminant(states, label.astype(int), weights)
        vector, bias = vectors[1] - vectors[0], float(biases[1] - biases[0])
    else:
        means = [np.average(states[label == side], axis=0, weights=weights[label == side]) for side in (False, True)]
        vector = means[1] - means[0]
        bias = -float(vector @ (means[0] + means[1]) / 2)
    length = float(np.linalg.norm(vector))
    if not length > 0:
        raise UserError(
            "the states of both classes are the same; there is no direction between them; read another layer"
        )
    return vector / length, -bias / length
