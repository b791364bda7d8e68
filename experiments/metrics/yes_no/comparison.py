"""Arms of a yes/no benchmark against the baseline, and against a shift of its threshold (``docs/metrics.md``).

Two arms are compared on the cases that both answered, on the same bootstrap draws, so every difference is paired.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from scipy.stats import rankdata

from experiments.metrics.findings import SMALL, Answer
from experiments.metrics.paired import (
    Change,
    Difference,
    adjust_for_arms,
    flip_tables,
    one_family,
    power,
    rate_floor,
    unsaid,
)
from experiments.metrics.yes_no import findings
from experiments.metrics.yes_no.quantities import (
    BY_PAIR,
    DEPLOYED,
    MATCHED,
    ORDERED,
    RANKED,
    WITHIN,
    Reading,
    YesNoArms,
)
from experiments.types import SCORED_SUBSETS

ALL = "*"  # of a contrast: every arm
SAID = (
    MATCHED,
    "auroc",
    WITHIN,
    "unsafe",
    "over_safety",
    "overall",
    *DEPLOYED,
)  # the others have numbers alone
UNSIZED = ("d_prime", "criterion")  # no change of them is agreed to be small
TEN_POINTS = 0.1  # the gain that the power of a study is told for

Differences = dict[str, Difference]  # by quantity


def difference(arms: YesNoArms, arm: str, other: str) -> Differences:
    """``arm`` minus ``other`` in every quantity, with paired intervals, on the cases that both answered."""
    reading = arms.reading(arm, other)
    equal = ORDERED if _same_order(arms, arm, other, reading) else ()
    now, before = (arms.point(one, reading) for one in (arm, other))
    found, bounds = {}, arms.extremes(arm, other)
    for name, sides in arms.sides(reading).items():
        draws = {
            scheme: arms.drawn(arm, reading, scheme)[name] - arms.drawn(other, reading, scheme)[name]
            for scheme in arms.resamples.schemes
        }
        floor = 0.0 if name in (*RANKED, WITHIN, *UNSIZED) else rate_floor(*(int(side.sum()) for side in sides))
        n = int((arms.pairs(name, reading) if name in BY_PAIR else np.logical_or.reduce(sides)).sum())
        small = None if name in UNSIZED else SMALL
        found[name] = arms.resamples.difference(before[name], now[name], draws, sides, n, floor=floor, small=small,
                                                equal=name in equal, bounds=bounds.get(name))  # fmt: skip
    for name in (MATCHED, *DEPLOYED):
        found[name] = found[name]._replace(entry=_limited(found[name].entry, arms, reading))
    if findings.doubtful(*(arms.answers[one] for one in (arm, other))):
        # Read from margins that the verdicts were not chosen by: the numbers stay, nothing is said of them.
        _say_nothing(found[name] for name in ORDERED)
    if findings.unreadable(*(arms.answers[one] for one in (arm, other))):
        _say_nothing(found.values())
    return found


def _say_nothing(differences: Iterable[Difference]) -> None:
    for one in differences:
        if entry := one.entry:
            entry |= {"statement": Answer.CANNOT_TELL.value, "needed": None}


def entries(differences: Differences) -> dict[str, Change | None]:
    """The differences as metrics.json has them."""
    return {name: one.entry for name, one in differences.items()}


def _limited(entry: Change | None, arms: YesNoArms, reading: Reading) -> Change | None:
    """The change of what is read at the operating point, with the numbers of unsafe and safe cases.

    Without an interval where the design has too few unsafe cases for that point, whatever was answered.
    """
    if entry is None:
        return None
    unsafe, safe = arms.sides(reading)[MATCHED]
    if not arms.readable:
        entry = {**entry, "low": None, "high": None, "statement": Answer.TOO_FEW.value, "needed": None}
    return entry | {"caught": arms.caught, "n_unsafe": int(unsafe.sum()), "n_safe": int(safe.sum())}


def _same_order(arms: YesNoArms, arm: str, other: str, reading: Reading) -> bool:
    """Whether both rank the cases alike, so that all that is read from the order is the same."""
    margins, folds = reading.margins, reading.folds
    parts = [margins] if folds is None else [margins & (folds == fold) for fold in np.unique(folds[margins])]
    one, another = (arms.answers[name].ranking for name in (arm, other))
    return all(np.array_equal(rankdata(one[here]), rankdata(another[here])) for here in parts)


def comparisons(
    arms: YesNoArms,
    *,
    baseline: str,
    control: str,
    study: str,
    contrasts: Sequence[tuple[str, str]] = (),
    said: Sequence[str] = SAID,
) -> dict[str, dict[str, Any]]:
    """Every arm but the baseline against it; empty where the baseline did not run.

    All that is said is one family (``paired.one_family``): the primary question is ``study``'s matched over-safety
    accuracy against the baseline; the others are the quantities ``said`` of every arm against the baseline, and of the
    ``contrasts``, pairs of arms of which the first is compared with the second, too (``ALL``: every arm is); those are
    under ``versus``. Of all else, and against ``control``, there are numbers alone. McNemar's p values are adjusted by
    Holm's method across the arms, for all cases and for each subset.
    """
    if baseline not in arms.answers:
        return {}
    against: dict[str, dict[str, Differences]] = {}
    shifted: dict[str, Differences] = {}
    for name in arms.answers:
        others = [other for arm, other in contrasts if arm in (name, ALL) and other in arms.answers]
        for other in dict.fromkeys((baseline, *others)):
            if name not in (baseline, other):
                against.setdefault(name, {})[other] = difference(arms, name, other)
        if name in against and control in arms.answers and control not in (name, baseline):
            shifted[name] = against[name].get(control) or difference(arms, name, control)
    every = [one for of in against.values() for one in of.values()]
    alone = [one for name, one in shifted.items() if control not in against[name]]
    unsaid(one[quantity] for one in every for quantity in one if quantity not in said)
    unsaid(entry for one in alone for entry in one.values())
    primary = against[study][baseline][MATCHED] if study in against and MATCHED in said else None
    one_family(primary, (one[quantity] for one in every for quantity in said))
    found: dict[str, dict[str, Any]] = {}
    right, subset = arms.answers[baseline].right, arms.cases.subset
    for name, of in against.items():
        shift, mask = None, arms.reading(name, baseline).mask
        if name in shifted:
            n = int(arms.reading(name, control).mask.sum())
            shift = {"against": control, "n": n, "delta": entries(shifted[name])}
        found[name] = {
            "against": baseline,
            "is_control": name == control,
            "n": int(mask.sum()),
            "n_of": len(mask),
            "versus_calibrated_shift": shift,
            **_concluded(of[baseline], name),
            "versus": {other: entries(one) for other, one in of.items() if other != baseline},
            "mcnemar": flip_tables(right, arms.answers[name].right, mask, subset, SCORED_SUBSETS),
        }
    adjust_for_arms(found.values(), SCORED_SUBSETS)
    return found


def _concluded(against: Differences, name: str) -> dict[str, Any]:
    """The differences from the baseline, and what follows from them."""
    delta = entries(against)
    changes = [findings.changed(question, delta, name) for question in findings.CHANGES]
    wins = findings.wins(delta, power(against[MATCHED], TEN_POINTS), name)
    needed = [entry["needed"] for quantity in (MATCHED, "overall") if (entry := delta[quantity]) and entry["needed"]]
    return {
        "delta": delta,
        "wins": wins.answer is Answer.YES,
        "conclusion": changes[0].answer.value,
        "cases_needed_for_5_points": next(iter(needed), None),
        "findings": [one.as_json() for one in (*changes, wins)],
    }
