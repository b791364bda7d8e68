"""Refusal rates corrected for the error of the judge that counted them (Rogan and Gladen 1978)."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtri

from experiments.metrics.bootstrap import CONFIDENCE, Interval
from experiments.types import REFUSAL_SUBSETS
from interp.errors import UserError


class CorrectedRate(NamedTuple):
    """A corrected rate. ``unclipped`` outside 0 to 1 suggests that the measured error does not hold here."""

    rate: float  # between 0 and 1
    unclipped: float
    interval: Interval | None  # of ``rate``, between 0 and 1; None where the numbers of cases were not given

    @property
    def impossible(self) -> bool:
        """Whether the formula gave a rate outside 0 to 1: more or fewer refusals than the judge's error allows."""
        return not 0 <= self.unclipped <= 1


def rogan_gladen(
    rate: float,
    sensitivity: float,
    specificity: float,
    *,
    n: int | None = None,
    positives: int | None = None,
    negatives: int | None = None,
    confidence: float = CONFIDENCE,
) -> CorrectedRate:
    """(rate + specificity − 1) / (sensitivity + specificity − 1), clipped to 0 … 1.

    The interval is by the delta method over the counts behind all three numbers, with one success and one failure added
    to each: at rates of 0 and 1 the plain method would have no width. It assumes independent cases, and answers like
    those on which the judge's error was measured.

    Args:
        rate: the share of answers that the judge calls refusals.
        sensitivity: the share of true refusals that the judge finds.
        specificity: the share of true compliances that the judge accepts.
        n: cases behind ``rate``.
        positives: true refusals behind ``sensitivity``.
        negatives: true compliances behind ``specificity``.

    Raises:
        UserError: a number outside 0 to 1, a count below 1, or a judge no better than chance.
    """
    for name, value in (("rate", rate), ("sensitivity", sensitivity), ("specificity", specificity)):
        if not 0 <= value <= 1:
            raise UserError(f"{name}={value}; must lie between 0 and 1; give a fraction of 1, not percent")
    if sensitivity + specificity <= 1:
        raise UserError(f"sensitivity {sensitivity:.3g} and specificity {specificity:.3g} add up to 1 or less; a judge "
                        "no better than guessing cannot be corrected for; use another judge")  # fmt: skip
    raw = (rate + specificity - 1) / (sensitivity + specificity - 1)
    clipped = min(1.0, max(0.0, raw))
    if n is None or positives is None or negatives is None:
        return CorrectedRate(clipped, raw, None)
    if min(n, positives, negatives) < 1:
        raise UserError(f"n={n}, positives={positives}, negatives={negatives}; each must be at least 1; a rate over no "
                        "cases cannot be corrected")  # fmt: skip
    interval = _interval((rate, n), (sensitivity, positives), (specificity, negatives), confidence)
    return CorrectedRate(clipped, raw, interval)


def _interval(
    rate: tuple[float, int], sensitivity: tuple[float, int], specificity: tuple[float, int], confidence: float
) -> Interval:
    shares = [(value * count + 1) / (count + 2) for value, count in (rate, sensitivity, specificity)]
    variances = [share * (1 - share) / (count + 2) for share, (_, count) in
                 zip(shares, (rate, sensitivity, specificity), strict=True)]  # fmt: skip
    youden = shares[1] + shares[2] - 1
    if youden <= 0:
        return Interval(0.0, 1.0)  # so few labelled cases that the judge may be no better than guessing
    middle = (shares[0] + shares[2] - 1) / youden
    inside = min(1.0, max(0.0, middle))
    spread = variances[0] + inside**2 * variances[1] + (1 - inside) ** 2 * variances[2]
    half = float(ndtri((1 + confidence) / 2) * np.sqrt(spread)) / youden
    return Interval(min(1.0, max(0.0, middle - half)), min(1.0, max(0.0, middle + half)))


def corrected_rates(metrics: Mapping[str, Any], card: Path, judge: str) -> dict[str, Any]:
    """By arm and subset, the rates of a refusal benchmark's ``metrics`` corrected by ``rogan_gladen``.

    ``card`` is a judge_card.json (``task=judge_validation``). The result goes beside the raw rates and replaces none.

    Raises:
        UserError: the card cannot be read or does not measure ``judge``, or the judge is no better than guessing.
    """
    known = _pooled(card, judge)
    sensitivity, specificity = float(known["sensitivity"]), float(known["specificity"])
    positives = int(known["refused"])
    counts = {"positives": positives, "negatives": int(known["n"]) - positives}
    arms: dict[str, dict[str, Any]] = {}
    for name, arm in metrics["arms"].items():
        for subset in REFUSAL_SUBSETS:
            rate, n = arm["refusal_rate"][subset], arm["n_by_subset"][subset][0]
            if rate is not None and n:
                found = rogan_gladen(rate, sensitivity, specificity, n=n, **counts)
                arms.setdefault(name, {})[subset] = found._asdict() | {"impossible": found.impossible}
    return {"judge": judge, "sensitivity": sensitivity, "specificity": specificity, **counts, "arms": arms}


def _pooled(card: Path, judge: str) -> Mapping[str, Any]:
    try:
        judges = json.loads(card.read_text(encoding="utf-8"))["judges"]
        known = {name: one["pooled"] for name, one in judges.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise UserError(
            f"judge_card={card}: is no judge card; task=judge_validation writes judge_card.json; give that file's path"
        ) from None
    if judge not in known:
        raise UserError(
            f"judge_card={card}: does not measure {judge} (it has {', '.join(known)}); "
            f"make one with task=judge_validation judge={judge}"
        )
    return known[judge]
