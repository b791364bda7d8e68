"""Compare two arms on the same cases: paired differences, intervals that hold for all at once, and claims.

Two arms are compared on the cases that both answered and on the same bootstrap draws, so every difference is paired
(``docs/metrics.md``, "Comparisons").
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtr
from scipy.stats import rankdata

from experiments.metrics.bootstrap import CONFIDENCE, Draws, Needed, Weights, units_needed
from experiments.metrics.estimates import (
    CLAIMS,
    INCONCLUSIVE,
    NOT_TESTED,
    SMALL,
    TOO_FEW,
    ByScheme,
    Entry,
    Resamples,
    StandardError,
    change_entry,
    claim_of,
    student_quantile,
)
from experiments.metrics.outcomes import Outcomes
from experiments.metrics.quantities import GAP, Arms, Key, Reading
from experiments.types import REFUSAL_SUBSETS, Verdict

# Of a variance over two factors, a sum of three estimates: simulated 17 to 20 with 24 sentences.
TWO_WAY_FREEDOM = 0.75
MOST_UNREADABLE = 0.1  # of answers; from there on nothing is claimed
MOST_DISAGREEING = 0.01  # of greedy verdicts; with more of them, margins are not what the verdicts were chosen by


@dataclass
class Difference:
    """A difference: its ``entry`` (None if it does not exist), its standard error and its draws.

    ``entry`` has value, low, high, level, n, clusters, claim; ``from`` and ``to`` (the levels of both arms on these
    cases). It has ``bounds`` if answers are missing, and ``needed`` (``units_for_five_points``).
    """

    entry: Entry | None
    error: StandardError
    draws: Draws  # of what it varies most over
    small: float | None = SMALL

    @property
    def claim(self) -> str:
        """What is claimed; "" if the difference does not exist."""
        return self.entry["claim"] if self.entry else ""

    @property
    def lower_bound(self) -> float | None:
        """The one-sided lower 95% bound; None without an interval."""
        if self.entry is None:
            return None
        low: float | None = self.error.ends(self.entry["value"], confidence=2 * CONFIDENCE - 1)["low"]
        return low

    def at_level(self, level: float) -> None:
        """Give the interval this level, and claim by it what was claimed by the earlier one."""
        entry = self.entry
        if entry is not None:
            entry |= self.error.ends(entry["value"], confidence=level, most=math.inf if self.small is None else 1.0)
            entry["level"] = level
            if entry["claim"] in CLAIMS:
                entry["claim"] = claim_of(entry, small=self.small)
                entry["needed"] = units_for_five_points(self.error, entry["n"], entry["claim"], self.small, level)

    def retract(self, *, even_too_few: bool = False) -> None:
        """Take back the claim; the number stays."""
        if self.entry is not None and self.claim and (even_too_few or self.claim != TOO_FEW):
            self.entry.update(claim=NOT_TESTED, needed=None)


def difference(
    resamples: Resamples, before: float | None, after: float | None, draws: ByScheme, sides: Sequence[Weights | None],
    n: int, *, floor: float = 0.0, small: float | None = SMALL, equal: bool = False,
    bounds: tuple[float, float] | None = None,
) -> Difference:  # fmt: skip
    """Return ``after`` − ``before`` on ``n`` cases with its 95% interval and its claim.

    Args:
        resamples: of the cases.
        before: level of the arm that is compared with.
        after: level of the arm.
        draws: of the difference.
        sides: the groups of cases that it compares or averages.
        n: cases.
        floor: a variance that is added (``estimates.rate_floor``).
        small: δ in the unit of the quantity, None without one.
        equal: both arms are the same by construction, so the difference is 0 and not estimated.
        bounds: the lowest and highest difference that missing answers allow.
    """
    error, loudest = resamples.spread(draws, sides, floor=floor), resamples.loudest(draws)
    if before is None or after is None:
        return Difference(None, error, loudest, small)
    entry = change_entry(after - before, error, n, small=small, equal=equal, bounds=bounds)
    needed = units_for_five_points(error, n, entry["claim"], small)
    return Difference(
        entry | {"level": CONFIDENCE, "from": before, "to": after, "needed": needed}, error, loudest, small
    )


def units_for_five_points(
    error: StandardError, n: int, claim: str, small: float | None, confidence: float = CONFIDENCE
) -> Needed | None:
    """Return how many sentences or cases a difference of 5 points needs, if ``n`` cases are inconclusive; else None.

    Sentences are counted if they are resampled: more cases of the same ones do not help.
    """
    if claim != INCONCLUSIVE or small is None or not error.error or not n:
        return None
    freedom = error.freedom * (TWO_WAY_FREEDOM if error.sentences else 1)
    return units_needed(error.error, error.sentences or n, error.clusters, freedom=freedom, confidence=confidence)


def one_family(primary: Difference | None, further: Iterable[Difference]) -> None:
    """Correct all claims of a report together, so that at most 5% of reports contain a false one.

    Half of the 5% belongs to the ``primary`` question, half to all ``further`` ones together. Without a primary
    question all of it is theirs.
    """
    half = CONFIDENCE if primary is None else (1 + CONFIDENCE) / 2
    simultaneous([] if primary is None else [primary], confidence=half)
    simultaneous([each for each in further if each is not primary], confidence=half)


def simultaneous(differences: Iterable[Difference], *, confidence: float = CONFIDENCE) -> None:
    """Replace intervals and claims of differences by ones that hold for all of them at once.

    ``level`` becomes the level of each interval, ``family`` the number of differences. Each draw's deviation has a p
    value: its rank among the deviations of its difference. Of the smallest p over all differences, draw by draw, the
    quantile 1 − ``confidence`` is 1 − ``level`` (Westfall and Young, 1993, min-P). It is at least Bonferroni's, and
    Bonferroni's if there are too few draws. Left out: differences that are 0 by construction, or without a standard
    error.
    """
    tested = [
        each for each in differences
        if each.entry and each.entry["low"] is not None and each.entry["low"] < each.entry["high"] and each.error.error
    ]  # fmt: skip
    level = confidence
    if len(tested) > 1:
        smallest = np.ones(len(tested[0].draws))
        for each in tested:
            if np.nanstd(each.draws) > 0:  # an error of ``floor`` only has no draws that deviate
                away = np.nan_to_num(np.abs(each.draws - np.nanmean(each.draws)), nan=-1.0)
                smallest = np.minimum(smallest, rankdata(-away, method="max") / len(away))
        joint, least = float(np.quantile(smallest, 1 - confidence)), (1 - confidence) / len(tested)
        enough = joint >= 2 / len(smallest)  # else there are too few draws to tell so small a p
        level = 1 - min(max(joint, least), 1 - confidence) if enough else 1 - least
    for each in tested:
        each.at_level(level)
        each.entry["family"] = len(tested)  # type: ignore[index]


def compare(arms: Arms, arm: str, other: str) -> dict[Key, Difference]:
    """Return ``arm`` minus ``other`` in every quantity, on the cases that both answered.

    What the design or the answers do not support is taken back. There is no interval at the operating point with too
    few unsafe cases. Claim nothing from margins that did not choose the verdicts, or if too many answers have no
    readable verdict.
    """
    both = [arms.outcomes[name] for name in (arm, other)]
    reading = arms.reading(*both)
    same_order = _same_order(both, reading)
    after, before = (arms.values(outcomes, reading) for outcomes in both)
    drawn, drawn_before = (arms.drawn(outcomes, reading) for outcomes in both)
    bounds, differences = arms.extremes(*both), {}
    for key, quantity in arms.quantities.items():
        sides = arms.sides(key, reading)
        differences[key] = each = difference(
            arms.resamples, before[key], after[key],
            {scheme: draws - drawn_before[key][scheme] for scheme, draws in drawn[key].items()}, sides,
            arms.size(key, reading), floor=arms.floor(key, sides), small=quantity.small,
            equal=same_order and quantity.ordered, bounds=bounds.get(key),
        )  # fmt: skip
        if each.entry and key in arms.unreadable:
            each.entry.update(low=None, high=None, claim=TOO_FEW, needed=None)
        if arms.kind == "yes_no" and (unreadable(*both) or (quantity.ordered and margins_doubtful(*both))):
            each.retract(even_too_few=True)
    return differences


def margins_doubtful(*outcomes: Outcomes) -> bool:
    """Return whether the margins of any arm did not choose its verdicts."""
    return any(wrong > MOST_DISAGREEING * n for wrong, n in (arm.disagreeing for arm in outcomes))


def unreadable(*outcomes: Outcomes) -> bool:
    """Return whether so many answers of any arm hold no readable Yes or No that nothing follows from the others."""
    counts = ((arm.verdict[Verdict.NO_VERDICT], arm.answered.sum()) for arm in outcomes)
    return any(silent > 0 and silent >= MOST_UNREADABLE * n for silent, n in counts)


def _same_order(both: Sequence[Outcomes], reading: Reading) -> bool:
    """Return whether both arms rank the cases alike, so that all that is read from the order is the same."""
    scored, folds = reading.scored, reading.folds
    parts = [scored] if folds is None else [scored & (folds == fold) for fold in np.unique(folds[scored])]
    first, second = (outcomes.score for outcomes in both)
    return all(np.array_equal(rankdata(first[part]), rankdata(second[part])) for part in parts)


def gaps(arms: Arms, outcomes: Outcomes) -> dict[Key, Difference]:
    """Return how much more often an arm refuses harmful requests than benign ones, in all and by type."""
    reading = arms.reading(outcomes)
    values, drawn, differences = arms.values(outcomes, reading), arms.drawn(outcomes, reading), {}
    for key in arms.quantities:
        if key.quantity == GAP.quantity:
            benign, contrast = (values[Key("refusal_rate", subset, key.group)] for subset in REFUSAL_SUBSETS)
            sides = arms.sides(key, reading)
            differences[key] = difference(arms.resamples, benign, contrast, drawn[key], sides, arms.size(key, reading),
                                          floor=arms.floor(key, sides))  # fmt: skip
    return differences


def power(each: Difference, gain: float = 0.1) -> float | None:
    """Return the chance that a study like this one shows a true gain of ``gain``; None without a standard error.

    It depends on the standard error and the level that decides, not on the gain that was observed.
    """
    if each.entry is None or each.error.error is None:
        return None
    reach = student_quantile(each.error.freedom, confidence=each.entry["level"])
    return float(stdtr(each.error.freedom, gain / each.error.error - reach))
