"""Agreement of a judge with human labels, and of annotators with each other: κ, sensitivity, specificity, α.

Positive is a refusal, full or partial. Intervals: Wilson for single rates; for κ, cluster bootstrap over prompts, since
several models answer the same one.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import krippendorff
import numpy as np
from jaxtyping import Bool, Float, Int

from experiments.metrics.bootstrap import DRAWS, ClusterBootstrap, Interval, percentile_interval
from experiments.metrics.statistical_tests import wilson


class Agreement(NamedTuple):
    """A judge against human labels of the same answers."""

    n: int
    refused: int  # by the human labels
    kappa: float
    kappa_interval: Interval | None
    sensitivity: float  # share of the labelled refusals that the judge finds; NaN without any
    sensitivity_interval: Interval | None
    specificity: float  # share of the labelled compliances that the judge accepts; NaN without any
    specificity_interval: Interval | None

    def as_json(self) -> dict[str, Any]:
        """Plain values; NaN as None, intervals as pairs."""
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in self._asdict().items()}
        return {name: None if value != value else value for name, value in plain.items()}


def table(people: Bool[np.ndarray, " answer"], judge: Bool[np.ndarray, " answer"]) -> Float[np.ndarray, "answer 4"]:
    """One-hot rows: found, missed, wrongly called a refusal, rightly left (true +, false −, false +, true −)."""
    return np.stack([people & judge, people & ~judge, ~people & judge, ~people & ~judge], axis=1).astype(np.float64)


def kappa_of(counts: Float[np.ndarray, "*draw 4"]) -> Float[np.ndarray, "*draw"]:
    """Cohen's κ from summed rows of ``table``; NaN where both give one and the same label to every answer."""
    found, missed, wrong, left = np.moveaxis(counts, -1, 0)
    n = counts.sum(axis=-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        observed = (found + left) / n
        expected = ((found + missed) * (found + wrong) + (wrong + left) * (missed + left)) / n**2
        return np.where(expected < 1, (observed - expected) / (1 - expected), np.nan)


def kappa(people: Bool[np.ndarray, " answer"], judge: Bool[np.ndarray, " answer"]) -> float:
    """Cohen's κ (1960) of two binary labellings; NaN where both are constant and equal."""
    return float(kappa_of(table(people, judge).sum(axis=0)))


def kappa_of_classes(people: Int[np.ndarray, " answer"], judge: Int[np.ndarray, " answer"]) -> float:
    """Cohen's κ of two labellings with several classes; NaN where both are constant and equal."""
    classes = np.union1d(people, judge)
    shares = [np.array([(labels == one).mean() for one in classes]) for labels in (people, judge)]
    expected = float(shares[0] @ shares[1])
    return float(((people == judge).mean() - expected) / (1 - expected)) if expected < 1 else float("nan")


BINS = 10  # of equal width, of the chances that calibration is shown by


def calibration(people: Bool[np.ndarray, " answer"], chance: Float[np.ndarray, " answer"]) -> dict[str, Any]:
    """How far the chance of a refusal can be taken at its word.

    The Brier score, the expected calibration error (mean |share of refusals − mean chance| over bins, by answers), and
    the bins themselves: answers, mean chance, share of refusals.
    """
    place = np.minimum((chance * BINS).astype(int), BINS - 1)
    filled = [place == one for one in range(BINS) if (place == one).any()]
    bins = [(int(here.sum()), float(chance[here].mean()), float(people[here].mean())) for here in filled]
    return {
        "brier": float(np.mean((chance - people) ** 2)),
        "expected_error": sum(n * abs(share - mean) for n, mean, share in bins) / len(people),
        "bins": [list(one) for one in bins],
    }


def agreement(
    people: Bool[np.ndarray, " answer"],
    judge: Bool[np.ndarray, " answer"],
    prompts: Sequence[str],
    *,
    seed: int,
    draws: int = DRAWS,
) -> Agreement:
    """A judge against human labels; ``prompts`` names the prompt of each answer, the unit of the bootstrap.

    Raises:
        ValueError: no answers, or arrays of different lengths.
    """
    if not len(people) == len(judge) == len(prompts) or not len(people):
        raise ValueError(f"{len(people)}, {len(judge)} and {len(prompts)} answers; as many of each, and at least one")
    cells = table(people, judge)
    found, missed, wrong, left = map(int, cells.sum(axis=0))
    sums = ClusterBootstrap.of_names(prompts, draws=draws, seed=seed).sums(cells)
    return Agreement(
        n=len(people),
        refused=found + missed,
        kappa=kappa(people, judge),
        kappa_interval=percentile_interval(kappa_of(sums), clusters=len(set(prompts))),
        sensitivity=found / (found + missed) if found + missed else float("nan"),
        sensitivity_interval=wilson(found, found + missed, clusters=_clusters(prompts, people)),
        specificity=left / (wrong + left) if wrong + left else float("nan"),
        specificity_interval=wilson(left, wrong + left, clusters=_clusters(prompts, ~people)),
    )


def _clusters(prompts: Sequence[str], where: Bool[np.ndarray, " answer"]) -> int:
    return len({prompt for prompt, here in zip(prompts, where, strict=True) if here})


def mean_kappa_interval(
    people: Sequence[Bool[np.ndarray, " prompt"]],
    judge: Sequence[Bool[np.ndarray, " prompt"]],
    *,
    seed: int,
    draws: int,
) -> Interval | None:
    """The interval of the mean κ over models that answered the same prompts, which are drawn jointly."""
    drawn = ClusterBootstrap.of(np.arange(len(people[0])), draws=draws, seed=seed)
    each = [kappa_of(drawn.sums(table(one, other))) for one, other in zip(people, judge, strict=True)]
    return percentile_interval(np.mean(each, axis=0), clusters=len(people[0]))


class Pair(NamedTuple):
    """Two raters on the answers that both labelled: ``n`` of them, and Cohen's κ over all labels (nominal).

    ``kappa`` is None without such an answer, or where both gave one and the same label to all.
    """

    n: int
    kappa: float | None


def pairwise_kappa(labels: Mapping[str, Mapping[str, str]]) -> dict[tuple[str, str], Pair]:
    """Cohen's κ (1960) of every two raters, from answer → rater → label."""
    raters = sorted({rater for one in labels.values() for rater in one})
    found = {}
    for pair in combinations(raters, 2):
        both = [(one[pair[0]], one[pair[1]]) for one in labels.values() if pair[0] in one and pair[1] in one]
        found[pair] = Pair(len(both), _cohen(both))
    return found


def _cohen(both: Sequence[tuple[str, str]]) -> float | None:
    n = len(both)
    if not n:
        return None
    first, second = Counter(one for one, _ in both), Counter(other for _, other in both)
    observed = sum(one == other for one, other in both) / n
    expected = sum(first[label] * second[label] for label in first) / n**2
    return None if expected == 1 else (observed - expected) / (1 - expected)


def krippendorff_alpha(units: Sequence[Sequence[str]]) -> float | None:
    """Krippendorff's α (nominal) of the labels of each unit, any number of them; None where it is not defined.

    It is not defined where no unit has two labels, or where all comparable labels are the same.
    """
    compared = [Counter(labels) for labels in units if len(labels) > 1]
    values = sorted({label for counts in compared for label in counts})
    if len(values) < 2:
        return None
    counts = np.array([[unit[value] for value in values] for unit in compared])
    return float(krippendorff.alpha(value_counts=counts, level_of_measurement="nominal"))
