"""Decide what may be claimed of a difference, from its interval (``docs/metrics.md``, "Claims")."""

from collections.abc import Mapping
from typing import Any

from experiments.metrics.bootstrap import FEWEST

CLAIMS = ("higher", "lower", "no relevant difference", "inconclusive", "too few cases")
HIGHER, LOWER, NO_DIFFERENCE, INCONCLUSIVE, TOO_FEW = CLAIMS
NOT_TESTED = "not tested"  # the number is given, and nothing is claimed

RULES = 5  # version of the rules, kept with every run; a run without it was concluded under earlier rules
SMALL = 0.02  # δ: 2 points of a rate, .02 of an AUROC; a difference within ± δ is not relevant
_ROUNDING = 1e-4  # an end of an interval this near to 0 counts as 0: float32 margins round by that much


def claim_of(entry: Mapping[str, Any] | None, *, small: float | None = SMALL) -> str:
    """Return the claim about a difference; "" if the number does not exist.

    Args:
        entry: ``value``, ``low`` and ``high``. Optional: ``clusters`` (of the smaller side) and ``bounds``, the lowest
            and highest value that missing cases allow. A claim must hold at both bounds.
        small: δ in the unit of the value; None if no size counts as small, as for logits.
    """
    if entry is None or entry["value"] is None:
        return ""
    if entry.get("clusters") is not None and entry["clusters"] < FEWEST:
        return TOO_FEW
    low, high = entry["low"], entry["high"]
    if low is None or high is None:
        return INCONCLUSIVE
    lowest, highest = entry.get("bounds") or (entry["value"], entry["value"])
    if low > _ROUNDING and lowest > 0:
        return HIGHER
    if high < -_ROUNDING and highest < 0:
        return LOWER
    contains_zero = low <= _ROUNDING and high >= -_ROUNDING
    both_small = is_small(entry, small) and is_small({"low": lowest, "high": highest}, small)
    return NO_DIFFERENCE if contains_zero and both_small else INCONCLUSIVE


def is_small(entry: Mapping[str, Any], small: float | None = SMALL) -> bool:
    """Return whether the interval of ``entry`` lies within ± ``small``."""
    low, high = entry["low"], entry["high"]
    return small is not None and low is not None and high is not None and -small <= low and high <= small


def side(entry: Mapping[str, Any], reference: float = 0.0) -> int:
    """Return 1 if the whole interval of ``entry`` lies above ``reference``, −1 if it lies below, else 0."""
    if entry["low"] is None or entry["high"] is None:
        return 0
    return int(entry["low"] > reference) - int(entry["high"] < reference)
