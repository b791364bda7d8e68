"""What the rows of the study show: five questions, each answered by a stated rule.

An answer is given if a 95% interval is on one side as a whole. Otherwise the answer is "inconclusive" or, with too few
clusters for an interval, "too few cases".
"""

from collections.abc import Sequence
from typing import Literal

from experiments.metrics.bootstrap import FEWEST
from experiments.metrics.estimates import HIGHER, INCONCLUSIVE, LOWER, NO_DIFFERENCE, TOO_FEW, side
from experiments.runs.results_table import Results, Row, group_of
from experiments.studies.mechanism.cases import ARM
from experiments.studies.mechanism.interventions import ARRIVED, PICTURE, PRIOR, SENTENCE, arrives_at, effect_at
from experiments.studies.mechanism.probes import (
    AS_RANDOM,
    CANNOT_TELL,
    MARGIN,
    NO_GUESS,
    NO_RANDOM,
    ORDERED,
    YES,
    holds,
)

Conclusion = Literal[
    "yes", "partly", "more than said", "less than said", "as much as said", "not above a guess", "no random weights",
    "not above random weights", "nowhere", "never arrives", "before", "at once", "after", "sentence", "picture",
    "higher", "lower", "no relevant difference", "inconclusive", "too few cases", "cannot be told",
]  # fmt: skip
"""Of every question together; ``yes`` to ``as much as said`` are of the two on probes."""


def conclusions(results: Results, layers: Sequence[int], *, failed: bool) -> dict[str, str]:
    """Return the ``Conclusion`` of each question: is the picture read, carried to the verdict, where is it overruled,
    by what, and does undoing that help?

    Args:
        results: the rows of the study.
        layers: that were looked at.
        failed: whether the model failed at all.
    """
    return {
        "picture_read": _read(results, layers[-1]),
        "picture_carried": _carried(results, layers[-1]),
        "overruled_at": _overruled_at(results, layers) if failed else "nowhere",
        "overruled_by": _overruled_by(results),
        "reversed": _claim(results.get(PRIOR, "undo_auroc", against=ARM)),
    }


def _claim(row: Row | None) -> str:
    return (row and row.claim) or CANNOT_TELL


def _read(results: Results, last: int) -> str:
    """By the probe of what the picture shows, at the picture's own columns and the last layer."""
    answer = holds(results, "concept", "image", last)
    distance = results.select(quantity="margin_distance", group="between=pictures")
    return "partly" if answer == CANNOT_TELL and distance[0].value is not None else answer


def _carried(results: Results, last: int) -> str:
    """By the probes of the truth at the verdict and the last layer (fixed beforehand), next to the model's own margin.

    Within sentences the probe may order more pairs than the margin, or fewer.
    """
    answer = holds(results, "truth", "verdict", last)
    margin = results.get(ARM, "undo_auroc")
    if not margin or margin.value is None:
        return CANNOT_TELL
    if answer in (NO_GUESS, NO_RANDOM, AS_RANDOM) and holds(results, "concept", "verdict", last) == YES:
        return "partly"
    group = group_of(target="truth", position="verdict", layer=last)
    beyond = [row.claim for row in results.select(quantity=ORDERED, against=MARGIN, group=group)]
    further = {HIGHER: "more than said", LOWER: "less than said", NO_DIFFERENCE: "as much as said"}
    return further.get(beyond[0], YES) if answer == YES and beyond else answer


def _overruled_at(results: Results, layers: Sequence[int]) -> str:
    """By the layers from which on patching the verdict's column brings half of another picture's or sentence's way.

    The layers where each arrives are read off the values. Which arrives first must be carried by the intervals.
    """
    sentence, picture = (arrives_at(results, other, "verdict", layers) for other in (SENTENCE, PICTURE))
    if sentence is None:
        return CANNOT_TELL
    if picture is None:
        last = effect_at(results, PICTURE, "verdict", layers[-1])
        return "never arrives" if _beyond_half(last) < 0 else _unordered(last)
    if sentence != picture:
        first, other = (SENTENCE, PICTURE) if sentence < picture else (PICTURE, SENTENCE)
        here, behind = (effect_at(results, what, "verdict", min(sentence, picture)) for what in (first, other))
        if _beyond_half(here) > 0 > _beyond_half(behind):
            return "before" if sentence < picture else "after"
        return _unordered(here, behind)
    before = [layer for layer in layers if layer < sentence][-1:]
    both, earlier = (
        [effect_at(results, other, "verdict", layer) for other in (SENTENCE, PICTURE) for layer in listed]
        for listed in ([sentence], before)
    )
    at_once = all(_beyond_half(row) > 0 for row in both) and all(_beyond_half(row) < 0 for row in earlier)
    return "at once" if at_once else _unordered(*both)


def _beyond_half(row: Row | None) -> int:
    """Return 1 if the whole interval of a share of the way is above a half, −1 if below, else 0."""
    return 0 if row is None else side(row._asdict(), ARRIVED)


def _unordered(*rows: Row | None) -> str:
    return TOO_FEW if any(row is None or (row.clusters or 0) < FEWEST for row in rows) else INCONCLUSIVE


def _overruled_by(results: Results) -> str:
    """By how far margins are apart between sentences, and between two pictures under one sentence."""
    claim = _claim(results.get(ARM, "margin_distance", group="between=sentences", against="pictures"))
    return {HIGHER: "sentence", LOWER: "picture"}.get(claim, claim)
