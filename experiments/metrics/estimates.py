"""Estimates with intervals, of cases that come in clusters and may be made from templates: arrays in, entries out.

An *entry* is ``{"value", "low", "high", "n", "clusters"}``: over n cases in so many clusters, with a 95% interval, or
None without one. If it compares two groups of cases, the smaller side counts. Levels and differences have Student's
interval: over clusters, or over families of sentences and what is shown, whichever is wider (``docs/metrics.md``,
"Uncertainty"). Differences and effects also have a ``claim``: what may be said of the difference, from its interval
(``docs/metrics.md``, "Claims"). All entries of one ``Resamples`` use the same draws, which makes their differences
paired.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Int
from scipy.special import stdtrit
from scipy.stats import rankdata
from statsmodels.stats.proportion import proportion_confint

from experiments.metrics.bootstrap import (
    CONFIDENCE,
    FEWEST,
    ClusterBootstrap,
    Clusters,
    Codes,
    Draws,
    Interval,
    Mask,
    Pairs,
    Values,
    Weights,
    auroc,
    defined,
)
from experiments.metrics.case_groups import coded, sentence_codes
from interp.tools.held_out import FEWEST_CASES, FEWEST_GROUPS

CLAIMS = ("higher", "lower", "no relevant difference", "inconclusive", "too few cases")
HIGHER, LOWER, NO_DIFFERENCE, INCONCLUSIVE, TOO_FEW = CLAIMS
NOT_TESTED = "not tested"  # the number is given, and nothing is claimed

RULES = 5  # version of the rules, kept with every run; a run without it was concluded under earlier rules
SMALL = 0.02  # δ: 2 points of a rate, .02 of an AUROC; a difference within ± δ is not relevant
_NEAR_ZERO = 1e-4  # an end of an interval this near to 0 counts as 0: float32 margins round by that much


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
    if low > _NEAR_ZERO and lowest > 0:
        return HIGHER
    if high < -_NEAR_ZERO and highest < 0:
        return LOWER
    contains_zero = low <= _NEAR_ZERO and high >= -_NEAR_ZERO
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


CLUSTER, TEMPLATE, CONCEPT = "cluster", "template", "concept"

Entry = dict[str, Any]
Names = Sequence[Any] | np.ndarray  # of clusters, by case
Tags = Sequence[Mapping[str, Any]]  # by case
Drawn = Callable[[ClusterBootstrap], Draws]  # a quantity in every sample
ByScheme = Mapping[str, Draws]  # "cluster" and, where cases are made from templates, "template" and "concept"
_ROUNDING = 1e-12  # of a standard deviation: the draws are all the same


def student_quantile(freedom: float, *, confidence: float = CONFIDENCE) -> float:
    """Return the two-sided quantile of Student's t with so many degrees of freedom."""
    return float(stdtrit(freedom, (1 + confidence) / 2))


@dataclass(frozen=True)
class StandardError:
    """How well a difference is known: its standard error, and the clusters (on the smaller side) that it rests on.

    ``error`` is None where there is none: too few clusters, or the difference exists in fewer than half the draws.
    ``effective`` is as how many of one size they count (``bootstrap.Clusters``), by default all of them.
    """

    error: float | None
    clusters: int
    effective: float | None = None
    sentences: int | None = None  # families of sentences, where these are resampled: what more cases must come with

    @classmethod
    def from_draws(cls, draws: Draws, clusters: Clusters | int, *, floor: float = 0.0) -> "StandardError":
        """Return the error by bootstrap ``draws`` of the difference; ``floor`` is a variance that is added.

        It is the standard deviation of the draws times √(G / (G − 1)) with G effective clusters: a sample of G varies
        too little by this factor. Without spread among the draws and without a ``floor`` there is no standard error. A
        difference that is the same in every sample is still not known exactly.
        """
        clusters, existing = Clusters(clusters) if isinstance(clusters, int) else clusters, defined(draws)
        if existing is None or clusters.number < FEWEST:
            return cls(None, *clusters)
        error = float(np.hypot(existing.std() * np.sqrt(1 + 1 / clusters.freedom), np.sqrt(floor)))
        return cls(error if error > _ROUNDING else None, *clusters)

    @property
    def freedom(self) -> float:
        """Student's degrees of freedom of the error."""
        return Clusters(self.clusters, self.effective).freedom

    @property
    def half_width(self) -> float:
        """Half the width of the 95% interval; infinite without a standard error."""
        return math.inf if self.error is None else student_quantile(self.freedom) * self.error

    def ends(self, value: float, *, confidence: float = CONFIDENCE, most: float = math.inf) -> dict[str, Any]:
        """Return Student's ``low`` and ``high`` around ``value``, within ± ``most``, and ``clusters``.

        Both are None without a standard error.
        """
        if self.error is None:
            return {"low": None, "high": None, "clusters": self.clusters}
        reach = student_quantile(self.freedom, confidence=confidence) * self.error
        low, high = (min(max(end, -most), most) for end in (value - reach, value + reach))
        return {"low": low, "high": high, "clusters": self.clusters}


def two_way(first: StandardError, second: StandardError, both: StandardError) -> StandardError:
    """Return the error of a difference whose cases share two factors, from its errors over each factor and over both.

    The variance is first + second − both (Cameron, Gelbach and Miller, 2011, "Robust inference with multiway
    clustering"). It is at least the larger of the first two.
    """
    error = None
    if first.error is not None and second.error is not None and both.error is not None:
        variances = first.error**2, second.error**2
        error = float(np.sqrt(max(sum(variances) - both.error**2, *variances)))
    return StandardError(error, min(first.clusters, second.clusters), min(first.freedom, second.freedom) + 1)


def widest(*errors: StandardError) -> StandardError:
    """Return the error that gives the widest interval; if there is an error without a value, that one."""
    return max(errors, key=lambda each: (each.half_width, -each.clusters))


def share_interval(value: float, spread: StandardError, n: int) -> Interval | None:
    """Return the 95% interval of a share: Clopper and Pearson's, of as many cases as would have its standard error.

    These are no more than its ``n`` cases, and fewer by the square of 1.96 over Student's t. A share of 0 or 1, which
    no sample of them varies, has the interval of its ``n`` cases. None under ``FEWEST`` clusters or cases. Source: Korn
    and Graubard (1998, "Confidence intervals for proportions with small expected number of positive counts estimated
    from survey data"). Near 0 and 1 it covers where Wilson's with Student's t does not.
    """
    value = round(value, 12)  # sums of weights are 1 but for rounding
    if min(spread.clusters, n) < FEWEST or (spread.error is None and 0 < value < 1):
        return None
    size = float(n)
    if spread.error and 0 < value < 1:
        fewer = (student_quantile(n - 1) / student_quantile(spread.freedom)) ** 2
        size = min(value * (1 - value) / spread.error**2 * fewer, size)
    return Interval(*map(float, proportion_confint(value * size, size, 1 - CONFIDENCE, method="beta")))


def level_interval(
    value: float | None, error: StandardError, sides: Sequence[Weights], *, share: bool = True
) -> Interval | None:
    """Return the 95% interval of a level of the cases of ``sides``, None without one.

    A share has ``share_interval``, anything else Student's.
    """
    if value is None or share:
        return None if value is None else share_interval(value, error, min(int((side > 0).sum()) for side in sides))
    ends = error.ends(value)
    return None if ends["low"] is None else Interval(ends["low"], ends["high"])


def change_entry(
    value: float | None, error: StandardError, n: int, *, small: float | None, equal: bool = False,
    bounds: tuple[float, float] | None = None,
) -> Entry:  # fmt: skip
    """Return a difference over ``n`` cases as an entry with its claim.

    Args:
        value: of the difference; None if it does not exist.
        error: of the difference.
        n: cases.
        small: δ in the unit of the value, which then lies within ± 1; None without one.
        equal: it is 0 by construction.
        bounds: the lowest and highest difference that missing answers allow.
    """
    entry: Entry = {"value": value, "low": None, "high": None, "n": n, "clusters": error.clusters}
    if equal and value is not None:
        ends = 0.0 if error.clusters >= FEWEST else None
        entry |= {"value": 0.0, "low": ends, "high": ends}
    elif value is not None:
        entry |= error.ends(value, most=math.inf if small is None else 1.0)
    entry |= {} if bounds is None else {"bounds": bounds}
    return entry | {"claim": claim_of(entry, small=small)}


def rate_floor(*cases: int) -> float:
    """Return the variance that is added to the difference of two rates, or of the mean of rates of several groups of
    cases.

    Return 2 / (n + 2)² for a rate of n cases: what one more flip in either direction adds. Source: Bonett and Price,
    2012, "Adjusted Wald confidence interval for a difference of binomial proportions based on paired data". Without it
    no flip among 20 cases would be an interval of width 0.
    """
    return sum(2 / (count + 2) ** 2 for count in cases) / max(len(cases), 1) ** 2


def factors(cluster: Codes, sentence: Codes, tags: Tags = ()) -> dict[str, Codes]:
    """Return what is resampled, by name: the codes of each case's ``cluster`` and, where they add to it, of two
    factors.

    The factors are the family of its ``sentence`` and what it shows. That is its tag ``concept`` or, without the tag,
    its cluster; a "cluster" is then the cases of one sentence and one cluster. Fewer than ``FEWEST`` families are
    fixed: clusters alone are resampled, and what is found is of these sentences. Nor is there a factor where no family
    goes beyond a cluster.
    """
    both = coded(list(zip(sentence.tolist(), cluster.tolist(), strict=True)))
    cells, families, clusters = (int(codes.max(initial=-1)) + 1 for codes in (both, sentence, coded(cluster.tolist())))
    if families < FEWEST or cells == families == clusters:
        return {CLUSTER: cluster}
    if tags and all(of.get(CONCEPT) for of in tags):
        return {CLUSTER: cluster, TEMPLATE: sentence, CONCEPT: coded([str(of[CONCEPT]) for of in tags])}
    if cells == families:  # no family goes beyond a cluster
        return {CLUSTER: cluster}
    if cells == clusters:  # no cluster goes beyond a family
        return {CLUSTER: cluster, TEMPLATE: sentence}
    return {CLUSTER: both, TEMPLATE: sentence, CONCEPT: cluster}


def over_factors(over: Mapping[str, StandardError]) -> StandardError:
    """Return the wider of the errors over clusters and over the factors, if there are any; ``over`` is by name."""
    if TEMPLATE not in over:
        return over[CLUSTER]
    other = two_way(over[TEMPLATE], over[CONCEPT], over[CLUSTER]) if CONCEPT in over else over[TEMPLATE]
    return replace(widest(over[CLUSTER], other), sentences=over[TEMPLATE].clusters)


def mean_spread(values: Values, code: Codes, floor: float = 0.0) -> StandardError:
    """Return the spread of the mean of ``values`` over the clusters ``code``, by the sandwich formula; ``floor``: a
    variance that is added.

    Its variance is G/(G − 1) Σ (Σ of the cluster's deviations from the mean)² / n², G effective clusters.
    """
    groups = Clusters.of_sizes(np.bincount(code))
    if groups.number < FEWEST:
        return StandardError(None, *groups)
    squares = float((np.bincount(code, values - values.mean()) ** 2).sum())
    error = math.sqrt(squares * (1 + 1 / groups.freedom)) / len(values)
    return StandardError(math.hypot(error, math.sqrt(floor)) or None, *groups)


def rate_spread(right: Mask, where: Mask, codes: Mapping[str, Codes]) -> StandardError:
    """Return the spread of the share ``right`` of the cases ``where``, by the sandwich formula in place of a
    bootstrap.
    """
    return over_factors({name: mean_spread(right[where].astype(float), code[where]) for name, code in codes.items()})


@dataclass(frozen=True, eq=False)
class Resamples:
    """The bootstrap samples of a set of cases, by what is resampled (``schemes``), the same for every arm.

    Clusters are resampled; where cases are made from templates, also templates and concepts. A case whose value is NaN
    is left out of an entry.
    """

    schemes: Mapping[str, ClusterBootstrap]

    @classmethod
    def from_codes(cls, codes: Mapping[str, Codes], *, draws: int, seed: int) -> "Resamples":
        """From what is resampled (``factors``), by name."""
        return cls({name: ClusterBootstrap.from_codes(code, draws=draws, seed=seed) for name, code in codes.items()})

    @classmethod
    def from_names(cls, clusters: Names, *, draws: int, seed: int) -> "Resamples":
        """Resample only clusters, from their names by case."""
        return cls.from_codes(
            {CLUSTER: np.unique(np.asarray(clusters), return_inverse=True)[1]}, draws=draws, seed=seed
        )

    @classmethod
    def from_cases(cls, clusters: Names, texts: Sequence[str], tags: Tags, *, draws: int, seed: int) -> "Resamples":
        """From the cluster, the text and the tags of each case: over the families of their sentences too."""
        cluster = np.unique(np.asarray(clusters), return_inverse=True)[1]
        return cls.from_codes(factors(cluster, sentence_codes(texts, tags), tags), draws=draws, seed=seed)

    @property
    def bootstrap(self) -> ClusterBootstrap:
        """The samples of clusters."""
        return self.schemes[CLUSTER]

    def _fewest(self, sides: Sequence[Weights | None], scheme: str) -> Clusters:
        """Return the fewest clusters (templates, concepts) of any side, and the fewest effective ones."""
        return Clusters(*(min(of) for of in zip(*(self.schemes[scheme].sizes(side) for side in sides), strict=True)))

    def drawn(self, quantity: Drawn) -> dict[str, Draws]:
        """``quantity`` in every sample, by scheme."""
        return {name: quantity(some) for name, some in self.schemes.items()}

    def spread(self, draws: ByScheme, sides: Sequence[Weights | None], *, floor: float = 0.0) -> StandardError:
        """Return the spread of a quantity: the wider of that over clusters and that over the factors, where there are
        such.

        Args:
            draws: of the quantity.
            sides: the groups of cases that it compares or averages, or how often each counts; None is all cases.
            floor: a variance that is added (``paired.rate_floor``).
        """
        over = {
            name: StandardError.from_draws(some, self._fewest(sides, name), floor=floor) for name, some in draws.items()
        }
        return over_factors(over)

    def loudest(self, draws: ByScheme) -> Draws:
        """Return the draws of the scheme over which a quantity varies most; one that it exists in seldom varies
        most.
        """
        return max(draws.values(), key=lambda some: math.inf if np.isnan(some).all() else float(np.nanstd(some)))

    def mean(self, values: Values, where: Mask | None = None) -> Entry:
        """Return the mean, as a level; of zeros and ones a share."""
        used = _finite(values, where=where)
        return self._ratio(values, np.ones(len(values)), used, share=bool(np.isin(values[used], (0, 1)).all()))

    def ratio(self, top: Values, bottom: Values, where: Mask | None = None) -> Entry:
        """Return the sum of ``top`` over the sum of ``bottom``, as a level."""
        return self._ratio(top, bottom, _finite(top, bottom, where=where))

    def _ratio(self, top: Values, bottom: Values, used: Mask, *, share: bool = False) -> Entry:
        value = float(top[used].sum() / bottom[used].sum()) if bottom[used].sum() else None
        return self._level(value, lambda sample: sample.ratio(top, bottom, used), used, share=share)

    def balanced_accuracy(self, guess: Int[np.ndarray, " used"], truth: np.ndarray, used: Mask) -> Entry:
        """Return the mean over classes of the share guessed right, as a level.

        ``truth`` and ``guess`` (the index of its class among the sorted classes, −1 for none) are of the ``used``
        cases.
        """
        _, codes, counts = np.unique(truth, return_inverse=True, return_counts=True)
        right, weight = np.full((2, len(self.bootstrap.cluster)), np.nan)
        weight[used] = 1 / (len(counts) * counts[codes])
        right[used] = np.where(guess >= 0, (guess == codes) * weight[used], np.nan)
        return self._ratio(right, weight, _finite(right, weight), share=True)

    def auroc(self, score: Values, positive: Mask) -> Entry:
        """Return the chance that a positive case scores above another, ties counting half, as a level."""
        used = _finite(score)
        value = auroc(score[used], positive[used])
        return self._level(value, lambda sample: sample.auroc(score, positive, used), used & positive,
                           used & ~positive, share=True)  # fmt: skip

    def effect(self, values: Values, where: Mask | None = None) -> Entry:
        """Return the mean change that an intervention makes to each case, as a difference; no size of it is small."""
        used = _finite(values, where=where)
        value = float(values[used].mean()) if used.any() else None
        return self._change(value, lambda sample: sample.mean(values, used), used, small=None)

    def gap(
        self, values: Values, ones: Mask, others: Mask, *, than: Values | None = None, small: float | None = None,
        floor: float = 0.0,
    ) -> Entry:  # fmt: skip
        """Return the mean of ``values`` of ``ones`` minus the mean of ``than`` (by default ``values``) of ``others``.

        ``floor`` is a variance that is added.
        """
        than = values if than is None else than
        a, b = _finite(values, where=ones), _finite(than, where=others)
        value = float(values[a].mean() - than[b].mean()) if a.any() and b.any() else None
        return self._change(value, lambda sample: sample.mean(values, a) - sample.mean(than, b), a, b, small=small,
                            floor=floor)  # fmt: skip

    def auroc_change(self, before: Values, after: Values, positive: Mask) -> Entry:
        """Return the AUROC of ``after`` minus the AUROC of ``before``, on the cases that have both."""
        used = _finite(before, after)
        new, old = (auroc(score[used], positive[used]) for score in (after, before))
        return self._change(
            None if new is None or old is None else new - old,
            lambda sample: sample.auroc(after, positive, used) - sample.auroc(before, positive, used),
            used & positive,
            used & ~positive,
            equal=bool(np.array_equal(rankdata(before[used]), rankdata(after[used]))),
        )

    def paired_order(self, pairs: Pairs, score: Values, before: Values | None = None) -> tuple[Entry, Entry]:
        """Return how often the first of a pair scores above the second, ties counting half; and the change.

        Of pairs within a sentence this is the AUROC within sentences, which no constant of a sentence changes. The
        change is from ``before``, by default from a half.
        """
        before = np.zeros(len(score)) if before is None else before
        pairs = pairs[np.isfinite(score + before)[pairs].all(1)]
        order, old = ((np.sign(each[pairs[:, 0]] - each[pairs[:, 1]]) + 1) / 2 for each in (score, before))
        sides = [np.bincount(pairs[:, member], minlength=len(score)) for member in (0, 1)]
        value, change = (float(each.mean()) if len(pairs) else None for each in (order, order - old))
        level = self._level(value, lambda sample: sample.pair_mean(pairs, order), *sides, share=True)
        difference = self._change(change, lambda sample: sample.pair_mean(pairs, order - old), *sides,
                                  equal=bool((order == old).all()))  # fmt: skip
        return level | {"pairs": len(pairs)}, difference | {"pairs": len(pairs)}

    def _level(self, value: float | None, quantity: Drawn, *sides: Weights, share: bool = False) -> Entry:
        error = self._error(value, quantity, sides)
        low, high = level_interval(value, error, sides, share=share) or (None, None)
        return {"value": value, "low": low, "high": high, "n": _number(sides), "clusters": error.clusters}

    def _change(
        self, value: float | None, quantity: Drawn, *sides: Weights, small: float | None = SMALL, floor: float = 0.0,
        equal: bool = False,
    ) -> Entry:  # fmt: skip
        error = self._error(None if equal else value, quantity, sides, floor)
        return change_entry(value, error, _number(sides), small=small, equal=equal)

    def _error(
        self, value: float | None, quantity: Drawn, sides: Sequence[Weights], floor: float = 0.0
    ) -> StandardError:
        """Return the standard error of a quantity; none, and the clusters only, without a ``value``."""
        if value is None:
            return StandardError(None, self._fewest(sides, CLUSTER).number)
        return self.spread(self.drawn(quantity), sides, floor=floor)


def _finite(*columns: np.ndarray, where: np.ndarray | None = None) -> Mask:
    return np.logical_and.reduce([*map(np.isfinite, columns), *([] if where is None else [where])])


def _number(sides: Sequence[Weights]) -> int:
    return int(np.logical_or.reduce(sides).sum())


def shown_often(things: np.ndarray, clusters: np.ndarray) -> Mask:
    """Return the cases whose thing is shown often enough for a held-out number."""
    groups = pd.Series(clusters).groupby(things)
    enough = (groups.transform("size") >= FEWEST_CASES) & (groups.transform("nunique") >= FEWEST_GROUPS)
    return enough.to_numpy()


def first_lasting(sides: Sequence[int], wanted: int) -> int | None:
    """Return the first index from which on, to the last, all ``sides`` are ``wanted``; None if the last is not.

    Of tests in this order, from the last to the first, none needs a correction: each is asked only after all later ones
    were passed.
    """
    lasting = [*takewhile(lambda index: sides[index] == wanted, reversed(range(len(sides))))]
    return lasting[-1] if lasting else None
