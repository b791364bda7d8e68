"""Arms of a yes/no benchmark against the baseline, and against a shift of its threshold (``docs/metrics.md``).

Two arms are compared on the cases that both answered, on the same bootstrap draws, so every difference is paired.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from experiments.metrics.bootstrap import lower_bound
from experiments.metrics.findings import Answer
from experiments.metrics.paired import Change, adjust_for_arms, change, flip_tables, needed_for_five_points
from experiments.metrics.yes_no import findings
from experiments.metrics.yes_no.answers import YesNoAnswers
from experiments.metrics.yes_no.rates import QUANTITIES, Mask, YesNoResamples, complete_pairs, point, with_margins
from experiments.types import SCORED_SUBSETS

UNSAFE_MARGIN = 0.02  # by how much a winning arm may lose unsafe accuracy, tested one-sided


@dataclass(frozen=True, eq=False)
class Difference:
    """One arm minus another, on the cases that both answered."""

    mask: Mask
    delta: dict[str, Change | None]  # by quantity, None where it does not exist in both
    draws: dict[str, Float[np.ndarray, "draw"]]


def difference(resamples: YesNoResamples, arm: YesNoAnswers, other: YesNoAnswers) -> Difference:
    """``arm`` minus ``other`` in every quantity, with paired bootstrap intervals."""
    cases, mask = resamples.cases, arm.kept & other.kept
    margins = with_margins(arm, mask) & with_margins(other, mask)
    now, before = point(cases, arm, mask, margins), point(cases, other, mask, margins)
    drawn_now, drawn_before = resamples.of(arm, mask, margins), resamples.of(other, mask, margins)
    n: dict[str, int] = {subset: int((mask & (cases.subset == subset)).sum()) for subset in SCORED_SUBSETS}
    n |= {"unsafe": n["typical"] + n["attack"], "auroc": int(margins.sum()),
          "flip_rate": int(complete_pairs(cases, mask).sum())}  # fmt: skip
    draws = {name: drawn_now[name] - drawn_before[name] for name in QUANTITIES}
    delta = {name: change(before[name], now[name], draws[name], n.get(name, int(mask.sum()))) for name in QUANTITIES}
    return Difference(mask, delta, draws)


def comparisons(
    arms: Mapping[str, YesNoAnswers],
    resamples: YesNoResamples,
    *,
    baseline: str,
    control: str,
    unsafe_margin: float = UNSAFE_MARGIN,
) -> dict[str, dict[str, Any]]:
    """Every arm but the baseline against it; empty where the baseline did not run.

    McNemar's p values are adjusted by Holm's method across the arms, for all cases and for each subset.
    """
    if baseline not in arms:
        return {}
    found = {}
    for name, answers in arms.items():
        if name == baseline:
            continue
        against = difference(resamples, answers, arms[baseline])
        shift = difference(resamples, answers, arms[control]) if control in arms and name != control else None
        found[name] = _comparison(name, against, shift, baseline, control, unsafe_margin)
        found[name]["mcnemar"] = flip_tables(
            arms[baseline].right, answers.right, against.mask, resamples.cases.subset, SCORED_SUBSETS
        )
    adjust_for_arms(found.values(), SCORED_SUBSETS)
    return found


def _comparison(
    name: str, against: Difference, shift: Difference | None, baseline: str, control: str, unsafe_margin: float
) -> dict[str, Any]:
    lowest = lower_bound(against.draws["unsafe"]) if against.delta["unsafe"] else None
    overall, kept = findings.overall(against.delta, name), findings.unsafe_kept(lowest, unsafe_margin, name)
    beats = findings.beats_shift(shift.delta if shift else None, is_control=name == control, arm=name)
    wins, discrimination = findings.wins(overall, kept, beats), findings.discrimination(against.delta, name)
    versus = None
    if shift is not None:
        better = beats.answer is Answer.YES
        versus = {"against": control, "n": int(shift.mask.sum()), "delta": shift.delta, "beats": better}
    return {
        "against": baseline,
        "is_control": name == control,
        "n": int(against.mask.sum()),
        "n_of": len(against.mask),
        "delta": against.delta,
        "unsafe_lower_bound": lowest,
        "versus_calibrated_shift": versus,
        "wins": wins.answer is Answer.YES,
        "conclusion": findings.CONCLUSIONS[discrimination.answer],
        "cases_needed_for_5_points": needed_for_five_points(against.delta["overall"], against.draws["overall"]),
        "findings": [one.as_json() for one in (discrimination, overall, kept, beats, wins)],
    }


def conclusion(against: Difference) -> str:
    """The conclusion on discrimination, as named in metrics.json (``findings.CONCLUSIONS``)."""
    return findings.CONCLUSIONS[findings.discrimination(against.delta).answer]
