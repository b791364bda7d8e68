"""What margins owe to their sentences: planted shares are found, a uniform bias is told from one that differs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mitigation.prior_correction import WORTH, prior_share

SENTENCES = [f"sentence {i // 10}" for i in range(400)]
SAFE = np.arange(400) % 2 == 0


def planted(prior_spread: float, *, seed: int = 0, picture: float = 0.5) -> tuple[np.ndarray, np.ndarray]:
    """Margins of prior + picture, half safe and half unsafe in every sentence, all far below 0; and the priors."""
    rng = np.random.default_rng(seed)
    prior = np.repeat(prior_spread * rng.standard_normal(40), 10) - 5
    return prior + picture * (np.where(SAFE, 1, -1) + rng.standard_normal(400)), prior


def d_prime(margins: np.ndarray) -> float:
    spread = np.sqrt((margins[SAFE].var() + margins[~SAFE].var()) / 2)
    return float((margins[SAFE].mean() - margins[~SAFE].mean()) / spread)


def test_a_prior_that_differs_by_sentence_is_found_and_its_removal_helps() -> None:
    margins, prior = planted(4.0)
    found = prior_share(margins, prior, SENTENCES)
    assert found.weight == pytest.approx(1, abs=0.05)
    assert found.explained == pytest.approx(1 - 0.5 / margins.var(), abs=0.02)
    assert found.between > 0.95
    assert found.within == pytest.approx(1)
    assert found.helps
    assert d_prime(margins - found.weight * prior) > 4 * d_prime(margins)


def test_a_uniform_bias_is_no_prior_to_correct() -> None:
    margins, _ = planted(0.0)
    found = prior_share(margins, np.full(400, -5.0), SENTENCES)
    assert (found.weight, found.explained, found.factor, found.helps) == (0, 0, 1, False)
    assert np.isnan(found.correlation)
    assert prior_share(margins, -5 + 1e-7 * margins, SENTENCES).weight == 0  # rounding is no prior
    noise = np.repeat(np.random.default_rng(1).standard_normal(40), 10)
    assert not prior_share(margins, noise, SENTENCES).helps


def test_a_prior_that_still_sees_the_picture_does_not_help() -> None:
    margins, prior = planted(0.5)
    found = prior_share(margins, prior + 0.8 * (margins - prior), SENTENCES)
    assert found.factor > WORTH
    assert found.within < 0.5
    assert not found.helps


def test_the_factor_is_that_of_a_difference_that_stays() -> None:
    rng = np.random.default_rng(0)
    prior = np.repeat(rng.standard_normal(40), 10)
    margins = prior + 0.7 * rng.standard_normal(400)
    found = prior_share(margins, prior, SENTENCES)
    tiny = np.where(SAFE, 1e-3, -1e-3)  # against the spread, to which it adds nothing
    gained, had = (d_prime(m + tiny) - d_prime(m) for m in (margins - found.weight * prior, margins))
    assert gained / had == pytest.approx(found.factor, rel=1e-2)


@given(st.floats(-50, 50), st.floats(-50, 50), st.floats(0.1, 10), st.floats(0.1, 10))
def test_constants_and_scales_are_no_matter(up: float, aside: float, margin_scale: float, prior_scale: float) -> None:
    margins, prior = planted(2.0)
    plain = prior_share(margins, prior, SENTENCES)
    moved = prior_share(margin_scale * margins + up, prior_scale * prior + aside, SENTENCES)
    assert moved.weight == pytest.approx(plain.weight * margin_scale / prior_scale)
    for name in ("between", "explained", "correlation", "left", "factor", "within"):
        assert getattr(moved, name) == pytest.approx(getattr(plain, name)), name
    assert moved.helps == plain.helps
