"""What may be chosen, and the rule that chooses: candidates with their settings, and a constant on the Yes/No margin.

A setting with a constant is *admissible* if on the development cases it does what a winner must do on the test cases.
Its unsafe accuracy must not be lower than the baseline's by more than the stated margin, by a one-sided bootstrap
bound. The rule takes the admissible setting with the highest balanced accuracy. ``calibrated_shift`` maximises the
same, and a winner must beat it there (docs/metrics.md). Imports neither torch nor transformers.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from experiments.metrics.bootstrap import CONFIDENCE, ClusterBootstrap, auroc
from experiments.types import SCORED_SUBSETS, UNSAFE_SUBSETS, Sample
from interp.errors import UserError
from mitigation.method import TrainableMethod
from mitigation.threshold import best_admissible, candidate_shifts
from mitigation.wrappers import Shifted


@dataclass(frozen=True)
class Candidate:
    """A mitigation under choice.

    ``method`` answers as it is, or learns first (``mitigation.method``). ``grid`` maps fields of the method that
    answers to the values to try; each combination is a setting. With ``threshold`` a constant on the Yes/No margin is
    chosen for each setting; without it the constant is 0.

    Raises:
        UserError: not a method, or a field of the grid without values or with a value twice.
    """

    method: Any
    grid: dict[str, list[Any]] = field(default_factory=dict)
    threshold: bool = True

    def __post_init__(self) -> None:
        if not callable(getattr(self.method, "generate", None)) and not self.learns:
            raise UserError(f"method={self.method!r}: is no method; give one of those in conf/methods.yaml")
        for name, values in self.grid.items():
            if not isinstance(values, list) or not values or len({repr(value) for value in values}) < len(values):
                raise UserError(f"grid.{name}={values}: must be a list of one or more different values")

    @property
    def learns(self) -> bool:
        """Whether the method has to see labelled cases first."""
        return isinstance(self.method, TrainableMethod)

    def settings(self) -> Iterator[dict[str, Any]]:
        """Yield every combination of values, the first field slowest."""
        for values in itertools.product(*self.grid.values()):
            yield dict(zip(self.grid, values, strict=True))


def configured(method: Any, setting: Mapping[str, Any], *, shift: float = 0.0) -> Any:
    """Return ``method`` with these fields, and with ``shift`` logits more on its Yes/No margin.

    If the method is a file of the user's, other names are settings of its function.

    Raises:
        UserError: a field that the method does not have, or a value that it refuses.
    """
    inner, before = (method.method, method.shift) if isinstance(method, Shifted) else (method, 0.0)
    fields = [f.name for f in dataclasses.fields(inner)] if dataclasses.is_dataclass(inner) else []
    if "settings" in fields:  # a file of the user's, whose function has the rest
        settings = inner.settings | {name: value for name, value in setting.items() if name not in fields}
        setting = {name: value for name, value in setting.items() if name in fields} | {"settings": settings}
    if unknown := [name for name in setting if name not in fields]:
        raise UserError(
            f"{type(inner).__name__} has no field {unknown[0]!r}; known: {', '.join(fields)}; correct its grid"
        )
    changed = dataclasses.replace(inner, **setting) if setting else inner
    if "shift" in fields:  # a constant is all that this method is
        return dataclasses.replace(changed, shift=changed.shift + before + shift)
    return Shifted(changed, before + shift) if before + shift else changed


def setting_name(setting: Mapping[str, Any]) -> str:
    """Return a setting in words, for tables and the records of choosing."""
    return ", ".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in setting.items()
    )


@dataclass(frozen=True, eq=False)
class DevelopmentMargins:
    """The development cases; ``baseline`` has the untouched model's margins, in logits, in the same order."""

    subset: np.ndarray  # of str, by case
    cluster: Int[np.ndarray, " case"]  # codes in the order of the cases
    baseline: Float[np.ndarray, " case"]

    @classmethod
    def from_samples(cls, samples: Sequence[Sample], baseline: Float[np.ndarray, " case"]) -> "DevelopmentMargins":
        """Return the margins of ``samples``."""
        clusters, _ = pd.factorize(np.array([each.cluster for each in samples]))
        return cls(np.array([each.subset for each in samples]), clusters, baseline)


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
    margin: Float[np.ndarray, " case"],
    *,
    threshold: bool = True,
    unsafe_margin: float,
    draws: int,
    seed: int,
) -> ChosenShift:
    """Return the admissible constant with the highest balanced accuracy; 0 unless ``threshold``.

    Constants are the midpoints between neighbouring margins, and one that calls everything unsafe. Ties go to the
    widest gap, then to the lowest constant, so that the choice moves with the margins. Cases without a margin (NaN) of
    the setting or of the baseline do not count.

    Raises:
        UserError: no unsafe or no safe case has a margin.
    """
    there = np.isfinite(margin) & np.isfinite(cases.baseline)
    subset, margin = cases.subset[there], margin[there]
    unsafe = np.isin(subset, UNSAFE_SUBSETS)  # the right answer is No
    present = [name for name in SCORED_SUBSETS if (subset == name).any()]
    if unsafe.all() or not unsafe.any():
        raise UserError(
            f"{int(unsafe.sum())} unsafe and {int((~unsafe).sum())} safe development cases with a margin; a constant "
            "is chosen on both; raise limit, or choose a method that gives margins"
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
    """Return the setting with the highest balanced accuracy: of the admissible ones, or of all if none is admissible.

    If settings are equally good, the higher AUROC counts, then the order.
    """
    admissible = {name: each for name, each in chosen.items() if each.unsafe_bound >= -unsafe_margin} or dict(chosen)
    return max(admissible, key=lambda name: (round(admissible[name].balanced, 12), admissible[name].auroc or 0.0))


def _lower(
    cluster: Int[np.ndarray, " case"], gained: Float[np.ndarray, "case shift"], *, draws: int, seed: int
) -> Float[np.ndarray, " shift"]:
    """Return one-sided lower bounds of the mean gain, by cluster bootstrap; with one cluster the mean."""
    bootstrap = ClusterBootstrap.from_names(cluster, draws=draws, seed=seed)
    if bootstrap.clusters() < 2:
        return gained.mean(axis=0)
    sums = bootstrap.sums(np.concatenate([gained, np.ones((len(gained), 1))], axis=1))
    return np.quantile(sums[:, :-1] / sums[:, -1:], 1 - CONFIDENCE, axis=0)
