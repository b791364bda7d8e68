"""What may be said of a difference, and the intervals that decide it."""

from typing import Any

import numpy as np
import pytest
from experiments.metrics.findings import Answer, statement, within
from experiments.metrics.paired import (
    Difference,
    Spread,
    change,
    one_family,
    power,
    rate_floor,
    share_interval,
    simultaneous,
    two_way,
    widest,
)
from scipy.stats import binomtest

NONE = np.zeros(0)


def entry(low: float | None, high: float | None, **more: Any) -> dict[str, Any]:
    return {"value": 0.0 if low is None or high is None else (low + high) / 2, "low": low, "high": high, **more}


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (entry(0.01, 0.05), Answer.ROSE),
        (entry(0.001, 0.015), Answer.ROSE),
        (entry(-0.05, -0.01), Answer.FELL),
        (entry(-0.02, 0.02), Answer.NO_CHANGE),
        (entry(-0.02, 0.021), Answer.NOT_SHOWN),
        (entry(0.0, 0.05), Answer.NOT_SHOWN),
        (entry(0.00005, 0.05), Answer.NOT_SHOWN),  # nearer to 0 than float32 margins are exact
        (entry(None, None), Answer.NOT_SHOWN),
        (entry(None, None, clusters=9), Answer.TOO_FEW),
        (entry(0.01, 0.05, clusters=9), Answer.TOO_FEW),
        (entry(0.01, 0.05, clusters=10), Answer.ROSE),
        (None, Answer.CANNOT_TELL),
    ],
)
def test_five_things_may_be_said_of_a_difference(found: dict[str, Any] | None, said: Answer) -> None:
    assert statement(found) is said


def test_without_an_agreed_small_size_no_change_is_never_said() -> None:
    assert statement(entry(-0.001, 0.001), small=None) is Answer.NOT_SHOWN
    assert within(entry(-0.001, 0.001))
    assert not within(entry(-0.001, 0.001), None)


def test_the_same_difference_in_every_sample_is_not_known_without_error() -> None:
    found = change(0.5, 0.7, Spread.of(np.full(100, 0.2), 40), 40)
    assert found is not None
    assert (found["low"], found["high"], found["statement"]) == (None, None, "not shown")
    floored = change(0.5, 0.5, Spread.of(np.zeros(100), 20, floor=rate_floor(20)), 20)
    assert floored is not None
    assert floored["high"] == pytest.approx(2.093 * np.sqrt(2) / 22, rel=1e-3)
    assert floored["statement"] == "not shown"


def test_a_rates_floor_is_that_of_bonett_and_price() -> None:
    assert rate_floor(18) == 2 / 400
    assert rate_floor(18, 38) == pytest.approx((2 / 400 + 2 / 1600) / 4)


def test_two_factors_add_less_what_both_share_and_are_never_below_one_of_them() -> None:
    one, other, both = Spread(0.03, 24), Spread(0.04, 30), Spread(0.02, 200)
    assert two_way(one, other, both).error == pytest.approx(np.sqrt(0.0009 + 0.0016 - 0.0004))
    assert two_way(one, other, both).clusters == 24
    assert two_way(one, Spread(0.01, 30), Spread(0.03, 200)).error == pytest.approx(0.03)
    assert two_way(one, Spread(None, 5), both).error is None
    assert widest(both, one) == one
    assert widest(both, None) == both


def test_the_one_sided_bound_leaves_one_in_twenty_below() -> None:
    rng = np.random.default_rng(0)
    spread = Spread.of(rng.normal(0, 0.01, 50_000), 1000)
    found = change(0.9, 0.89, spread, 500)
    assert Difference(found, spread, NONE).lower_bound == pytest.approx(-0.01 - 1.646 * 0.01, rel=0.01)
    assert Difference(found, Spread(None, 4), NONE).lower_bound is None
    assert Difference(None, spread, NONE).lower_bound is None


@pytest.mark.parametrize("rate", [0.0, 0.02, 0.3, 0.98, 1.0])
def test_the_interval_of_a_share_is_the_exact_one_of_as_many_cases_as_have_its_error(rate: float) -> None:
    def exact(right: int, n: int) -> tuple[float, float]:
        found = binomtest(right, n).proportion_ci(0.95, method="exact")
        return found.low, found.high

    n, many = 400, 10**6
    alone = share_interval(rate, Spread(np.sqrt(rate * (1 - rate) / n) or None, many), n)
    assert alone == pytest.approx(exact(round(rate * n), n), abs=1e-3)
    double = share_interval(rate, Spread(2 * np.sqrt(rate * (1 - rate) / n) or None, many), n)
    assert double is not None
    if 0 < rate < 1:
        assert double == pytest.approx(exact(round(rate * n / 4), n // 4), abs=2e-3), "a quarter of the cases"
    else:
        assert double == alone, "at 0 and 1 no sample varies: the width is that of n"
    narrow = share_interval(rate, Spread(1e-4 if 0 < rate < 1 else None, many), n)
    assert narrow == pytest.approx(alone, abs=1e-3), "no more than its cases"
    assert share_interval(rate, Spread(None if rate in (0, 1) else 0.1, 9), n) is None


def test_simultaneous_intervals_hold_for_all_at_once() -> None:
    rng = np.random.default_rng(1)
    draws = rng.normal(0, 0.01, (12, 20_000))
    spreads = [Spread.of(one, 10_000) for one in draws]
    found = [change(0.5, 0.5 + 0.024, spread, 100) for spread in spreads]
    equal = change(0.5, 0.5, Spread.of(np.zeros(20_000), 100), 100, equal=True)
    known = [Difference(*one, drawn) for *one, drawn in zip(found, spreads, draws, strict=True)]
    simultaneous([*known, Difference(equal, Spread(None, 100), np.zeros(20_000))])
    assert equal is not None
    assert "decides" not in equal
    for one in found:
        assert one is not None
        assert one["decides"]["of"] == 12
        reach = (one["decides"]["high"] - one["decides"]["low"]) / 2
        assert reach == pytest.approx(2.86 * 0.01, rel=0.02), "Šidák's quantile of 12 independent differences"
        assert one["statement"] == "not shown", "by its own interval it rose"
        assert one["low"] > 0
    alone = change(0.5, 0.524, spreads[0], 100)
    simultaneous([Difference(alone, spreads[0], draws[0])])
    assert alone is not None
    assert alone["decides"]["low"] == pytest.approx(alone["low"], abs=1e-3)


def test_differences_that_go_together_share_one_deviation() -> None:
    rng = np.random.default_rng(2)
    same = rng.normal(0, 0.01, 20_000)
    spread = Spread.of(same, 10_000)
    found = [change(0.5, 0.53, spread, 100) for _ in range(12)]
    simultaneous([Difference(one, spread, same) for one in found])
    assert found[0] is not None
    assert found[0]["decides"]["low"] == pytest.approx(found[0]["low"], abs=1e-3)


def test_no_interval_leaves_what_a_difference_of_fractions_can_be() -> None:
    wide = change(0.1, 0.9, Spread(0.3, 20), 100)
    assert wide is not None
    assert wide["high"] == 1.0
    assert wide["low"] == pytest.approx(0.8 - 2.093 * 0.3, abs=1e-3)
    simultaneous([Difference(wide, Spread(0.4, 20), np.random.default_rng(0).normal(0.8, 0.4, 2000))])
    assert wide["decides"]["high"] == 1.0
    logits = change(0.1, 0.9, Spread(0.3, 20), 100, small=None)
    assert logits is not None
    assert logits["high"] > 1
    simultaneous([Difference(logits, Spread(0.4, 20), np.random.default_rng(0).normal(0.8, 0.4, 2000), None)])
    assert logits["decides"]["high"] > 1


def test_the_level_of_each_is_never_below_bonferronis() -> None:
    heavy = np.random.default_rng(3).standard_t(3, (12, 5000)) * 0.01
    spreads = [Spread.of(one, 1000) for one in heavy]
    found = [Difference(change(0.5, 0.5, spread, 100), spread, one) for spread, one in zip(spreads, heavy, strict=True)]
    simultaneous(found)
    levels = {one.entry["decides"]["level"] for one in found if one.entry}
    assert len(levels) == 1
    assert 0.99 < levels.pop() <= 1 - 0.05 / 12


def test_the_power_for_a_gain_is_that_of_the_interval_that_decides() -> None:
    draws = np.random.default_rng(4).normal(0, 0.03, 5000)
    spread = Spread.of(draws, 10_000)
    one = Difference(change(0.5, 0.9, spread, 100), spread, draws)
    assert power(one, 0.0) == pytest.approx(0.025, rel=0.02)
    assert power(one, 1.96 * 0.03) == pytest.approx(0.5, abs=0.02)
    one_family(one, [])
    assert power(one, 0.0) == pytest.approx(0.0125, rel=0.02), "half of the 5%, on both sides"
    assert power(Difference(None, spread, draws), 0.1) is None
