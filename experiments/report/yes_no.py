"""metrics.json → rows of text, shared by the terminal and the page so that both print the same numbers.

Numbers as a reader sees them: percentages, intervals, p values. A null becomes ``MISSING``, never a zero.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from experiments.report.numbers import (
    MISSING,
    Interval,
    complete,
    fixed,
    fixed_interval,
    p_value,
    percent,
    percent_interval,
)

ACCURACIES = ("typical", "attack", "over_safety", "overall")
CEILING_MARK = "*"
CONCLUSIONS = {
    "discrimination_rose": "discrimination rose",
    "discrimination_fell": "discrimination fell",
    "only_criterion_moved": "only the criterion moved",
    "nothing_moved": "nothing moved beyond chance",
    "cannot_tell": "whether discrimination changed cannot be told",
}


@dataclass(frozen=True)
class Cell:
    """A number with its 95% interval; ``bounds`` = lowest and highest value that the missing cases allow, if any."""

    value: str
    interval: str = ""
    bounds: str = ""
    note: str = ""


@dataclass(frozen=True)
class ArmRow:
    """One arm of the arms table."""

    name: str
    n: int
    n_of: int
    accuracies: Mapping[str, Cell]  # by ACCURACIES
    d_prime: Cell
    criterion: Cell
    auroc: Cell
    flip_rate: Cell


@dataclass(frozen=True)
class ComparisonRow:
    """One arm's paired differences against its reference arm (``against``), over the ``n`` cases both answered."""

    name: str
    against: str
    n: int | None
    deltas: Mapping[str, Cell]  # overall, unsafe, over_safety, auroc, d_prime, flip_rate
    fixed: int | None
    broken: int | None
    p: str
    p_holm: str
    wins: str
    reasons: tuple[str, ...]
    conclusion: str
    cases_needed: int | None


def arm_rows(metrics: Mapping[str, Any]) -> list[ArmRow]:
    """The arms in the order of metrics.json."""
    return [_arm_row(name, arm) for name, arm in metrics["arms"].items()]


def comparison_rows(metrics: Mapping[str, Any]) -> list[ComparisonRow]:
    """The compared arms in the order of metrics.json; empty where the run has a single arm."""
    return [_comparison_row(name, comparison) for name, comparison in (metrics.get("comparisons") or {}).items()]


def _arm_row(name: str, arm: Mapping[str, Any]) -> ArmRow:
    intervals = arm["intervals"]
    mark = CEILING_MARK if arm.get("near_ceiling") else ""
    d_prime = fixed(arm.get("d_prime"), 2)
    return ArmRow(
        name=name,
        n=arm["n"],
        n_of=arm["n_of"],
        accuracies={key: _rate_cell(arm, arm["accuracy"].get(key), key) for key in ACCURACIES},
        d_prime=Cell(d_prime + mark if d_prime != MISSING else d_prime, fixed_interval(intervals.get("d_prime"))),
        criterion=Cell(fixed(arm.get("criterion"), 2), fixed_interval(intervals.get("criterion"))),
        auroc=Cell(
            fixed(arm.get("auroc"), 3), fixed_interval(intervals.get("auroc")), note=arm.get("auroc_note") or ""
        ),
        flip_rate=_rate_cell(arm, arm.get("flip_rate"), "flip_rate"),
    )


def _rate_cell(arm: Mapping[str, Any], rate: float | None, key: str) -> Cell:
    bounds: Interval = (arm.get("bounds") or {}).get(key)
    ends = complete(bounds)
    wide = ends is not None and percent(ends[0]) != percent(ends[1])  # equal ends: nothing was missing
    return Cell(percent(rate), percent_interval(arm["intervals"].get(key)), percent_interval(bounds, 1) if wide else "")


def _comparison_row(name: str, comparison: Mapping[str, Any]) -> ComparisonRow:
    test = comparison.get("mcnemar") or {}
    wins = comparison.get("wins")
    return ComparisonRow(
        name=name,
        against=comparison["against"],
        n=comparison.get("n"),
        deltas={key: _delta_cell(key, delta) for key, delta in (comparison.get("delta") or {}).items()},
        fixed=test.get("fixed"),
        broken=test.get("broken"),
        p=p_value(test.get("p")),
        p_holm=p_value(test.get("p_holm")),
        wins=MISSING if wins is None else ("yes" if wins else "no"),
        reasons=tuple(comparison.get("wins_reasons") or ()),
        conclusion=CONCLUSIONS.get(comparison.get("conclusion") or "", str(comparison.get("conclusion") or "")),
        cases_needed=comparison.get("cases_needed_for_5_points"),
    )


def _delta_cell(key: str, delta: Mapping[str, Any] | None) -> Cell:
    if delta is None:
        return Cell(MISSING)
    ends = (delta.get("low"), delta.get("high"))
    if key in ("auroc", "d_prime"):
        digits = 3 if key == "auroc" else 2
        return Cell(fixed(delta.get("value"), digits, sign=True), fixed_interval(ends, digits))
    return Cell(percent(delta.get("value"), sign=True), percent_interval(ends, 1))
