"""Numbers as a reader sees them: percentages, differences, intervals, p values. The only place that formats them.

A missing number becomes ``MISSING``, never a zero; a minus sign is a true one, and a rounded zero carries no sign.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

MISSING = "n/a"
MINUS = "\N{MINUS SIGN}"
TO = "\N{EN DASH}"

Interval = Sequence[float | None] | None  # (low, high) as metrics.json keeps it


def fixed(value: float | None, digits: int, *, sign: bool = False) -> str:
    """``value`` with ``digits`` decimals."""
    if value is None or math.isnan(value):
        return MISSING
    text = f"{value:+.{digits}f}" if sign else f"{value:.{digits}f}"
    if float(text) == 0:
        text = text.lstrip("+-")
    return text.replace("-", MINUS)


def percent(rate: float | None, digits: int = 1, *, sign: bool = False) -> str:
    """A fraction of 1 as percent (or, for differences, percentage points), without the sign %."""
    return fixed(None if rate is None else 100 * rate, digits, sign=sign)


def share(rate: float | None) -> str:
    """A fraction of 1 in percent, with the sign %: ``44.1%``."""
    text = percent(rate)
    return text if text == MISSING else f"{text}%"


def points(difference: float, *, unit: str = " points") -> str:
    """A difference of fractions of 1 in percentage points, signed: ``+4.4 points``."""
    return percent(difference, sign=True) + unit


def complete(interval: Interval) -> tuple[float, float] | None:
    """The two ends of ``interval``, or None where either is missing."""
    if interval is None or len(interval) != 2:
        return None
    low, high = interval
    return None if low is None or high is None else (float(low), float(high))


def interval_of(entry: Mapping[str, Any]) -> tuple[float, float] | None:
    """The ends of a difference's interval, None where it has none."""
    return complete((entry["low"], entry["high"]))


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


def within(interval: Interval) -> str:
    """The interval of a rate in the middle of a sentence: `` (95% interval 40.0% to 48.2%)``, or that it has none."""
    ends = complete(interval)
    if ends is None:
        return " (too few cases for an interval)"
    return f" (95% interval {share(ends[0])} to {share(ends[1])})"


def brief(entry: Mapping[str, Any] | None, *, of_rates: bool = True, named: bool = False) -> str:
    """A difference with its 95% interval in brackets: "+4.4 points [−2.0, +10.8]"; plain, not of rates.

    With ``named`` it says what the brackets hold: "+4.4 points [95% interval −2.0 to +10.8]" (``interval_name``). An
    end that is not 0 is not rounded to it: a reader shall see on which side it lies.
    """
    if entry is None:
        return "not available"
    scale, digits, unit = (100, 1, " points") if of_rates else (1, 3, "")
    value = fixed(scale * entry["value"], digits, sign=True) + unit
    ends = interval_of(entry)
    if ends is None:
        return value

    def end(value: float) -> str:
        shown = digits
        while value and shown < digits + 2 and round(scale * value, shown) == 0:
            shown += 1
        return fixed(scale * value, shown, sign=True)

    low, high = map(end, ends)
    return f"{value} [{f'{interval_name(entry)} {low} to {high}' if named else f'{low}, {high}'}]"


def interval_name(entry: Mapping[str, Any]) -> str:
    """What the interval of a difference is called: by its level, or that it is one of many that hold at once."""
    return "simultaneous interval" if entry.get("of", 1) > 1 else f"{100 * entry.get('level', 0.95):g}% interval"


def p_value(p: float | None) -> str:
    """Three decimals, or ``<0.001``."""
    if p is None:
        return MISSING
    return "<0.001" if p < 0.001 else f"{p:.3f}"
