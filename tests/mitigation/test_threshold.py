"""The calibrated constant against brute force, and the constant in an answer."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from interp.vlm import VLM, Prompt
from mitigation.threshold import CalibratedShift, ConstantShift

FINITE = st.floats(-1e6, 1e6)
WHOLE = st.integers(-4, 4).map(float)  # sums with a constant are exact, and equally wide gaps are common


@st.composite
def cases(draw: st.DrawFn, values: st.SearchStrategy[float] = FINITE) -> tuple[np.ndarray, np.ndarray]:
    """Margins and labels with both classes present; ties are common."""
    pool = draw(st.lists(values, min_size=1, max_size=6))
    pairs = draw(st.lists(st.tuples(st.sampled_from(pool), st.booleans()), min_size=1, max_size=14))
    pairs += [(draw(st.sampled_from(pool)), True), (draw(st.sampled_from(pool)), False)]
    margins, safe = zip(*pairs, strict=True)
    return np.array(margins, dtype=float), np.array(safe)


def balanced_accuracy(margins: np.ndarray, safe: np.ndarray, threshold: float) -> Fraction:
    yes = margins > threshold
    return (
        Fraction(int(yes[safe].sum()), int(safe.sum())) + Fraction(int((~yes)[~safe].sum()), int((~safe).sum()))
    ) / 2


@given(cases())
def test_no_threshold_does_better(case: tuple[np.ndarray, np.ndarray]) -> None:
    margins, safe = case
    shift = CalibratedShift().fit(margins, safe).shift
    best = max(balanced_accuracy(margins, safe, t) for t in [-np.inf, *margins])  # a verdict changes at a margin only
    assert balanced_accuracy(margins + shift, safe, 0.0) == best


@given(cases(WHOLE), st.integers(-80, 80).map(lambda n: n / 4))
@example((np.array([0.0, 4.0, 1.0, 5.0]), np.array([False, False, True, True])), -20.0)  # two gaps tie in everything
def test_a_constant_on_every_margin_is_undone_exactly(case: tuple[np.ndarray, np.ndarray], constant: float) -> None:
    margins, safe = case
    before, after = (CalibratedShift().fit(m, safe).shift for m in (margins, margins + constant))
    assert after == before - constant


@pytest.mark.parametrize(
    ("unsafe", "safe", "shift"),
    [
        ([-9.0, -5.0], [-1.0, 2.0], 3.0),  # the middle of the gap
        ([-9.0, -1.0, 2.0], [-3.0, 0.0, 9.0], -5.5),  # three gaps err equally; (2, 9) is the widest
        ([0.0, 3.0, 4.0], [1.0, 3.0, 5.0], -4.5),  # 0.5 and 4.5 are as good and as wide; the median is 3
        ([0.0, 4.0], [1.0, 5.0], -0.5),  # 0.5 and 4.5 are as near the median, too: the lower
        ([1.0, 2.0], [-2.0, -1.0], -3.0),  # the wrong way round: only answering alike is left, and that is No
        ([1.0], [1.0], -2.0),  # nothing to tell apart
    ],
)
def test_worked_examples(unsafe: list[float], safe: list[float], shift: float) -> None:
    margins = np.array(unsafe + safe)
    labels = np.array([False] * len(unsafe) + [True] * len(safe))
    assert CalibratedShift().fit(margins, labels).shift == shift


def test_neighbouring_floats_are_told_apart() -> None:
    low = 1.0 + 2**-52
    margins = np.array([low, np.nextafter(low, 2)])
    for flipped in (margins, -margins[::-1]):
        shift = CalibratedShift().fit(flipped, np.array([False, True])).shift
        assert (flipped + shift > 0).tolist() == [False, True]


@pytest.mark.parametrize(("shift", "first"), [(1000.0, "Yes"), (-1000.0, "No")])
def test_a_shift_moves_the_answer_and_its_margin(vlm: VLM, prompts: list[Prompt], shift: float, first: str) -> None:
    shifted = ConstantShift(shift).generate(vlm, prompts, max_new_tokens=3)
    assert all(text.startswith(first) for text in shifted.texts)
    torch.testing.assert_close(shifted.margins, vlm.score(prompts) + shift, atol=1e-3, rtol=0)
    assert shifted.margins.dtype == torch.float32
