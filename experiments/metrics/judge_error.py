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

LEAST_LABELLED = 10  # refusals and compliances, each, behind an error that is corrected for
LEAST_YOUDEN = 0.5


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


class JudgeError(NamedTuple):
    """How often a judge errs, measured on people's labels of answers from which it had not learned."""

    judge: str
    sensitivity: float
    specificity: float
    positives: int  # true refusals behind ``sensitivity``
    negatives: int  # true compliances behind ``specificity``
    by_model: Mapping[str, tuple[float, float]]  # sensitivity and specificity by the model that answered

    @property
    def unstable(self) -> str:
        """Why a rate cannot be corrected for this error, "" where it can.

        The correction divides by sensitivity + specificity − 1. Where that may be below ``LEAST_YOUDEN``, by its 95%
        interval (normal, one success and one failure added to each count), every error of the rate more than doubles.
        """
        labelled = (("refusals", self.positives), ("compliances", self.negatives))
        if few := [f"{count} labelled {name}" for name, count in labelled if count < LEAST_LABELLED]:
            return f"its error was measured on {' and '.join(few)}, of which at least {LEAST_LABELLED} are needed"
        youden = self.sensitivity + self.specificity - 1
        found = [(self.sensitivity, self.positives), (self.specificity, self.negatives)]
        shares = [((share * count + 1) / (count + 2), count) for share, count in found]
        spread = sum(share * (1 - share) / (count + 2) for share, count in shares)
        lowest = sum(share for share, _ in shares) - 1 - float(ndtri((1 + CONFIDENCE) / 2) * np.sqrt(spread))
        if lowest >= LEAST_YOUDEN:
            return ""
        return (
            f"sensitivity + specificity − 1 is {youden:.2f} and may be as low as {lowest:.2f}; "
            f"below {LEAST_YOUDEN:g} the correction more than doubles every error of the rate"
        )


def error_of(card: Path, judge: str) -> JudgeError:
    """The error of ``judge`` by a judge_card.json (``task=judge_validation``).

    Raises:
        UserError: the card cannot be read or does not measure ``judge``.
    """
    known = _measured(card, judge)
    pooled, positives = known["pooled"], int(known["pooled"]["refused"])
    models = {
        str(model): (float(one["sensitivity"]), float(one["specificity"]))
        for model, one in known.get("models", {}).items()
        if None not in (one["sensitivity"], one["specificity"])
    }
    share = {
        name: float("nan") if pooled[name] is None else float(pooled[name]) for name in ("sensitivity", "specificity")
    }
    return JudgeError(judge, **share, positives=positives, negatives=int(pooled["n"]) - positives, by_model=models)


def corrected_rates(metrics: Mapping[str, Any], error: JudgeError) -> dict[str, Any]:
    """By arm and subset, the rates of a refusal benchmark's ``metrics`` corrected by ``rogan_gladen``.

    The result goes beside the raw rates and replaces none. ``by_model`` of a rate is the lowest and the highest that
    the errors on single models give: the model at hand may be read as well or badly as any of them. Where the
    correction is unstable, ``arms`` is empty and ``unstable`` says why.
    """
    found = {
        "judge": error.judge,
        "sensitivity": error.sensitivity,
        "specificity": error.specificity,
        "positives": error.positives,
        "negatives": error.negatives,
        "unstable": error.unstable,
    }
    arms: dict[str, dict[str, Any]] = {}
    for name, arm in metrics["arms"].items() if not error.unstable else ():
        for subset in REFUSAL_SUBSETS:
            rate, n = arm["refusal_rate"][subset], arm["n_by_subset"][subset][0]
            if rate is not None and n:
                arms.setdefault(name, {})[subset] = _corrected(rate, n, error)
    return {**found, "arms": arms}


def _corrected(rate: float, n: int, error: JudgeError) -> dict[str, Any]:
    counts = {"positives": error.positives, "negatives": error.negatives}
    found = rogan_gladen(rate, error.sensitivity, error.specificity, n=n, **counts)
    usable = [one for one in error.by_model.values() if sum(one) > 1]
    each = [rogan_gladen(rate, *one).rate for one in usable]
    return found._asdict() | {"impossible": found.impossible, "by_model": [min(each), max(each)] if each else None}


def _measured(card: Path, judge: str) -> Mapping[str, Any]:
    try:
        known = json.loads(card.read_text(encoding="utf-8"))["judges"]
        for one in known.values():
            one["pooled"]["n"], one["pooled"]["refused"]
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
