"""The contrast with its cutoff: against the published outputs, row by row, and what is not finite."""

import math

import pytest
import torch
from torch import Tensor

from mitigation.contrastive.formulas import contrast, cut, plausible

NAN, FORBIDDEN = math.nan, -math.inf


def contrast_and_cut(clean: Tensor, noised: Tensor, *, alpha: float, beta: float | None) -> Tensor:
    return cut(contrast(clean, noised, alpha=alpha), clean, beta=beta)


def logits(rows: int, vocab: int, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
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


@pytest.mark.parametrize("beta", [None, 0.1, 1.0])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_it_is_the_two_formulas_in_float32(beta: float | None, dtype: torch.dtype) -> None:
    clean, noised = logits(3, 50, dtype=dtype)
    scores = contrast_and_cut(clean, noised, alpha=0.7, beta=beta)
    kept = plausible(clean, beta=beta)
    expected = contrast(clean, noised, alpha=0.7)
    assert scores.dtype == torch.float32
    assert torch.equal(scores.isfinite(), kept)
    assert torch.equal(scores[kept], expected[kept])


def test_one_row_never_touches_another() -> None:
    clean, noised = logits(4, 60)
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
    clean, noised = (one.cuda() for one in logits(8, vocab, dtype=torch.bfloat16))
    torch.cuda.set_sync_debug_mode("error")
    try:
        scores = contrast_and_cut(clean, noised, alpha=1.0, beta=0.1)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(scores.cpu(), contrast_and_cut(clean.cpu(), noised.cpu(), alpha=1.0, beta=0.1))
