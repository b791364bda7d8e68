"""Where failures depart from successes: the planted layer is found, and strata are compared within."""

import numpy as np
import pytest

from experiments.studies.mechanism.departure import departs_at, departure
from interp.errors import UserError


def split(n: int = 40) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Margins of two points, failures every fourth case, two strata; failures lie 1 lower at the second point alone."""
    rng = np.random.default_rng(3)
    failed, stratum = np.arange(n) % 4 == 0, np.arange(n) // (n // 2)
    margins = rng.normal(0, 0.1, (2, n)) + 5 * stratum
    margins[1] -= failed
    return margins, failed, stratum


def test_departure_finds_the_planted_point() -> None:
    margins, failed, stratum = split()
    draws = np.random.default_rng(1).multinomial(40, np.full(40, 1 / 40), size=200)
    found = departure(margins, failed, draws, strata=stratum)
    low, high = np.nanquantile(found.draws, (0.025, 0.975), axis=0)
    assert found.gap == pytest.approx([0, -1], abs=0.1)
    assert departs_at(low, high) == 1
    assert found.counted.all()


def test_departure_once_is_the_difference_of_means() -> None:
    margins, failed, _ = split()
    found = departure(margins, failed, np.ones((1, 40)))
    expected = margins[:, failed].mean(1) - margins[:, ~failed].mean(1)
    assert found.gap == pytest.approx(expected)
    assert found.draws[0] == pytest.approx(found.gap)


def test_strata_keep_unlike_sentences_apart() -> None:
    """One template's cases nearly all fail and the other's never: the pooled gap is that of the templates."""
    margins = np.array([[0.0, 0, 0, 0.2, 9, 9, 9, 9]])
    failed, stratum = [True, True, True, False, False, False, False, False], list("aaaabbbb")
    assert departure(margins, failed, np.ones((0, 8))).gap == pytest.approx([-7.24])
    found = departure(margins, failed, np.ones((0, 8)), strata=stratum)
    assert found.gap == pytest.approx([-0.2])
    assert found.counted.tolist() == [True] * 4 + [False] * 4


def test_a_resample_without_failures_has_no_gap() -> None:
    found = departure(np.array([[1.0, 2, 3]]), [True, False, False], np.array([[0, 2, 1], [1, 1, 1]]))
    assert np.isnan(found.draws[0, 0])
    assert found.draws[1, 0] == pytest.approx(-1.5)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [([-1, 1, 1], [1, 2, 2], 1), ([1, 1], [2, 2], 0), ([-2, 1], [-1, 2], 1), ([1, -1], [2, 1], None), ([-2], [-1], 0)],
)
def test_departs_at(low: list[int], high: list[int], expected: int | None) -> None:
    assert departs_at(np.array(low, dtype=float), np.array(high, dtype=float)) == expected


def test_refusals() -> None:
    with pytest.raises(UserError, match="no stratum with both"):
        departure(np.zeros((1, 3)), [True] * 3, np.ones((1, 3)))
