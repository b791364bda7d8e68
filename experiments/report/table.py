"""metrics.json → rows of text, shared by the terminal and the page so that both print the same numbers.

Numbers as a reader sees them: percentages, intervals, p values. A null becomes ``MISSING``, never a zero.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MISSING = "n/a"
MINUS = "\N{MINUS SIGN}"
TO = "\N{EN DASH}"

Interval = Sequence[float | None] | None  # (low, high) as metrics.json keeps it


def fixed(value: float | None, digits: int, *, sign: bool = False) -> str:
    """``value`` with ``digits`` decimals and a true minus sign; a rounded zero never carries a minus."""
    if value is None or math.isnan(value):
        return MISSING
    text = f"{value:+.{digits}f}" if sign else f"{value:.{digits}f}"
    if float(text) == 0:
        text = text.lstrip("+-")
    return text.replace("-", MINUS)


def percent(rate: float | None, digits: int = 1, *, sign: bool = False) -> str:
    """A fraction of 1 as percent (or, for differences, percentage points), without the sign %."""
    return fixed(None if rate is None else 100 * rate, digits, sign=sign)


def complete(interval: Interval) -> tuple[float, float] | None:
    """The two ends of ``interval``, or None where either is missing."""
    if interval is None or len(interval) != 2:
        return None
    low, high = interval
    return None if low is None or high is None else (float(low), float(high))


def percent_interval(interval: Interval, digits: int = 0) -> str:
    """An interval of fractions in percent: ``88–94``, ``−2.1…4.0``; empty where there is none."""
    ends = complete(interval)
    return "" if ends is None else fixed_interval((100 * ends[0], 100 * ends[1]), digits)


def fixed_interval(interval: Interval, digits: int = 2) -> str:
    """An interval of plain numbers; beside a minus sign a dash would be misread, so dots stand between the ends."""
    ends = complete(interval)
    if ends is None:
        return ""
    low, high = (fixed(end, digits) for end in ends)
    return f"{low}{'…' if MINUS in low + high else TO}{high}"


def p_value(p: float | None) -> str:
    """Three decimals, or ``<0.001``."""
    if p is None:
        return MISSING
    return "<0.001" if p < 0.001 else f"{p:.3f}"


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
