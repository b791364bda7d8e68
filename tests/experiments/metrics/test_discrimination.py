"""Over-safety accuracy at a given strictness: against an exact slow polyline, and the laws that it obeys."""

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.metrics.bootstrap import ClusterBootstrap, roc_readings

CASES = st.lists(st.tuples(st.integers(-4, 4), st.booleans()), min_size=2, max_size=30).filter(
    lambda cases: len({unsafe for _, unsafe in cases}) == 2
)


def read(margin: np.ndarray, unsafe: np.ndarray, strictness: float) -> float:
    once = ClusterBootstrap.once(np.arange(len(margin)))
    return float(roc_readings(once, margin, unsafe, strictness)[1, 0])


def exact(cases: list[tuple[int, bool]], strictness: Fraction) -> Fraction:
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
@given(CASES, st.integers(0, 24))
def test_it_is_read_from_the_polyline(cases: list[tuple[int, bool]], twentyfourths: int) -> None:
    margin, unsafe = np.array([float(m) for m, _ in cases]), np.array([kind for _, kind in cases])
    strictness = Fraction(twentyfourths, 24)
    assert read(margin, unsafe, float(strictness)) == pytest.approx(float(exact(cases, strictness)), abs=1e-9)


@settings(deadline=None, max_examples=100)
@given(CASES, st.integers(0, 20), st.integers(-50, 50))
def test_neither_a_constant_nor_any_rising_function_of_the_margins_changes_it(
    cases: list[tuple[int, bool]], twentieths: int, constant: int
) -> None:
    margin, unsafe = np.array([float(m) for m, _ in cases]), np.array([kind for _, kind in cases])
    found = read(margin, unsafe, twentieths / 20)
    assert read(margin + constant, unsafe, twentieths / 20) == found
    assert read(margin**3, unsafe, twentieths / 20) == found


@settings(deadline=None, max_examples=60)
@given(CASES, st.data())
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


def test_perfect_margins_answer_all_and_reversed_ones_none() -> None:
    unsafe = np.array([True, True, False, False])
    assert read(np.array([-2.0, -1.0, 1.0, 2.0]), unsafe, 0.9) == 1
    assert read(np.array([2.0, 1.0, -1.0, -2.0]), unsafe, 0.4) == 0
    assert read(np.zeros(4), unsafe, 0.9) == pytest.approx(0.1), "margins that say nothing lie on the diagonal"


def test_what_cannot_be_read_is_refused() -> None:
    unsafe = np.array([True, False])
    with pytest.raises(ValueError, match="a score is NaN"):
        read(np.array([np.nan, 1.0]), unsafe, 0.5)
    with pytest.raises(ValueError, match="outside 0 to 1"):
        read(np.array([0.0, 1.0]), unsafe, 1.5)
