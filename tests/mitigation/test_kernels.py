"""The fused contrast and its Triton kernel: both against the published outputs, the kernel against its twin."""

import inspect
import math
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from interp.errors import UserError
from mitigation.contrastive import kernels
from mitigation.contrastive.formulas import contrast, plausible
from mitigation.contrastive.kernels import contrast_and_cut, contrast_and_cut_triton, fused
from tests.conftest import REPOSITORY
from tests.mitigation.interpreted import Call, compiled, interpreter

triton = pytest.importorskip("triton")
CHUNK = 2048
NAN, FORBIDDEN = math.nan, -math.inf


@pytest.fixture(scope="module")
def kernel() -> Iterator[Call]:
    with interpreter() as call:
        yield call


def logits(rows: int, vocab: int, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Clean and noised, spread so that a cutoff of 0.1 keeps several tokens a row."""
    generator = torch.Generator().manual_seed(seed)
    clean = 3 * torch.randn(rows, vocab, generator=generator)
    return clean.to(dtype), (clean + torch.randn(rows, vocab, generator=generator)).to(dtype)


def same(left: Tensor, right: Tensor) -> None:
    torch.testing.assert_close(left, right, atol=0, rtol=0, equal_nan=True)


@pytest.mark.long
@pytest.mark.parametrize("case", range(5))
def test_published_outputs_are_matched_by_both(published: dict[str, Tensor], kernel: Call, case: int) -> None:
    alpha, beta = published[f"{case}.alpha_beta"].tolist()
    for one in (contrast_and_cut, kernel):
        scores = one(published[f"{case}.clean"], published[f"{case}.noisy"], alpha=alpha, beta=beta)
        kept = scores.isfinite()
        assert torch.equal(kept.nonzero(), published[f"{case}.kept_index"].long())
        torch.testing.assert_close(scores[kept], published[f"{case}.kept_value"], atol=1e-4, rtol=0)
        assert (scores[~kept] == FORBIDDEN).all()


@pytest.mark.parametrize("beta", [None, 0.1, 1.0])
def test_the_twin_is_the_formulas(beta: float | None) -> None:
    clean, noised = logits(3, 50, dtype=torch.bfloat16)
    scores = contrast_and_cut(clean, noised, alpha=0.7, beta=beta)
    kept = plausible(clean, beta=beta)
    expected = contrast(clean, noised, alpha=0.7)
    assert scores.dtype == torch.float32
    assert torch.equal(scores.isfinite(), kept)
    assert torch.equal(scores[kept], expected[kept])


@pytest.mark.parametrize("beta", [None, 0.1, 1.0])
@pytest.mark.parametrize("alpha", [0.0, 1.0, 2.5])
@pytest.mark.parametrize("vocab", [1, CHUNK, 2 * CHUNK + 3])
def test_the_kernel_is_its_twin(kernel: Call, alpha: float, beta: float | None, vocab: int) -> None:
    clean, noised = logits(3, vocab)
    settings = {"alpha": alpha, "beta": beta}
    same(kernel(clean, noised, **settings), contrast_and_cut(clean, noised, **settings))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("strided", [False, True])
def test_any_type_and_any_stride(kernel: Call, dtype: torch.dtype, strided: bool) -> None:
    clean, noised = logits(2, CHUNK + 5, dtype=dtype)
    scores = kernel(clean, noised, alpha=1.0, beta=0.05, strided=strided)
    same(scores, contrast_and_cut(clean, noised, alpha=1.0, beta=0.05))
    assert scores.dtype == torch.float32


@given(
    st.lists(st.sampled_from([NAN, FORBIDDEN, math.inf, 0.0, 1.5, -2.0, 30.0]), min_size=12, max_size=12),
    st.sampled_from([0.0, 1.0]),
    st.sampled_from([None, 0.1, 1.0]),
)
@settings(max_examples=60)
def test_what_is_not_finite_is_treated_alike(
    kernel: Call, values: list[float], alpha: float, beta: float | None
) -> None:
    clean, noised = torch.tensor(values).reshape(2, 2, 3)
    same(kernel(clean, noised, alpha=alpha, beta=beta), contrast_and_cut(clean, noised, alpha=alpha, beta=beta))


@pytest.mark.parametrize("place", [0, CHUNK - 1, CHUNK, 2 * CHUNK])
def test_one_row_never_touches_another_whatever_chunk_it_is_in(kernel: Call, place: int) -> None:
    clean, noised = logits(4, 2 * CHUNK + 1)
    clean[0, place] = NAN
    clean[1] = FORBIDDEN
    clean[2, place] = 1000.0
    scores = kernel(clean, noised, alpha=1.0, beta=0.1)
    assert (scores[:2] == FORBIDDEN).all()
    assert scores[2].isfinite().nonzero().tolist() == [[place]]
    same(scores[3:], contrast_and_cut(clean[3:], noised[3:], alpha=1.0, beta=0.1))


def test_alpha_zero_without_cutoff_is_the_clean_row(kernel: Call) -> None:
    clean, noised = logits(2, CHUNK + 1)
    for one in (contrast_and_cut, kernel):
        same(one(clean, noised, alpha=0.0, beta=None), clean)


@pytest.mark.parametrize("one", [contrast_and_cut, contrast_and_cut_triton])
def test_settings_out_of_range_are_refused(one: Call) -> None:
    clean, noised = logits(1, 2)
    with pytest.raises(UserError, match=r"alpha=-1"):
        one(clean, noised, alpha=-1.0, beta=None)
    with pytest.raises(UserError, match=r"beta=0"):
        one(clean, noised, alpha=1.0, beta=0.0)


def test_other_shapes_and_devices_are_refused_before_anything_is_read() -> None:
    unchecked = inspect.unwrap(contrast_and_cut_triton)
    for other in (torch.zeros(2, 3), torch.zeros(2, 4, device="meta")):
        with pytest.raises(UserError, match=r"noised is \(2, .\) on .*clean \(2, 4\) on cpu"):
            unchecked(torch.zeros(2, 4), other, alpha=1.0, beta=0.1)


def test_the_compiled_kernel_says_that_it_needs_a_gpu() -> None:
    with pytest.raises(UserError, match=r"CPU.*kernel='torch'"):
        contrast_and_cut_triton(*logits(1, 2), alpha=1.0, beta=0.1)


def test_the_twin_is_the_default_and_names_are_checked() -> None:
    assert fused() is fused("torch") is contrast_and_cut
    assert fused("triton") is contrast_and_cut_triton
    with pytest.raises(UserError, match=r"unknown kernel 'cuda'; known: torch, triton"):
        fused("cuda")


@pytest.mark.long
def test_without_triton_the_twin_works_and_the_kernel_names_the_way_out() -> None:
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "import torch; from mitigation.contrastive.kernels import *; from mitigation.contrastive.kernels import fused\n"
        "print(fused()(torch.zeros(1, 2), torch.zeros(1, 2), alpha=1.0, beta=0.1).tolist())\n"
        "try: fused('triton')\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert "[[0.0, 0.0]]" in done.stdout
    assert "UserError kernel='triton' needs the package triton" in done.stdout
    assert "forestlens[triton]" in done.stdout


def test_another_import_error_is_not_blamed_on_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mitigation.contrastive.kernels_triton", None)
    monkeypatch.delattr("mitigation.contrastive.kernels_triton", raising=False)
    with pytest.raises(ModuleNotFoundError):
        kernels._kernels()


@pytest.mark.long
def test_both_kernels_compile_to_machine_code_for_a_gpu_that_is_not_here() -> None:
    assert min(compiled(90, "bf16")) > 0


@pytest.mark.gpu
@pytest.mark.parametrize("vocab", [CHUNK, 32064, 152064])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_on_a_gpu_both_agree_and_neither_makes_the_host_wait(vocab: int, dtype: torch.dtype) -> None:
    clean, noised = (one.cuda() for one in logits(8, vocab, dtype=dtype))
    clean[3, 7] = NAN
    contrast_and_cut_triton(clean, noised, alpha=1.0, beta=0.1)  # compiles
    torch.cuda.set_sync_debug_mode("error")
    try:
        mine = contrast_and_cut_triton(clean, noised, alpha=1.0, beta=0.1)
        twin = contrast_and_cut(clean, noised, alpha=1.0, beta=0.1)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(mine.isfinite(), twin.isfinite())
    torch.testing.assert_close(mine, twin, atol=1e-4, rtol=0)
