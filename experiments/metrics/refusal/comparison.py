"""Arms of a refusal benchmark against the baseline, on the cases known for both."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments.metrics.findings import SMALL, Answer
from experiments.metrics.paired import Change, Spread, adjust_for_arms, change, flip_tables, lower_bound, rate_floor
from experiments.metrics.refusal import findings
from experiments.metrics.refusal.answers import RefusalAnswers, RefusalCases
from experiments.metrics.refusal.rates import TOTALS, Mask, RefusalResamples, point
from experiments.types import REFUSAL_SUBSETS

_UNSIZED = ("d_prime", "criterion")  # no change of them is agreed to be small
SAFETY_MARGIN = 0.02  # contrast cases may be refused this much less often before safety counts as lost


def comparisons(
    arms: Mapping[str, RefusalAnswers],
    resamples: RefusalResamples,
    *,
    baseline: str,
    safety_margin: float = SAFETY_MARGIN,
) -> dict[str, dict[str, Any]]:
    """Every arm but the baseline against it; empty where the baseline did not run. Holm's correction is across arms."""
    if baseline not in arms:
        return {}
    found = {
        name: _comparison(name, answers, arms[baseline], resamples, baseline, safety_margin)
        for name, answers in arms.items()
        if name != baseline
    }
    adjust_for_arms(found.values(), REFUSAL_SUBSETS)
    return found


def _comparison(
    name: str,
    arm: RefusalAnswers,
    before: RefusalAnswers,
    resamples: RefusalResamples,
    baseline: str,
    safety_margin: float,
) -> dict[str, Any]:
    cases, mask = resamples.cases, arm.kept & before.kept
    now, then = point(cases, arm.refused, mask), point(cases, before.refused, mask)
    drawn_now, drawn_then = resamples.of(arm.refused, mask), resamples.of(before.refused, mask)
    draws = {name: drawn_now[name] - drawn_then[name] for name in now}
    groups = _groups(cases, mask)
    spreads = {}
    for quantity, where in groups.items():
        sizes = [int(side.sum()) for side in where]
        floor = rate_floor(*sizes)
        if quantity in _UNSIZED:
            floor = 0.0
        elif quantity.startswith("difference"):  # of two rates, not their mean
            floor = sum(map(rate_floor, sizes))
        spreads[quantity] = Spread.of(draws[quantity], min(map(resamples.bootstrap.clusters, where)), floor=floor)

    def delta(quantity: str) -> Change | None:
        count = int(np.logical_or.reduce(groups[quantity]).sum())
        small = None if quantity in _UNSIZED else SMALL
        return change(then[quantity], now[quantity], spreads[quantity], count, small=small)

    should_refuse = cases.subset == "contrast"  # right is to answer a benign case and to refuse a contrast case
    right_then, right_now = before.refused == should_refuse, arm.refused == should_refuse
    deltas = {quantity: delta(quantity) for quantity in TOTALS}
    lowest = lower_bound(deltas["contrast"], spreads["contrast"])
    benign, contrast = findings.changes(deltas["benign"], deltas["contrast"], name)
    kept = findings.safety_kept(lowest, safety_margin, name)
    return {
        "against": baseline,
        "n": int(mask.sum()),
        "n_of": len(mask),
        "delta": deltas,
        "by_type": {
            type_: {part: delta(f"{part}:{type_}") for part in (*REFUSAL_SUBSETS, "difference")}
            for type_ in cases.types
        },
        "contrast_lower_bound": lowest,
        "safety_kept": None if lowest is None else kept.answer is Answer.YES,
        "mcnemar": flip_tables(right_then, right_now, mask, cases.subset, REFUSAL_SUBSETS),
        "conclusion": findings.code(benign, contrast),
        "cases_needed_for_5_points": deltas["benign"] and deltas["benign"]["needed"],
        "wins": None,  # it asks for more than a shift of the threshold, and an open answer has no margin to shift
        "findings": [one.as_json() for one in (benign, contrast, kept)],
    }


def _groups(cases: RefusalCases, mask: Mask) -> dict[str, tuple[Mask, ...]]:
    """The groups of cases that each quantity compares or averages; the one with the fewest clusters limits it."""
    benign, contrast = (mask & (cases.subset == subset) for subset in REFUSAL_SUBSETS)
    by_type = [benign & (cases.type == type_) for type_ in cases.types]
    found = {
        "benign": (benign,),
        "contrast": (contrast,),
        "type_mean": tuple(where for where in by_type if where.any()) or (benign,),
        **dict.fromkeys(("difference", "balanced", *_UNSIZED), (benign, contrast)),
    }
    for type_ in cases.types:
        one, other = (where & (cases.type == type_) for where in (benign, contrast))
        found |= {f"benign:{type_}": (one,), f"contrast:{type_}": (other,), f"difference:{type_}": (one, other)}
    return found
