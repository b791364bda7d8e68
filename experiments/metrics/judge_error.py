"""A judge's agreement with people's labels, and refusal rates corrected for its error (Rogan and Gladen 1978).

Agreement: κ, sensitivity and specificity. Positive is a refusal, full or partial. Intervals: Wilson for single rates;
for κ, cluster bootstrap over prompts, since several models answer the same one.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import ndtri

from experiments.metrics.bootstrap import CONFIDENCE, DRAWS, ClusterBootstrap, percentile_interval, wilson
from experiments.runs.results_table import Results, Row, row
from experiments.types import REFUSAL_SUBSETS
from interp.errors import UserError

CORRECTED = "corrected for the judge's error"  # the rule of these rows
LEAST_LABELLED = 10  # refusals and compliances, each, behind an error that is corrected for
LEAST_YOUDEN = 0.5
_NORMAL = float(ndtri((1 + CONFIDENCE) / 2))


class JudgeError(NamedTuple):
    """How often a judge errs, measured on people's labels of answers from which it had not learned."""

    judge: str
    sensitivity: float  # share of true refusals that it finds
    specificity: float  # share of true compliances that it accepts
    positives: int  # true refusals behind ``sensitivity``
    negatives: int  # true compliances behind ``specificity``
    by_model: Mapping[str, tuple[float, float]]  # sensitivity and specificity by model, of those with enough of both

    @property
    def unstable(self) -> str:
        """Why a rate cannot be corrected for this error, "" where it can.

        The correction divides by sensitivity + specificity − 1. If its 95% interval (normal, one success and one
        failure added to each count) reaches below ``LEAST_YOUDEN``, every error of the rate may more than double.
        """
        labelled = {"refusals": self.positives, "compliances": self.negatives}
        if few := [f"{count} labelled {name}" for name, count in labelled.items() if count < LEAST_LABELLED]:
            return f"its error was measured on {' and '.join(few)}, of which at least {LEAST_LABELLED} are needed"
        (seen, spread), (left, other) = self._adjusted
        lowest = seen + left - 1 - _NORMAL * float(np.sqrt(spread + other))
        return (
            ""
            if lowest >= LEAST_YOUDEN
            else (
                f"sensitivity + specificity − 1 is {self.sensitivity + self.specificity - 1:.2f} and may be as low as "
                f"{lowest:.2f}; below {LEAST_YOUDEN:g} the correction more than doubles every error of the rate"
            )
        )

    @property
    def _adjusted(self) -> list[tuple[float, float]]:
        return [_adjusted(self.sensitivity, self.positives), _adjusted(self.specificity, self.negatives)]

    def corrected(self, rate: float, n: int) -> dict[str, Any]:
        """Return the share ``rate`` of ``n`` answers that the judge calls refusals, corrected, as an entry.

        The interval comes from the delta method over the counts of all three numbers. One success and one failure are
        added to each, since the plain method has no width at rates of 0 and 1. It assumes independent cases, and
        answers like those on which the judge's error was measured. ``bounds`` are the lowest and the highest rate by
        the errors on single models. The judge may read this model as well or as badly as any of them.
        """
        (share, spread), (seen, by_seen), (left, by_left) = _adjusted(rate, n), *self._adjusted
        middle, youden = rogan_gladen(share, seen, left), seen + left - 1
        half = _NORMAL * np.sqrt(spread + _clipped(middle) ** 2 * by_seen + (1 - _clipped(middle)) ** 2 * by_left)
        each = [_clipped(rogan_gladen(rate, *one)) for one in self.by_model.values() if sum(one) > 1]
        return {
            "value": _clipped(rogan_gladen(rate, self.sensitivity, self.specificity)),
            "low": _clipped(middle - half / youden),
            "high": _clipped(middle + half / youden),
            "bounds": (min(each), max(each)) if each else None,
        }


def rogan_gladen(rate: float, sensitivity: float, specificity: float) -> float:
    """Return (rate + specificity − 1) / (sensitivity + specificity − 1), for a judge that is better than chance."""
    return (rate + specificity - 1) / (sensitivity + specificity - 1)


def _clipped(rate: float) -> float:
    return float(np.clip(rate, 0, 1))


def _adjusted(share: float, count: int) -> tuple[float, float]:
    """Return a share with one success and one failure added, and its variance."""
    adjusted = (share * count + 1) / (count + 2)
    return adjusted, adjusted * (1 - adjusted) / (count + 2)


def error_of(card: Path, judge: str) -> JudgeError:
    """Return the error of ``judge`` by a judge_card.json (``task=judge_validation``).

    Raises:
        UserError: the card cannot be read or does not measure ``judge``.
    """
    try:
        judges = json.loads(card.read_text(encoding="utf-8"))["judges"]
        counts = {name: (int(each["pooled"]["n"]), int(each["pooled"]["refused"])) for name, each in judges.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise UserError(
            f"judge_card={card}: is no judge card; task=judge_validation writes judge_card.json; give that file's path"
        ) from None
    if judge not in counts:
        raise UserError(f"judge_card={card}: does not measure {judge} (it has {', '.join(counts)}); make one with "
                        f"task=judge_validation judge={judge}")  # fmt: skip
    (n, positives), pooled, names = counts[judge], judges[judge]["pooled"], ("sensitivity", "specificity")
    seen, left = (np.nan if pooled[name] is None else float(pooled[name]) for name in names)
    models = {str(model): each for model, each in judges[judge].get("models", {}).items()
              if "n" not in each or LEAST_LABELLED <= each["refused"] <= each["n"] - LEAST_LABELLED}  # fmt: skip
    by_model = {model: (each[names[0]], each[names[1]]) for model, each in models.items()
                if None not in (each[names[0]], each[names[1]])}  # fmt: skip
    return JudgeError(judge, seen, left, positives, n - positives, by_model)


def corrected_rates(results: Results, error: JudgeError) -> tuple[dict[str, Any], list[Row]]:
    """Return the error in plain values, and each arm's refusal rates corrected for it as rows of the results table.

    The rows stand next to the raw rates and replace none. ``bound_low`` and ``bound_high`` are the lowest and highest
    rate that the errors on single models give. If the correction is unstable there are no rows, and ``unstable`` says
    why.
    """
    plain = error._asdict() | {"unstable": error.unstable}
    del plain["by_model"]
    rows = []
    for arm in results.arms if not plain["unstable"] else ():
        for subset in REFUSAL_SUBSETS:
            raw = results.get(arm, "refusal_rate", subset=subset)
            if raw is not None and raw.value is not None and raw.n:
                entry = error.corrected(raw.value, int(raw.n))
                rows.append(row("refusal_rate", arm=arm, subset=subset, rule=CORRECTED, n=raw.n, entry=entry))
    return plain, rows


def kappa(first: Sequence[Any] | np.ndarray, second: Sequence[Any] | np.ndarray) -> float | None:
    """Return Cohen's κ (1960) of two labellings (nominal); None where both give one and the same label to every
    answer.
    """
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
    """Return a judge against human labels; ``prompts`` names the prompt of each answer, the unit of the bootstrap.

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
