"""Directions at the verdict: "alarming words", "unsafe picture", "will refuse", and the angles between them.

States in, directions and rows out; no model is involved.
"""

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np

from experiments.metrics.estimates import Entry, Resamples
from experiments.metrics.findings import SMALL
from experiments.metrics.paired import rate_floor
from experiments.studies.mechanism.cases import AnsweredCases
from interp.errors import UserError
from interp.hooks.residual import Residuals
from interp.tools.directions import Direction, cosines, fit_direction, project

WILL_REFUSE, WORDS, PICTURE = "will refuse", "alarming words", "unsafe picture"
KINDS = ("mean_difference", "discriminant")
POSITION = "verdict"


def fit_directions(
    states: Residuals, cases: AnsweredCases, layers: Sequence[int], *, seed: int
) -> tuple[list[Direction], dict[str, str]]:
    """Every direction whose labels the benchmark has, at each layer and of each kind; name → why there is none.

    "Alarming words" holds out templates instead of clusters: it has to be read in sentences that were not fitted on.
    """
    labels: dict[str, tuple[np.ndarray, Any]] = {WILL_REFUSE: (~cases.says_yes, cases.clusters)}
    missing: dict[str, str] = {}
    for name, tag in ((WORDS, "words"), (PICTURE, "picture")):
        column = cases.tag(tag)
        if column is None:
            column_of = {WORDS: "alarming_words", PICTURE: "dangerous"}[name]
            missing[name] = (
                f"the benchmark does not say which cases have {name}; a table does, in a column “{column_of}”"
            )
        else:
            labels[name] = (column == "alarming", cases.templates if name == WORDS else cases.clusters)
    found = []
    for name, (label, groups) in labels.items():
        for kind in KINDS:
            for layer in layers:
                try:
                    found.append(fit_direction(states.at(POSITION, layer), label, groups, name=name, place=POSITION,
                                               layer=layer, kind=kind, seed=seed))  # fmt: skip
                except UserError as error:  # such as layer 0, where the verdict's column holds the same token always
                    missing.setdefault(name, str(error))
    for direction in found:
        missing.pop(direction.name, None)
    return found, missing


def direction_rows(
    directions: Sequence[Direction],
    states: Residuals,
    cases: AnsweredCases,
    subset: str | None,
    estimator: Resamples,
) -> list[dict[str, Any]]:
    """A row for each direction: what it reads on held-out cases, and ``gap``: how far failures lie along it.

    ``gap`` is the mean of the failures of ``subset`` minus that of its successes, in units of the distance between the
    means of the direction's two classes.
    """
    rows = []
    for one in directions:
        row: dict[str, Any] = {"name": one.name, "kind": one.kind, "layer": one.layer, "auroc": one.auroc,
                               "accuracy": one.accuracy, "n": one.n, "groups": one.groups, "gap": None}  # fmt: skip
        if subset is not None and one.gap:
            along = project(states.at(one.place, one.layer), one).double().numpy() / one.gap
            here = cases.in_subset(subset)
            row["gap"] = estimator.gap(along, here & cases.failed, here & ~cases.failed)
        rows.append(row)
    return rows


def alarm_effect(cases: AnsweredCases, *, draws: int, seed: int) -> Entry | None:
    """How much more often cases with alarming words are called unsafe; None where words have no label.

    Templates are resampled, since the words belong to them.
    """
    words = cases.tag("words")
    if words is None:
        return None
    alarming, refuses = words == "alarming", (~cases.says_yes).astype(float)
    floor = sum(rate_floor(int(some.sum())) for some in (alarming, ~alarming))
    some = Resamples.of_names(cases.templates, draws=draws, seed=seed)
    return some.gap(refuses, alarming, ~alarming, small=SMALL, floor=floor)


def cosine_rows(directions: Sequence[Direction], layers: Sequence[int]) -> list[dict[str, Any]]:
    """The cosine of every two mean differences, layer by layer."""
    rows = []
    for layer in layers:
        here = [direction for direction in directions if (direction.layer, direction.kind) == (layer, KINDS[0])]
        for first, second in combinations(here, 2):
            cosine = float(cosines([first, second])[0, 1])
            rows.append({"layer": layer, "one": first.name, "other": second.name, "cosine": cosine})
    return rows
