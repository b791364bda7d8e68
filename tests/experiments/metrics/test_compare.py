"""What may be claimed of a difference, and the intervals that decide it."""

from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest

from experiments.metrics.compare import Difference, difference, one_family, power, simultaneous
from experiments.metrics.estimates import (
    HIGHER,
    INCONCLUSIVE,
    LOWER,
    NO_DIFFERENCE,
    SMALL,
    TOO_FEW,
    StandardError,
    claim_of,
    is_small,
    rate_floor,
    share_interval,
    side,
    two_way,
    widest,
)

NONE = np.zeros(0)


def entry(low: float | None, high: float | None, **more: Any) -> dict[str, Any]:
    return {"value": 0.0 if low is None or high is None else (low + high) / 2, "low": low, "high": high, **more}


def known(before: float, after: float, error: StandardError, draws: np.ndarray = NONE, *, n: int = 100,
          small: float | None = SMALL, equal: bool = False) -> Difference:  # fmt: skip
    """A difference whose standard error is given, not computed from its draws."""

    class Given:
        def spread(self, *_: Any, **__: Any) -> StandardError:
            return error

        def loudest(self, *_: Any) -> np.ndarray:
            return draws

    return difference(Given(), before, after, {}, (), n, small=small, equal=equal)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "claim"),
    [
        (entry(0.01, 0.05), HIGHER),
        (entry(0.001, 0.015), HIGHER),
        (entry(-0.05, -0.01), LOWER),
        (entry(-0.02, 0.02), NO_DIFFERENCE),
        (entry(-0.02, 0.021), INCONCLUSIVE),
        (entry(0.0, 0.05), INCONCLUSIVE),
        (entry(0.00005, 0.05), INCONCLUSIVE),  # nearer to 0 than float32 margins are exact
        (entry(None, None), INCONCLUSIVE),
        (entry(None, None, clusters=9), TOO_FEW),
        (entry(0.01, 0.05, clusters=9), TOO_FEW),
        (entry(0.01, 0.05, clusters=10), HIGHER),
        (entry(0.01, 0.05, bounds=(-0.01, 0.06)), INCONCLUSIVE),
        (entry(0.01, 0.05, bounds=(0.01, 0.06)), HIGHER),
        (entry(-0.01, 0.01, bounds=(-0.03, 0.01)), INCONCLUSIVE),
        (entry(-0.01, 0.01) | {"value": None}, ""),
        (None, ""),
    ],
)
def test_five_claims_may_be_made_of_a_difference(found: dict[str, Any] | None, claim: str) -> None:
    assert claim_of(found) == claim


def test_without_an_agreed_small_size_no_difference_is_never_claimed() -> None:
    assert claim_of(entry(-0.001, 0.001), small=None) == INCONCLUSIVE
    assert is_small(entry(-0.001, 0.001))
    assert not is_small(entry(-0.001, 0.001), None)
    assert [side(entry(*ends), 0.5) for ends in ((0.6, 0.7), (0.1, 0.4), (0.4, 0.6), (None, None))] == [1, -1, 0, 0]


def test_the_same_difference_in_every_sample_is_not_known_without_error() -> None:
    found = known(0.5, 0.7, StandardError.from_draws(np.full(100, 0.2), 40), n=40).entry
    assert (found["low"], found["high"], found["claim"]) == (None, None, INCONCLUSIVE)
    floored = known(0.5, 0.5, StandardError.from_draws(np.zeros(100), 20, floor=rate_floor(20)), n=20).entry
    assert floored["high"] == pytest.approx(2.093 * np.sqrt(2) / 22, rel=1e-3)
    assert floored["claim"] == INCONCLUSIVE


def test_a_rates_floor_is_that_of_bonett_and_price() -> None:
    assert rate_floor(18) == 2 / 400
    assert rate_floor(18, 38) == pytest.approx((2 / 400 + 2 / 1600) / 4)


def test_two_factors_add_less_what_both_share_and_are_never_below_one_of_them() -> None:
    one, other, both = StandardError(0.03, 24), StandardError(0.04, 30), StandardError(0.02, 200)
    assert two_way(one, other, both).error == pytest.approx(np.sqrt(0.0009 + 0.0016 - 0.0004))
    assert two_way(one, other, both).clusters == 24
    assert two_way(one, StandardError(0.01, 30), StandardError(0.03, 200)).error == pytest.approx(0.03)
    assert two_way(one, StandardError(None, 5), both).error is None
    assert widest(both, one) == one
    assert widest(both) == both


def test_the_one_sided_bound_leaves_one_in_twenty_below() -> None:
    error = StandardError.from_draws(np.random.default_rng(0).normal(0, 0.01, 50_000), 1000)
    assert known(0.9, 0.89, error).lower_bound == pytest.approx(-0.01 - 1.646 * 0.01, rel=0.01)
    assert known(0.9, 0.89, StandardError(None, 4)).lower_bound is None
    assert Difference(None, error, NONE).lower_bound is None


@pytest.mark.parametrize("rate", [0.0, 0.02, 0.3, 0.98, 1.0])
def test_the_interval_of_a_share_is_the_exact_one_of_as_many_cases_as_have_its_error(rate: float) -> None:
    def exact(right: int, n: int) -> tuple[float, float]:
        found = binomtest(right, n).proportion_ci(0.95, method="exact")
        return found.low, found.high

    n, many = 400, 10**6
    alone = share_interval(rate, StandardError(np.sqrt(rate * (1 - rate) / n) or None, many), n)
    assert alone == pytest.approx(exact(round(rate * n), n), abs=1e-3)
    double = share_interval(rate, StandardError(2 * np.sqrt(rate * (1 - rate) / n) or None, many), n)
    if 0 < rate < 1:
        assert double == pytest.approx(exact(round(rate * n / 4), n // 4), abs=2e-3), "a quarter of the cases"
    else:
        assert double == alone, "at 0 and 1 no sample varies: the width is that of n"
    narrow = share_interval(rate, StandardError(1e-4 if 0 < rate < 1 else None, many), n)
    assert narrow == pytest.approx(alone, abs=1e-3), "no more than its cases"
    assert share_interval(rate, StandardError(None if rate in (0, 1) else 0.1, 9), n) is None


def test_simultaneous_intervals_hold_for_all_at_once() -> None:
    draws = np.random.default_rng(1).normal(0, 0.01, (12, 20_000))
    family = [known(0.5, 0.524, StandardError.from_draws(drawn, 10_000), drawn) for drawn in draws]
    alone = [dict(each.entry or {}) for each in family]
    equal = known(0.5, 0.5, StandardError.from_draws(np.zeros(20_000), 100), np.zeros(20_000), equal=True)
    simultaneous([*family, equal])
    assert (equal.entry["low"], equal.entry["high"], equal.entry["claim"]) == (0, 0, NO_DIFFERENCE)
    assert "family" not in equal.entry, "it is equal by construction, and enters no family"
    for before, each in zip(alone, family, strict=True):
        assert each.entry["family"] == 12
        reach = (each.entry["high"] - each.entry["low"]) / 2
        assert reach == pytest.approx(2.86 * 0.01, rel=0.02), "Šidák's quantile of 12 independent differences"
        assert (before["claim"], each.entry["claim"]) == (HIGHER, INCONCLUSIVE)
    single = known(0.5, 0.524, StandardError.from_draws(draws[0], 10_000), draws[0])
    simultaneous([single])
    assert single.entry["low"] == pytest.approx(alone[0]["low"], abs=1e-3)


@pytest.mark.parametrize("small", [SMALL, None])
def test_no_interval_leaves_what_a_difference_of_fractions_can_be(small: float | None) -> None:
    draws = np.random.default_rng(0).normal(0.8, 0.3, 2000)
    wide = known(0.1, 0.9, StandardError(0.3, 20), draws, small=small)
    for _ in range(2):
        assert (wide.entry["high"] == 1.0) == (small is not None)
        assert wide.entry["high"] >= 1
        assert wide.entry["low"] == pytest.approx(0.8 - 2.093 * 0.3, abs=1e-3)
        simultaneous([wide])


def test_the_level_of_each_is_never_below_bonferronis() -> None:
    heavy = np.random.default_rng(3).standard_t(3, (12, 5000)) * 0.01
    family = [known(0.5, 0.5, StandardError.from_draws(drawn, 1000), drawn) for drawn in heavy]
    simultaneous(family)
    levels = {each.entry["level"] for each in family if each.entry}
    assert len(levels) == 1
    assert 0.99 < levels.pop() <= 1 - 0.05 / 12


def test_the_power_for_a_gain_is_that_of_the_interval_that_decides() -> None:
    draws = np.random.default_rng(4).normal(0, 0.03, 5000)
    error = StandardError.from_draws(draws, 10_000)
    primary = known(0.5, 0.9, error, draws)
    assert power(primary, 0.0) == pytest.approx(0.025, rel=0.02)
    assert power(primary, 1.96 * 0.03) == pytest.approx(0.5, abs=0.02)
    one_family(primary, [])
    assert power(primary, 0.0) == pytest.approx(0.0125, rel=0.02), "half of the 5%, on both sides"
    assert power(Difference(None, error, draws), 0.1) is None
