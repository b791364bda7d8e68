"""Directions at the verdict: "alarming words", "unsafe picture", "will refuse", and the angles between them. Pure."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.studies.mechanism.cases import Cases
from experiments.studies.mechanism.estimates import Entry, Resampling
from interp.directions import Direction, cosines, fit_direction, project
from interp.errors import UserError
from interp.hooks.residual import Residuals

WILL_REFUSE, WORDS, PICTURE = "will refuse", "alarming words", "unsafe picture"
KINDS = ("mean_difference", "discriminant")
PLACE = "verdict"


def fitted(
    read: Residuals, cases: Cases, points: Sequence[int], *, seed: int
) -> tuple[list[Direction], dict[str, str]]:
    """Every direction whose labels the benchmark has, at each point and of each kind; name → why there is none.

    "Alarming words" is held out by template: what is read has to hold for sentences that were not met.
    """
    labels: dict[str, tuple[np.ndarray, Any]] = {WILL_REFUSE: (~cases.says_yes, cases.clusters)}
    missing: dict[str, str] = {}
    for name, tag in ((WORDS, "words"), (PICTURE, "picture")):
        column = cases.column(tag)
        if column is None:
            missing[name] = f"the benchmark does not say of its cases which have {name}"
        else:
            labels[name] = (column == "alarming", cases.templates if name == WORDS else cases.clusters)
    found = []
    for name, (label, groups) in labels.items():
        for kind in KINDS:
            for point in points:
                try:
                    found.append(fit_direction(read.at(PLACE, point), label, groups, name=name, place=PLACE,
                                               point=point, kind=kind, seed=seed))  # fmt: skip
                except UserError as error:  # such as point 0, where all verdict columns hold the same token
                    missing.setdefault(name, str(error))
    for direction in found:
        missing.pop(direction.name, None)
    return found, missing


def leaning(
    directions: Sequence[Direction], read: Residuals, cases: Cases, subset: str | None, resampling: Resampling
) -> list[dict[str, Any]]:
    """A row a direction: what it reads on cases held out, and how far failures lie along it beyond successes.

    ``gap`` is in units of the distance between the direction's two classes.
    """
    rows = []
    for one in directions:
        row: dict[str, Any] = {"name": one.name, "kind": one.kind, "point": one.point, "auroc": one.auroc,
                               "accuracy": one.accuracy, "n": one.n, "groups": one.groups, "gap": None}  # fmt: skip
        if subset is not None and one.gap:
            along = project(read.at(one.place, one.point), one).double().numpy() / one.gap
            here = cases.of(subset)
            row["gap"] = resampling.gap(along, here & cases.failed, here & ~cases.failed)
        rows.append(row)
    return rows


def alarm(cases: Cases, *, draws: int, seed: int) -> Entry | None:
    """How much more often cases with alarming words are called unsafe than others; None where words have no label.

    Templates are resampled: the words are theirs.
    """
    words = cases.column("words")
    if words is None:
        return None
    alarming, refuses = words == "alarming", (~cases.says_yes).astype(float)
    return Resampling.of(cases.templates, draws=draws, seed=seed).gap(refuses, alarming, ~alarming)


def one_of(directions: Sequence[Direction], name: str, point: int, kind: str = KINDS[0]) -> Direction | None:
    """The direction of that name, point and kind, if it was fitted."""
    return next((d for d in directions if (d.name, d.point, d.kind) == (name, point, kind)), None)


def angles(directions: Sequence[Direction], points: Sequence[int]) -> list[dict[str, Any]]:
    """The cosine of each two mean differences, point by point."""
    rows = []
    for point in points:
        here = [d for d in directions if d.point == point and d.kind == KINDS[0]]
        if len(here) < 2:
            continue
        table = cosines(here).tolist()
        rows += [
            {"point": point, "one": here[i].name, "other": here[j].name, "cosine": table[i][j]}
            for i in range(len(here))
            for j in range(i + 1, len(here))
        ]
    return rows
