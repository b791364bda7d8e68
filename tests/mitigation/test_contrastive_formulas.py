"""The formulas against the published code's outputs, a slow loop, and their laws."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mitigation.contrastive.processors import contrast, cut, plausible

ALPHAS = st.floats(0, 8)
BETAS = st.floats(1e-6, 1)


@st.composite
def logits(draw: st.DrawFn) -> Tensor:
    """A few rows with ties and large values; a quarter steps, so that sums are exact."""
    rows, vocab = draw(st.integers(1, 3)), draw(st.integers(1, 12))
    quarters = st.lists(st.integers(-160, 160), min_size=rows * vocab, max_size=rows * vocab)
    return torch.tensor(draw(quarters)).reshape(rows, vocab) / 4


@given(logits(), ALPHAS, BETAS)
def test_a_slow_loop_agrees(clean: Tensor, alpha: float, beta: float) -> None:
    noised = clean.roll(1, dims=1)
    scores, kept = contrast(clean, noised, alpha=alpha), plausible(clean, beta=beta)
    for row in range(len(clean)):
        likeliest = max(clean[row].tolist())
        for token in range(clean.shape[1]):
            own = clean[row, token].item()
            assert scores[row, token].item() == pytest.approx(own + alpha * (own - noised[row, token].item()), abs=1e-3)
            ratio = math.exp(own - likeliest)
            if not math.isclose(ratio, beta, rel_tol=1e-4):
                assert kept[row, token].item() == (ratio >= beta)


@given(logits())
def test_beta_one_keeps_only_the_likeliest_and_none_keeps_all(clean: Tensor) -> None:
    assert torch.equal(plausible(clean, beta=1.0), clean == clean.max(dim=1, keepdim=True).values)
    assert plausible(clean, beta=None).all()


@given(logits())
def test_alpha_zero_is_the_clean_branch_bit_for_bit(clean: Tensor) -> None:
    assert torch.equal(contrast(clean, clean.flip(0) * 3, alpha=0.0), clean)


def test_half_precision_is_contrasted_in_float32() -> None:
    clean, noised = torch.tensor([[20.125, 20.0]]).bfloat16(), torch.tensor([[20.0, 19.875]]).bfloat16()
    scores = contrast(clean, noised, alpha=0.3)
    assert scores.dtype == torch.float32
    torch.testing.assert_close(
        scores, torch.tensor([[20.1625, 20.0375]])
    )  # on bfloat16's grid both would be 20.125 or 20
    assert plausible(clean, beta=0.89).tolist() == [[True, False]]  # e^-0.125 is 0.882; on the grid the cut is 20.0


def test_a_forbidden_token_stays_forbidden() -> None:
    clean = torch.tensor([[-math.inf, 1.0, 0.0]])
    assert contrast(clean, torch.tensor([[5.0, 5.0, 5.0]]), alpha=1.0)[0, 0] == -math.inf
    assert plausible(clean, beta=0.1).tolist() == [[False, True, True]]


NAN, FORBIDDEN = math.nan, -math.inf


def contrast_and_cut(clean: Tensor, noised: Tensor, *, alpha: float, beta: float | None) -> Tensor:
    return cut(contrast(clean, noised, alpha=alpha), clean, beta=beta)


def drawn_logits(rows: int, vocab: int, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Clean and noised, spread so that a cutoff of 0.1 keeps several tokens a row."""
    generator = torch.Generator().manual_seed(seed)
    clean = 3 * torch.randn(rows, vocab, generator=generator)
    return clean.to(dtype), (clean + torch.randn(rows, vocab, generator=generator)).to(dtype)


@pytest.mark.parametrize("case", range(5))
def test_published_outputs_are_matched(published: dict[str, Tensor], case: int) -> None:
    alpha, beta = published[f"{case}.alpha_beta"].tolist()
    scores = contrast_and_cut(published[f"{case}.clean"], published[f"{case}.noisy"], alpha=alpha, beta=beta)
    kept = scores.isfinite()
    assert torch.equal(kept.nonzero(), published[f"{case}.kept_index"].long())
    torch.testing.assert_close(scores[kept], published[f"{case}.kept_value"], atol=1e-4, rtol=0)
    assert (scores[~kept] == FORBIDDEN).all()


def test_one_row_never_touches_another() -> None:
    clean, noised = drawn_logits(4, 60)
    clean[0, 7] = NAN
    clean[1] = FORBIDDEN
    clean[2, 7] = 1000.0
    scores = contrast_and_cut(clean, noised, alpha=1.0, beta=0.1)
    assert (scores[:2] == FORBIDDEN).all()
    assert scores[2].isfinite().nonzero().tolist() == [[7]]
    assert torch.equal(scores[3:], contrast_and_cut(clean[3:], noised[3:], alpha=1.0, beta=0.1))


@pytest.mark.gpu
@pytest.mark.parametrize("vocab", [32064, 152064])
def test_on_a_gpu_the_host_does_not_wait(vocab: int) -> None:
    clean, noised = (one.cuda() for one in drawn_logits(8, vocab, dtype=torch.bfloat16))
    torch.cuda.set_sync_debug_mode("error")
    try:
        scores = contrast_and_cut(clean, noised, alpha=1.0, beta=0.1)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(scores.cpu(), contrast_and_cut(clean.cpu(), noised.cpu(), alpha=1.0, beta=0.1))
