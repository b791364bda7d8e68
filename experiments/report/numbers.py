"""Numbers as a reader sees them: percentages, differences, intervals, p values. The only place that formats them.

A missing number becomes ``MISSING``, never a zero; a minus sign is a true one, and a rounded zero carries no sign.
"""

import math
from collections.abc import Sequence

MISSING = "n/a"
MINUS = "\N{MINUS SIGN}"
TO = "\N{EN DASH}"

Interval = Sequence[float | None] | None  # (low, high)


def fixed(value: float | None, digits: int, *, sign: bool = False) -> str:
    """Return ``value`` with ``digits`` decimals."""
    if value is None or math.isnan(value):
        return MISSING
    text = f"{value:+.{digits}f}" if sign else f"{value:.{digits}f}"
    if float(text) == 0:
        text = text.lstrip("+-")
    return text.replace("-", MINUS)


def percent(rate: float | None, digits: int = 1, *, sign: bool = False) -> str:
    """Return a fraction of 1 as percent (or, for differences, percentage points), without the sign %."""
    return fixed(None if rate is None else 100 * rate, digits, sign=sign)


def share(rate: float | None) -> str:
    """Return a fraction of 1 in percent, with the sign %: ``44.1%``."""
    text = percent(rate)
    return text if text == MISSING else f"{text}%"


def span(numbers: Interval, digits: int, factor: float = 1, *, sign: bool = False) -> str:
    """Return numbers from low to high: ``88–94``, with signs ``−3.6, +12.5``. None is ""."""
    ends = [fixed(number if number is None else factor * number, digits, sign=sign) for number in numbers or ()]
    return (", " if sign or MINUS in "".join(ends) else TO).join(ends)


def p_value(p: float | None) -> str:
    """Return a p value with three decimals, or ``<0.001``."""
    if p is None:
        return MISSING
    return "<0.001" if p < 0.001 else f"{p:.3f}"
