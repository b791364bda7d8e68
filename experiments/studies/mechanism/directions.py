"""Directions at the verdict: "alarming words", "unsafe picture", "will refuse", and how far failures are along them.

States in, directions and rows out; no model is involved.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.metrics.estimates import SMALL, Resamples, rate_floor
from experiments.runs.results_table import Row, group_of, row
from experiments.studies.mechanism.cases import ARM, AnsweredCases
from interp.errors import UserError
from interp.hooks.residual import Residuals
from interp.tools.directions import Direction, fit_direction, project

WILL_REFUSE, WORDS, PICTURE = "will refuse", "alarming words", "unsafe picture"
KINDS = ("mean_difference", "discriminant")
POSITION = "verdict"


def fit_directions(
    states: Residuals, cases: AnsweredCases, layers: Sequence[int], *, seed: int
) -> tuple[list[Direction], dict[str, str]]:
    """Fit every direction whose labels the benchmark has, at each layer and of each kind.

    "Alarming words" holds out templates instead of clusters: it must be read in sentences that it was not fitted on.

    Returns:
        The directions, and why there is none: name → reason.
    """
    labels: dict[str, tuple[np.ndarray, Any]] = {WILL_REFUSE: (~cases.says_yes, cases.clusters)}
    missing: dict[str, str] = {}
    for name, tag in ((WORDS, "words"), (PICTURE, "picture")):
        column = cases.tag(tag)
        if column is None:
            heading = {WORDS: "alarming_words", PICTURE: "dangerous"}[name]
            missing[name] = f"the benchmark does not say which cases have {name}; a table does, in a column “{heading}”"
        else:
            labels[name] = (column == "alarming", cases.templates if name == WORDS else cases.clusters)
    directions = []
    for name, (label, groups) in labels.items():
        for kind in KINDS:
            for layer in layers:
                try:
                    directions.append(fit_direction(states.select(POSITION, layer), label, groups, name=name,
                                                    position=POSITION, layer=layer, kind=kind, seed=seed))  # fmt: skip
                except UserError as error:  # such as layer 0, where the verdict's column holds the same token always
                    missing.setdefault(name, str(error))
    for direction in directions:
        missing.pop(direction.name, None)
    return directions, missing


def direction_rows(
    directions: Sequence[Direction], states: Residuals, cases: AnsweredCases, subset: str | None, estimator: Resamples
) -> list[Row]:
    """Return what each direction reads on held-out cases, and how far failures are along it.

    ``direction_gap`` is the mean of the failures of ``subset`` minus the mean of its successes, in units of the
    distance between the means of the direction's two classes.
    """
    rows = []
    for direction in directions:
        group = group_of(direction=direction.name, kind=direction.kind, layer=direction.layer)
        rows.append(row("direction_auroc", arm=ARM, group=group, value=direction.auroc, n=direction.n,
                        clusters=direction.groups))  # fmt: skip
        if subset is not None and direction.gap:
            along = (
                project(states.select(direction.position, direction.layer), direction).double().numpy() / direction.gap
            )
            here = cases.in_subset(subset)
            gap = estimator.gap(along, here & cases.failed, here & ~cases.failed)
            rows.append(row("direction_gap", arm=ARM, group=group, subset=subset, against="successes", entry=gap))
    return rows


def alarm_rows(cases: AnsweredCases, *, draws: int, seed: int) -> list[Row]:
    """Return how much more often cases with alarming words are called unsafe; nothing if words have no label.

    Templates are resampled, since the words belong to them.
    """
    words = cases.tag("words")
    if words is None:
        return []
    alarming, refuses = words == "alarming", (~cases.says_yes).astype(float)
    floor = sum(rate_floor(int(side.sum())) for side in (alarming, ~alarming))
    estimator = Resamples.from_names(cases.templates, draws=draws, seed=seed)
    more = estimator.gap(refuses, alarming, ~alarming, small=SMALL, floor=floor)
    return [row("called_unsafe", arm=ARM, group=group_of(words="alarming"), against="other words", entry=more)]
