"""Contrast and plausibility cutoff fused for a decoding step: a Triton kernel and the same in plain torch.

Both compute ``mitigation.contrastive.formulas`` in float32 without synchronising with the host. Plain torch is the
default, because the two have not been compared on a GPU yet; ``task=gpu_report task.only=[kernels]`` does that.
"""

import math
from collections.abc import Callable
from types import ModuleType

import torch
from jaxtyping import Float
from torch import Tensor

from interp.errors import UserError
from mitigation.contrastive.formulas import contrast, plausible
from mitigation.validation import check_alpha, check_beta

Fused = Callable[..., Tensor]  # the signature of contrast_and_cut


def contrast_and_cut(
    clean: Float[Tensor, "row vocab"],
    noised: Float[Tensor, "row vocab"],
    *,
    alpha: float,
    beta: float | None,
) -> Float[Tensor, "row vocab"]:
    """(1 + α)·clean − α·noised where ``plausible(clean, beta)``, −inf elsewhere; float32.

    With a cutoff, a row with a NaN among its clean logits is all −inf.

    Raises:
        UserError: α or β is out of range.
    """
    scores = contrast(clean, noised, alpha=alpha)
    return scores if beta is None else scores.masked_fill(~plausible(clean, beta=beta), -torch.inf)


def contrast_and_cut_triton(
    clean: Float[Tensor, "row vocab"],
    noised: Float[Tensor, "row vocab"],
    *,
    alpha: float,
    beta: float | None,
) -> Float[Tensor, "row vocab"]:
    """``contrast_and_cut`` in two kernel launches, or one without a cutoff. Accepts any strides;
    reads each tensor once, ``clean`` twice with a cutoff.

    Every operation rounds as in the torch version.

    Raises:
        UserError: α or β is out of range, shapes or devices differ, triton is not installed, or the tensors are on a
            CPU (where only Triton's interpreter runs it: ``TRITON_INTERPRET=1``, set before triton is imported).
    """
    check_alpha(alpha)
    check_beta(beta)
    if noised.shape != clean.shape or noised.device != clean.device:
        raise UserError(
            f"noised is {tuple(noised.shape)} on {noised.device}, clean {tuple(clean.shape)} on {clean.device}; "
            "both are row × vocabulary on one device; move or slice them alike"
        )
    kernels = _kernels()
    _check_place(clean, kernels)
    rows, vocab = clean.shape
    chunks = -(-vocab // kernels.CHUNK)
    scores = torch.empty((rows, vocab), dtype=torch.float32, device=clean.device)
    if scores.numel() == 0:
        return scores
    peaks = scores.new_empty((rows, chunks)) if beta is not None else scores
    grid = (rows, chunks)
    with torch.cuda.device_of(clean):  # launch on the tensors' device
        if beta is not None:
            kernels.chunk_peaks[grid](clean, *clean.stride(), peaks, vocab, chunks, CHUNK=kernels.CHUNK)
        kernels.contrast_chunk[grid](
            *(clean, *clean.stride(), noised, *noised.stride()),
            *(peaks, scores, vocab, chunks),
            *(float(1 + alpha), float(alpha), 0.0 if beta is None else math.log(beta)),
            CUT=beta is not None,
            CHUNKS=1 << (chunks - 1).bit_length(),
            CHUNK=kernels.CHUNK,
            enable_fp_fusion=False,  # round both products, as torch does
        )
    return scores


_BY_NAME: dict[str, Fused] = {"torch": contrast_and_cut, "triton": contrast_and_cut_triton}


def fused(kernel: str = "torch") -> Fused:
    """The implementation named ``torch`` or ``triton``.

    Raises:
        UserError: another name, or triton is not installed (reported before the model is built).
    """
    if kernel not in _BY_NAME:
        raise UserError(f"unknown kernel {kernel!r}; known: {', '.join(_BY_NAME)}; take one of them")
    if kernel == "triton":
        _kernels()
    return _BY_NAME[kernel]


def _kernels() -> ModuleType:
    """The Triton module, imported on first use: triton is an optional dependency."""
    try:
        from mitigation.contrastive import kernels_triton
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "triton":
            raise
        raise UserError(
            "kernel='triton' needs the package triton, which is not installed here; "
            "pip install 'forestlens[triton]', or take kernel='torch', which computes the same"
        ) from error
    return kernels_triton


def _check_place(clean: Tensor, kernels: ModuleType) -> None:
    """Checks that the tensors are on a GPU, unless Triton runs in interpreter mode.

    Raises:
        UserError: they are on a CPU.
    """
    compiled = isinstance(kernels.chunk_peaks, kernels.triton.JITFunction)
    if compiled and clean.device.type == "cpu":
        raise UserError(
            "kernel='triton' with logits on the CPU; Triton compiles for GPUs; take kernel='torch', or move the model"
        )
