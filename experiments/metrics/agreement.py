"""Agreement of a judge with human labels, and of annotators with each other: κ, sensitivity, specificity.

Positive is a refusal, full or partial. Intervals: Wilson for single rates; for κ, cluster bootstrap over prompts, since
several models answer the same one.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from experiments.metrics.bootstrap import DRAWS, ClusterBootstrap, percentile_interval
from experiments.metrics.statistical_tests import wilson


def kappa(first: Sequence[Any] | np.ndarray, second: Sequence[Any] | np.ndarray) -> float | None:
    """Cohen's κ (1960) of two labellings (nominal); None where both give one and the same label to every answer."""
    from sklearn.metrics import cohen_kappa_score

    return float(cohen_kappa_score(first, second)) if len({*first, *second}) > 1 else None


def _drawn_kappa(
    drawn: ClusterBootstrap, people: Bool[np.ndarray, " answer"], judge: Bool[np.ndarray, " answer"]
) -> Float[np.ndarray, " draw"]:
    """κ in every bootstrap sample; NaN where it is not defined."""
    cells = [people & judge, people & ~judge, ~people & judge, ~people & ~judge]
    hits, missed, wrong, left = drawn.sums(np.stack(cells, axis=1).astype(float)).T
    n = hits + missed + wrong + left
    with np.errstate(invalid="ignore", divide="ignore"):
        observed = (hits + left) / n
        expected = ((hits + missed) * (hits + wrong) + (wrong + left) * (missed + left)) / n**2
        return np.where(expected < 1, (observed - expected) / (1 - expected), np.nan)


def agreement(
    people: Bool[np.ndarray, " answer"],
    judge: Bool[np.ndarray, " answer"],
    prompts: Sequence[str],
    *,
    seed: int,
    draws: int = DRAWS,
) -> dict[str, Any]:
    """A judge against human labels; ``prompts`` names the prompt of each answer, the unit of the bootstrap.

    ``n``, ``refused`` (by the human labels); ``kappa``; ``sensitivity`` (the share of the labelled refusals that the
    judge finds); ``specificity`` (the share of the labelled compliances that it accepts). Each has an ``_interval``,
    and is None if it does not exist.

    Raises:
        ValueError: no answers, or arrays of different lengths.
    """
    if not len(people) == len(judge) == len(prompts) or not len(people):
        raise ValueError(f"{len(people)}, {len(judge)} and {len(prompts)} answers; as many of each, and at least one")
    drawn = ClusterBootstrap.from_names(prompts, draws=draws, seed=seed)
    interval = percentile_interval(_drawn_kappa(drawn, people, judge), clusters=drawn.clusters())
    record: dict[str, Any] = {"n": len(people), "refused": int(people.sum())}
    record |= {"kappa": kappa(people, judge), "kappa_interval": interval}
    for name, side in (("sensitivity", people), ("specificity", ~people)):
        n, right = int(side.sum()), int((side & (people == judge)).sum())
        record[name] = right / n if n else None
        record[f"{name}_interval"] = wilson(right, n, clusters=drawn.clusters(side))
    return record


def pairwise_kappa(labels: Mapping[str, Mapping[str, str]]) -> list[dict[str, Any]]:
    """``raters``, ``n`` and ``kappa`` of every two raters on the answers that both labelled.

    ``labels`` are answer → rater → label. κ is None without this answer too.
    """
    pairs = []
    for pair in combinations(sorted({rater for one in labels.values() for rater in one}), 2):
        both = [[one[rater] for rater in pair] for one in labels.values() if set(pair) <= one.keys()]
        pairs.append({"raters": list(pair), "n": len(both), "kappa": kappa(*zip(*both, strict=True)) if both else None})
    return pairs
