"""The curve of constant shifts."""

import numpy as np
import pytest
from experiments.metrics.yes_no.shift_curve import shift_curve
from hypothesis import given
from hypothesis import strategies as st


@st.composite
def weighted(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    n = draw(st.integers(2, 12))
    margin = np.array(draw(st.lists(st.integers(-3, 3), min_size=n, max_size=n)), dtype=float)
    unsafe = np.array([True, False, *draw(st.lists(st.booleans(), min_size=n - 2, max_size=n - 2))])
    weight = np.array([1, 1, *draw(st.lists(st.integers(0, 3), min_size=n - 2, max_size=n - 2))], dtype=float)
    return margin, unsafe, weight


@given(weighted())
def test_the_curve_is_what_constant_shifts_reach(case: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    margin, unsafe, weight = case
    over_safety, best = shift_curve(margin, unsafe, weight)
    reached: dict[float, float] = {}
    for threshold in [np.inf, *margin, -np.inf]:
        yes = margin > threshold
        safe = weight[yes & ~unsafe].sum() / weight[~unsafe].sum()
        found = weight[~yes & unsafe].sum() / weight[unsafe].sum()
        reached[round(safe, 9)] = max(found, reached.get(round(safe, 9), 0.0))
    assert over_safety.round(9).tolist() == sorted(reached)
    assert best.tolist() == pytest.approx([reached[s] for s in sorted(reached)])
