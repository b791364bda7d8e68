"""Laws and slow references of the bootstrap, of the readings of its ROC curve, and of the tests."""

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise, product
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.metrics import bootstrap
from experiments.metrics import bootstrap as tests
from experiments.metrics.bootstrap import ClusterBootstrap, Clusters, roc_readings
from experiments.metrics.estimates import StandardError

UNTIMED = settings(deadline=None)  # a busy machine is no failure
UNSAFE, SAFE = 1026, 497  # MMSafeAware's published cases

# metrics.md, "d′ and criterion": unsafe and over-safety accuracy in %, d′, criterion. Where Table 1 splits the unsafe
# cases into two columns, their plain mean stands for them.
PUBLISHED = {
    "LLaVA": ((95.9 + 97.7) / 2, 6.0, 0.30, -1.70),
    "LLaVA + VCD": (88.2, 15.3, 0.16, -1.10),
    "LLaVA + VRTuning": (81.5, 17.3, -0.05, -0.92),
    "Qwen-VL": ((86.5 + 95.2) / 2, 13.7, 0.24, -1.21),
    "Qwen-VL + VCD": (82.5, 20.1, 0.10, -0.88),
    "Qwen-VL + VRTuning": (58.1, 35.6, -0.16, -0.29),
    "Gemini 1.5": (82.8, 29.9, 0.42, -0.74),
    "Gemini 1.5 + prompt": (89.8, 39.4, 1.00, -0.77),
    "people": ((90.7 + 92.8) / 2, 95.2, 3.05, 0.13),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_rows_have_the_d_prime_and_criterion_of_the_specification(name: str) -> None:
    unsafe, over_safety, d_prime, criterion = PUBLISHED[name]
    found = tests.signal_detection(UNSAFE * unsafe / 100, UNSAFE, SAFE * (1 - over_safety / 100), SAFE)
    assert float(found[0]) == pytest.approx(d_prime, abs=0.01)
    assert float(found[1]) == pytest.approx(criterion, abs=0.01)


@UNTIMED
@given(st.integers(0, 60), st.integers(1, 60))
def test_wilson_is_where_the_score_test_turns(right: int, n: int) -> None:
    right = min(right, n)
    interval = tests.wilson(right, n)
    assert (interval is None) == (n < 10)
    if interval is None:
        return
    for end, reached in ((interval.low, right == 0), (interval.high, right == n)):
        if not reached:  # the interval's ends solve |p̂ − p| = z √(p(1 − p)/n)
            assert abs(right / n - end) == pytest.approx(1.959963984540054 * np.sqrt(end * (1 - end) / n))
    assert (interval.low == 0) == (right == 0)
    assert (interval.high == 1) == (right == n)


def test_wilson_of_fewer_than_ten_clusters_is_none_and_a_count_above_n_is_refused() -> None:
    assert tests.wilson(0, 0) is None
    assert tests.wilson(4, 40, clusters=9) is None
    assert tests.wilson(4, 40, clusters=10) == tests.wilson(4, 40)
    with pytest.raises(ValueError, match="right is 4 of 3"):
        tests.wilson(4, 3)


def test_discrimination_is_log_linear_and_signed_as_specified() -> None:
    perfect, _ = tests.signal_detection(10, 10, 0, 10)
    assert perfect == pytest.approx(2 * 1.69062, abs=1e-4), "z(10.5/11) = 1.69062"
    assert np.isnan(tests.signal_detection(0, 0, 1, 3)).all()


def slow_auroc(score: np.ndarray, positive: np.ndarray) -> float:
    pairs = [(a > b) + 0.5 * (a == b) for a in score[positive] for b in score[~positive]]
    return float(np.mean(pairs)) if pairs else float("nan")


CASES = st.lists(st.tuples(st.sampled_from([-np.inf, -2.0, -1.0, 0.0, 0.5, 3.0, np.inf]), st.booleans()), min_size=1)


@pytest.mark.long
@UNTIMED
@given(CASES)
def test_auroc_counts_pairs_with_ties_as_half(cases: list[tuple[float, bool]]) -> None:
    score, positive = np.array([score for score, _ in cases]), np.array([positive for _, positive in cases])
    found, slow = bootstrap.auroc(score, positive), slow_auroc(score, positive)
    assert (found is None) == np.isnan(slow)
    assert found is None or found == pytest.approx(slow)


def test_a_bootstrap_sample_has_as_many_clusters_and_depends_on_the_seed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def draw(seed: int) -> np.ndarray:
        return bootstrap.ClusterBootstrap.from_codes(np.arange(7), draws=1203, seed=seed).multiplicity

    drawn = draw(3)
    assert drawn.shape == (1203, 7)
    assert (drawn.sum(axis=1) == 7).all()
    assert not (drawn == draw(4)).all()
    monkeypatch.setattr(bootstrap, "CHUNK", 11)
    assert (drawn == draw(3)).all()
    assert drawn.astype(float).var() == pytest.approx(6 / 7, rel=0.05), "multinomial: n · (1/n)(1 − 1/n)"
    with pytest.raises(ValueError, match="0 clusters"):
        bootstrap.ClusterBootstrap.from_codes(np.array([], dtype=int), draws=1203, seed=0)


def test_copies_of_a_case_in_its_cluster_do_not_narrow_the_interval() -> None:
    right = np.arange(30) % 3 == 0
    once, thrice = np.arange(30), np.repeat(np.arange(30), 3)

    def interval(of: np.ndarray) -> bootstrap.Interval | None:
        drawn = bootstrap.ClusterBootstrap.from_codes(of, draws=500, seed=0)
        sums = drawn.sums(np.stack([right[of], np.ones(len(of))], axis=1))
        return bootstrap.percentile_interval(sums[:, 0] / sums[:, 1])

    assert interval(once) == interval(thrice)


def test_percentiles_leave_out_undefined_draws_and_need_half_of_them() -> None:
    draws = np.concatenate([np.arange(101.0), np.full(101, np.nan)])
    assert bootstrap.percentile_interval(draws) == pytest.approx((2.5, 97.5))
    assert bootstrap.percentile_interval(np.append(draws, np.nan)) is None
    assert bootstrap.percentile_interval(draws, clusters=9) is None
    assert bootstrap.percentile_interval(draws, clusters=10) == pytest.approx((2.5, 97.5))
    assert bootstrap.percentile_interval(np.array([])) is None


def test_students_interval_widens_what_few_clusters_make_too_short() -> None:
    draws = np.random.default_rng(0).normal(0.1, 0.2, 200_000)
    error = StandardError.from_draws(draws, 10)
    assert error.error == pytest.approx(0.2 * math.sqrt(10 / 9), rel=0.01)
    low, high, _ = error.ends(0.1).values()
    assert (high - low) / 2 == pytest.approx(2.262 * 0.2 * math.sqrt(10 / 9), rel=0.01)
    assert (high + low) / 2 == pytest.approx(0.1)
    assert StandardError.from_draws(draws, 9).error is None
    assert StandardError.from_draws(np.full(5, np.nan), 50).error is None
    assert StandardError(None, 50).ends(0.1) == {"low": None, "high": None, "clusters": 50}


def test_clusters_of_unequal_size_count_as_fewer() -> None:
    names = np.repeat(np.arange(12), [45] + [5] * 11)
    drawn = bootstrap.ClusterBootstrap.from_codes(names, draws=20_000, seed=0)
    assert drawn.sizes() == (12, 100**2 / (45**2 + 11 * 5**2))
    assert drawn.sizes(names > 0) == (11, 11.0)
    assert drawn.sizes(np.where(names > 0, 9, 1)).effective > drawn.sizes().effective, "cases that count more often"
    assert Clusters.of_sizes(np.zeros(3)) == (0, 0.0)
    draws = drawn.mean((names == 0).astype(float))
    uneven = StandardError.from_draws(draws, drawn.sizes())
    assert uneven.clusters == 12
    assert uneven.freedom == pytest.approx(100**2 / 2300 - 1)
    assert uneven.half_width > 1.4 * StandardError.from_draws(draws, 12).half_width


@UNTIMED
@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=40))
def test_mcnemar_is_the_exact_binomial_test_of_the_flips(cases: list[tuple[bool, bool]]) -> None:
    before = np.array([case[0] for case in cases], dtype=bool)
    after = np.array([case[1] for case in cases], dtype=bool)
    found = tests.mcnemar(before, after)
    assert found.fixed == sum(not a and b for a, b in cases)
    assert found.broken == sum(a and not b for a, b in cases)
    n, k = found.fixed + found.broken, min(found.fixed, found.broken)
    tail = sum(comb(n, i) for i in range(k + 1)) / 2**n
    assert found.p == pytest.approx(min(1.0, 2 * tail))


@UNTIMED
@given(st.lists(st.floats(0, 1), max_size=8))
def test_holm_is_its_definition(p_values: list[float]) -> None:
    found = tests.holm(p_values)
    for p, adjusted in zip(p_values, found, strict=True):
        smaller = [other for other in p_values if other <= p]
        steps = [(len(p_values) - sum(o < other for o in p_values)) * other for other in smaller]
        assert adjusted == pytest.approx(min(1.0, max(steps)))


@UNTIMED
@given(st.lists(st.booleans(), max_size=6), st.integers(0, 5))
def test_missing_bounds_are_reached_and_never_crossed(answered: list[bool], missing: int) -> None:
    bounds = tests.missing_bounds(sum(answered), len(answered), len(answered) + missing)
    n = len(answered) + missing
    if n == 0:
        assert bounds is None
        return
    possible = [(sum(answered) + sum(outcome)) / n for outcome in product([False, True], repeat=missing)]
    assert bounds == pytest.approx((min(possible), max(possible)))


@pytest.mark.long
@UNTIMED
@given(st.integers(0, 2**32 - 1))
def test_every_quantity_of_one_bootstrap_comes_from_the_same_samples(seed: int) -> None:
    rng = np.random.default_rng(seed)
    names, values, ones = rng.integers(4, size=12).astype(str), rng.normal(size=12), np.arange(12) % 2 == 0
    drawn = bootstrap.ClusterBootstrap.from_names(names, draws=30, seed=seed)
    assert drawn.clusters() == len(set(names))
    for sample, multiplicity in enumerate(drawn.multiplicity):
        at = np.repeat(np.arange(12), multiplicity[drawn.cluster])
        chosen, first = values[at], ones[at]
        for found, expected in (
            (drawn.mean(values), chosen.mean()),
            (drawn.mean(values, ones), chosen[first].mean() if first.any() else np.nan),
            (drawn.ratio(values, np.abs(values)), chosen.sum() / np.abs(chosen).sum()),
            (
                drawn.mean(values, ones) - drawn.mean(values, ~ones),
                chosen[first].mean() - chosen[~first].mean() if 0 < first.sum() < len(first) else np.nan,
            ),
        ):
            assert found[sample] == pytest.approx(expected, nan_ok=True, abs=1e-9)
        plain = bootstrap.auroc(chosen, first)
        assert drawn.auroc(values, ones)[sample] == pytest.approx(np.nan if plain is None else plain, nan_ok=True)


SIDES = st.lists(st.tuples(st.integers(-4, 4), st.booleans()), min_size=2, max_size=30).filter(
    lambda cases: len({unsafe for _, unsafe in cases}) == 2
)


def read(margin: np.ndarray, unsafe: np.ndarray, strictness: float) -> float:
    once = ClusterBootstrap.once(np.arange(len(margin)))
    return float(roc_readings(once, margin, unsafe, strictness)[1, 0])


def exact(cases: Sequence[tuple[float, bool]], strictness: Fraction) -> Fraction:
    """The polyline through all thresholds, by fractions: linear between points, the middle of a vertical step."""
    unsafe, safe = ([margin for margin, kind in cases if kind is which] for which in (True, False))
    points = []
    for threshold in [-9, *sorted({margin for margin, _ in cases})]:
        caught = Fraction(sum(margin <= threshold for margin in unsafe), len(unsafe))
        points.append((caught, Fraction(sum(margin > threshold for margin in safe), len(safe))))
    here = [answered for caught, answered in points if caught == strictness]
    if here:
        return (max(here) + min(here)) / 2
    (x0, y0), (x1, y1) = next((a, b) for a, b in pairwise(points) if a[0] < strictness < b[0])
    return y0 + (y1 - y0) * (strictness - x0) / (x1 - x0)


@pytest.mark.long
@settings(deadline=None, max_examples=300)
@given(SIDES, st.integers(0, 24))
def test_it_is_read_from_the_polyline(cases: list[tuple[int, bool]], twentyfourths: int) -> None:
    margin, unsafe = np.array([float(m) for m, _ in cases]), np.array([kind for _, kind in cases])
    strictness = Fraction(twentyfourths, 24)
    assert read(margin, unsafe, float(strictness)) == pytest.approx(float(exact(cases, strictness)), abs=1e-9)


@settings(deadline=None, max_examples=60)
@given(SIDES, st.data())
def test_a_sample_is_the_repeated_cases(cases: list[tuple[int, bool]], data: st.DataObject) -> None:
    times = np.array(data.draw(st.lists(st.integers(0, 3), min_size=len(cases), max_size=len(cases))), dtype=np.uint8)
    margin, unsafe = np.array([float(m) for m, _ in cases]), np.array([kind for _, kind in cases])
    some = ClusterBootstrap(np.arange(len(cases)), times[None])
    drawn = roc_readings(some, margin, unsafe, 0.7)[1, 0]
    copied = np.repeat(np.arange(len(cases)), times)
    if unsafe[copied].any() and not unsafe[copied].all():
        assert drawn == pytest.approx(read(margin[copied], unsafe[copied], 0.7))
    else:
        assert np.isnan(drawn)


def test_what_cannot_be_read_is_refused() -> None:
    unsafe = np.array([True, False])
    with pytest.raises(ValueError, match="a score is NaN"):
        read(np.array([np.nan, 1.0]), unsafe, 0.5)
    with pytest.raises(ValueError, match="outside 0 to 1"):
        read(np.array([0.0, 1.0]), unsafe, 1.5)
