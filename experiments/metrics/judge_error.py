"""Refusal rates corrected for the error of the judge that counted them (Rogan and Gladen 1978)."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.special import ndtri

from experiments.metrics.bootstrap import CONFIDENCE, Interval
from experiments.runs.results_table import Results, Row, row
from experiments.types import REFUSAL_SUBSETS, Verdict
from interp.errors import UserError
from interp.thoughts import split

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

        The correction divides by sensitivity + specificity − 1. Where that may be below ``LEAST_YOUDEN``, by its 95%
        interval (normal, one success and one failure added to each count), every error of the rate more than doubles.
        """
        labelled = (("refusals", self.positives), ("compliances", self.negatives))
        if few := [f"{count} labelled {name}" for name, count in labelled if count < LEAST_LABELLED]:
            return f"its error was measured on {' and '.join(few)}, of which at least {LEAST_LABELLED} are needed"
        (seen, spread), (left, other) = self._adjusted
        lowest = seen + left - 1 - _NORMAL * float(np.sqrt(spread + other))
        if lowest >= LEAST_YOUDEN:
            return ""
        return (
            f"sensitivity + specificity − 1 is {self.sensitivity + self.specificity - 1:.2f} and may be as low as "
            f"{lowest:.2f}; below {LEAST_YOUDEN:g} the correction more than doubles every error of the rate"
        )

    @property
    def _adjusted(self) -> list[tuple[float, float]]:
        return [_adjusted(self.sensitivity, self.positives), _adjusted(self.specificity, self.negatives)]

    def corrected(self, rate: float, n: int) -> dict[str, Any]:
        """The share ``rate`` of ``n`` answers that the judge calls refusals, corrected and clipped to 0 … 1.

        ``unclipped`` outside 0 to 1 (``impossible``) suggests that the measured error does not hold here. ``interval``
        is by the delta method over the counts behind all three numbers, with one success and one failure added to
        each: at rates of 0 and 1 the plain method would have no width. It assumes independent cases, and answers like
        those on which the judge's error was measured. ``by_model`` is the lowest and the highest that the errors on
        single models give: the model at hand may be read as well or badly as any of them.
        """
        raw = rogan_gladen(rate, self.sensitivity, self.specificity)
        (share, spread), (seen, by_seen), (left, by_left) = _adjusted(rate, n), *self._adjusted
        middle, youden = rogan_gladen(share, seen, left), seen + left - 1
        half = _NORMAL * np.sqrt(spread + _clipped(middle) ** 2 * by_seen + (1 - _clipped(middle)) ** 2 * by_left)
        each = [_clipped(rogan_gladen(rate, *one)) for one in self.by_model.values() if sum(one) > 1]
        return {
            "rate": _clipped(raw),
            "unclipped": raw,
            "interval": Interval(_clipped(middle - half / youden), _clipped(middle + half / youden)),
            "impossible": not 0 <= raw <= 1,
            "by_model": [min(each), max(each)] if each else None,
        }


def rogan_gladen(rate: float, sensitivity: float, specificity: float) -> float:
    """(rate + specificity − 1) / (sensitivity + specificity − 1), for a judge that is better than chance."""
    return (rate + specificity - 1) / (sensitivity + specificity - 1)


def _clipped(rate: float) -> float:
    return min(1.0, max(0.0, float(rate)))


def _adjusted(share: float, count: int) -> tuple[float, float]:
    """A share with one success and one failure added, and its variance."""
    adjusted = (share * count + 1) / (count + 2)
    return adjusted, adjusted * (1 - adjusted) / (count + 2)


def unlike_measured(frame: pd.DataFrame, card: Path, judge: str) -> dict[str, Any]:
    """What the card says of the ``words`` of the answers it measured (1st and 99th percentile), and by arm whose median
    answer is outside: the ``median`` and how many of ``n`` answers are ``shorter`` and ``longer``. Else empty.

    Columns of ``frame``: arm, response, verdict; answers that were judged count, in English.
    """
    ends = json.loads(card.read_text(encoding="utf-8"))["judges"][judge].get("answer_words")
    if not ends or not {"response", "verdict"} <= set(frame):
        return {}
    shortest, longest = ends["0.01"], ends["0.99"]
    judged = frame[frame["response"].notna() & ~frame["verdict"].isin(["", None, Verdict.JUDGE_FAILED])]
    arms = dict[str, dict[str, Any]]()
    for arm, answers in judged.groupby("arm", sort=False):
        words = answers["response"].map(lambda text: len(split(str(text)).answer.split()))
        if not shortest <= (median := float(words.median())) <= longest:
            counts = {"shorter": int((words < shortest).sum()), "longer": int((words > longest).sum())}
            arms[str(arm)] = {"n": len(words), "median": median, **counts}
    return {"words": [shortest, longest], "arms": arms} if arms else {}


def error_of(card: Path, judge: str) -> JudgeError:
    """The error of ``judge`` by a judge_card.json (``task=judge_validation``).

    Raises:
        UserError: the card cannot be read or does not measure ``judge``.
    """
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
    pooled, parts = known[judge]["pooled"], known[judge].get("models", {})
    positives = int(pooled["refused"])
    seen, left = (np.nan if pooled[name] is None else float(pooled[name]) for name in ("sensitivity", "specificity"))
    each = {str(model): (one["sensitivity"], one["specificity"]) for model, one in parts.items() if _enough(one)}
    by_model = {model: pair for model, pair in each.items() if None not in pair}
    return JudgeError(judge, seen, left, positives, int(pooled["n"]) - positives, by_model)


def _enough(one: Mapping[str, Any]) -> bool:
    """Whether a model's answers have enough of both kinds: from one refusal a judge finds all or none."""
    return "n" not in one or LEAST_LABELLED <= one["refused"] <= one["n"] - LEAST_LABELLED


def corrected_rates(results: Results, error: JudgeError) -> tuple[dict[str, Any], list[Row]]:
    """Return the error in plain values, and each arm's refusal rates corrected for it as rows of the results table.

    The rows stand next to the raw rates and replace none. ``bound_low`` and ``bound_high`` are the lowest and highest
    rate that the errors on single models give. If the correction is unstable there are no rows, and ``unstable`` says
    why.
    """
    fields = ("judge", "sensitivity", "specificity", "positives", "negatives")
    plain: dict[str, Any] = {name: getattr(error, name) for name in fields} | {"unstable": error.unstable}
    rows = []
    for arm in results.arms if not plain["unstable"] else ():
        for subset in REFUSAL_SUBSETS:
            raw = results.get(arm, "refusal_rate", subset=subset)
            if raw is not None and raw.value is not None and raw.n:
                rate = error.corrected(raw.value, int(raw.n))
                low, high = rate["by_model"] or (None, None)
                rows.append(row("refusal_rate", arm=arm, subset=subset, rule=CORRECTED, value=rate["rate"], n=raw.n,
                                low=rate["interval"].low, high=rate["interval"].high, bound_low=low,
                                bound_high=high))  # fmt: skip
    return plain, rows
