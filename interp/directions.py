"""Directions in the residual stream along which a yes-or-no property lies, with what they read on cases held out.

Difference of means (Marks and Tegmark 2023; Arditi et al. 2024, "Refusal in Language Models Is Mediated by a Single
Direction"), logistic regression, or Fisher's discriminant. What is *read* best along one direction is not therefore
*moved* best along it: the mean difference is where the classes lie apart, the other two also turn away from whatever
else varies. Knows nothing of benchmarks, or of how a direction is added or removed.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.errors import UserError
from interp.lda import discriminant, grouped_folds, raked
from interp.probes import auroc

if TYPE_CHECKING:
    from interp.hooks.residual import Residuals
    from interp.vlm import VLM

Kind = Literal["mean_difference", "logistic", "discriminant"]
FOLDS = 5
FORMAT = "forestlens directions 1"
LOGISTIC_STRENGTH = 1.0  # scikit-learn's C on standardised features; fixed, so that nothing is tuned on what is read


@dataclass(frozen=True, eq=False)
class Direction:
    """A unit vector; a state whose projection is above ``threshold`` is read as having the property ``name``.

    ``gap`` is how far apart the means of the two classes lie along it, the natural unit of a steering strength.
    ``accuracy`` (mean of the two classes') and ``auroc`` are of cases whose group was held out; ``n``, ``positives``
    and ``groups`` count the cases fitted on.
    """

    name: str
    place: str
    layer: int
    kind: str  # one of ``Kind``
    vector: Float[Tensor, "width"]
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
    place: str,
    layer: int,
    kind: str = "mean_difference",
    balance: Sequence[Sequence[Any] | np.ndarray] = (),
    folds: int = FOLDS,
    seed: int = 0,
) -> Direction:
    """The direction of ``labels`` (true or false) over all cases; what it reads is measured by folds over ``groups``.

    Cases whose state is NaN are left out. ``balance`` as in ``interp.probes.probe``.

    Raises:
        UserError: an unknown kind, columns of unlike lengths, too few cases, or states that do not vary.
    """
    if kind not in get_args(Kind):
        raise UserError(f"kind={kind!r}: must be one of {', '.join(get_args(Kind))}")
    columns = [np.asarray(column) for column in (labels, groups, *balance)]
    for column in columns:
        if len(column) != len(hidden):
            raise UserError(f"{len(column)} labels or groups for {len(hidden)} rows; there must be one for each row")
    states = hidden.double().numpy()
    kept = ~np.isnan(states).any(1)
    states, (label, group, *nuisances) = states[kept], (column[kept] for column in columns)
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
        place=place,
        layer=layer,
        kind=kind,
        vector=torch.from_numpy(vector).float(),
        threshold=threshold,
        gap=float(along[label].mean() - along[~label].mean()),
        accuracy=float(((score[label] > 0).mean() + (score[~label] <= 0).mean()) / 2),
        auroc=auroc(score, label),
        n=len(label),
        positives=int(label.sum()),
        groups=len(set(group.tolist())),
    )


def project(hidden: Float[Tensor, "*any width"], direction: Direction) -> Float[Tensor, "*any"]:
    """How far each state lies along the direction, in float32; compare with ``direction.threshold``."""
    return hidden.float() @ direction.vector.to(hidden.device)


def projections(read: "Residuals", direction: Direction, *, place: str | None = None) -> Float[Tensor, "layer row"]:
    """The projections at every layer that was read, at the direction's own place unless another is named."""
    where = direction.place if place is None else place
    return torch.stack([project(read.at(where, layer), direction) for layer in read.layers])


def cosines(directions: Sequence[Direction]) -> Float[Tensor, "direction direction"]:
    """The cosine of each with each; for two random ones of width w it is about ± 1/√w.

    Raises:
        UserError: none, or of models of unlike widths.
    """
    widths = {direction.vector.numel() for direction in directions}
    if len(widths) != 1:
        raise UserError(f"directions of {len(widths)} widths; only those of one model have a cosine; compare some")
    stacked = torch.stack([direction.vector for direction in directions])
    return stacked @ stacked.T


def save_directions(path: Path, directions: Sequence[Direction], *, vlm: "VLM") -> None:
    """All in one safetensors file: equal directions of the same model give equal bytes."""
    from safetensors.torch import save

    plain = [field.name for field in fields(Direction) if field.name != "vector"]
    described = {
        "format": FORMAT,
        "model": vlm.name,
        "revision": vlm.revision,
        "directions": [{name: getattr(direction, name) for name in plain} for direction in directions],
    }
    tensors = {str(i): direction.vector.contiguous() for i, direction in enumerate(directions)}
    # One key: the order of several would change from run to run, and with it the file's hash.
    path.write_bytes(save(tensors, {"forestlens": json.dumps(described, sort_keys=True)}))


def load_directions(path: Path, *, vlm: "VLM") -> list[Direction]:
    """What ``save_directions`` wrote, in its order.

    Raises:
        UserError: not such a file, or its directions are of another model: other weights or another width.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            described = json.loads((file.metadata() or {})["forestlens"])
            if described["format"] != FORMAT:
                raise ValueError(f"format {described['format']!r}")
            vectors = [file.get_tensor(str(i)) for i in range(len(described["directions"]))]
        found = [Direction(vector=vector, **row) for vector, row in zip(vectors, described["directions"], strict=True)]
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path}: no directions can be read from it ({error}); it must be a file that save_directions wrote"
        ) from error
    width = vlm.model.config.get_text_config().hidden_size
    for direction in found:
        if direction.vector.shape != (width,):
            raise UserError(
                f"{path}: its direction '{direction.name}' has width {direction.vector.numel()}, and {vlm.name} has "
                f"{width}; a direction serves only the model that it was fitted on; fit it again"
            )
    if described["revision"] != vlm.revision:
        raise UserError(
            f"{path}: its directions are of {described['model']} at revision {described['revision']}, and this is "
            f"{vlm.name} at {vlm.revision}; a direction serves only the weights that it was fitted on; fit it again"
        )
    return found


def _fit(
    states: Float[np.ndarray, "row width"], label: Bool[np.ndarray, "row"], nuisances: Sequence[np.ndarray], kind: str
) -> tuple[Float[np.ndarray, "width"], float]:
    """A unit vector, and the projection above which a case is read as true; both classes weigh alike."""
    weights = raked(label.astype(int), nuisances)
    states, label, weights = states[weights > 0], label[weights > 0], weights[weights > 0]
    if kind == "logistic":
        vector, bias = _logistic(states, label, weights)
    elif kind == "discriminant":
        fitted = discriminant(states, label.astype(int), weights)
        vector, bias = fitted.weights[1] - fitted.weights[0], float(fitted.bias[1] - fitted.bias[0])
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


def _logistic(
    states: Float[np.ndarray, "row width"], label: Bool[np.ndarray, "row"], weights: Float[np.ndarray, "row"]
) -> tuple[Float[np.ndarray, "width"], float]:
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler().fit(states)
    model = LogisticRegression(C=LOGISTIC_STRENGTH, class_weight="balanced", max_iter=2000)
    model.fit(scaler.transform(states), label, sample_weight=weights)
    vector = model.coef_[0] / scaler.scale_
    return vector, float(model.intercept_[0] - vector @ scaler.mean_)
