"""Contrast and plausibility cutoff in one go, as a decode step needs them: a Triton kernel and its plain torch twin.

Both compute ``mitigation.contrastive.formulas`` in float32 and neither makes the host wait. The twin is the default
and the kernel an option: nobody has measured the two on a GPU yet. ``task=bench_kernels`` does; its numbers belong
here, and the default follows from them. Knows nothing of images, models or caches.
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

Fused = Callable[..., Tensor]  # contrast_and_cut, or what computes the same


def contrast_and_cut(
    clean: Float[Tensor, "row vocab"],
    noised: Float[Tensor, "row vocab"],
    *,
    alpha: float,
    beta: float | None,
    gumbel: Float[Tensor, "row vocab"] | None = None,
) -> Float[Tensor, "row vocab"]:
    """(1 + α)·clean − α·noised where ``plausible(clean, beta)``, −inf elsewhere, plus ``gumbel`` if given; float32.

    With standard Gumbel noise (−log(−log u)) the argmax of a row is a draw from the softmax of its scores; at
    temperature T hand over T times the noise. A row with a NaN among its clean logits has no largest one, so with a
    cutoff all of it is −inf.

    Raises:
        UserError: α or β is out of range.
    """
    scores = contrast(clean, noised, alpha=alpha)
    if beta is not None:
        scores = scores.masked_fill(~plausible(clean, beta=beta), -torch.inf)
    return scores if gumbel is None else scores + gumbel.float()


def contrast_and_cut_triton(
    clean: Float[Tensor, "row vocab"],
    noised: Float[Tensor, "row vocab"],
    *,
    alpha: float,
    beta: float | None,
    gumbel: Float[Tensor, "row vocab"] | None = None,
) -> Float[Tensor, "row vocab"]:
    """``contrast_and_cut`` in two launches, one without a cutoff; any strides, read once or (``clean``) twice.

    Every operation rounds as the twin's does.

    Raises:
        UserError: α or β is out of range, shapes or devices differ, triton is not installed, or the tensors are on a
            CPU (where only Triton's interpreter runs it: ``TRITON_INTERPRET=1``, set before triton is imported).
    """
    check_alpha(alpha)
    check_beta(beta)
    _check_alike(clean, noised, gumbel)
    kernels = _kernels()
    _check_place(clean, kernels)
    rows, vocab = clean.shape
    chunks = -(-vocab // kernels.CHUNK)
    scores = torch.empty((rows, vocab), dtype=torch.float32, device=clean.device)
    if scores.numel() == 0:
        return scores
    peaks = scores.new_empty((rows, chunks)) if beta is not None else scores
    noise = scores if gumbel is None else gumbel
    grid = (rows, chunks)
    with torch.cuda.device_of(clean):  # a launch goes to the current device, which need not be the tensors'
        if beta is not None:
            kernels.chunk_peaks[grid](clean, *clean.stride(), peaks, vocab, chunks, CHUNK=kernels.CHUNK)
        kernels.contrast_chunk[grid](
            *(clean, *clean.stride(), noised, *noised.stride(), noise, *noise.stride()),
            *(peaks, scores, vocab, chunks),
            *(float(1 + alpha), float(alpha), 0.0 if beta is None else math.log(beta)),
            CUT=beta is not None,
            GUMBEL=gumbel is not None,
            CHUNKS=1 << (chunks - 1).bit_length(),
            CHUNK=kernels.CHUNK,
            enable_fp_fusion=False,  # torch rounds both products, and so does this
        )
    return scores


_BY_NAME: dict[str, Fused] = {"torch": contrast_and_cut, "triton": contrast_and_cut_triton}


def fused(kernel: str = "torch") -> Fused:
    """The implementation of that name, ``torch`` (the twin) or ``triton``; see the module for why the twin comes first.

    Raises:
        UserError: another name, or triton where it is not installed: before a model is built, not at its first step.
    """
    if kernel not in _BY_NAME:
        raise UserError(f"unknown kernel {kernel!r}; known: {', '.join(_BY_NAME)}; take one of them")
    if kernel == "triton":
        _kernels()
    return _BY_NAME[kernel]


def _kernels() -> ModuleType:
    """The compiled half, imported when it is first asked for: triton is an optional extra."""
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


def _check_alike(clean: Tensor, noised: Tensor, gumbel: Tensor | None) -> None:
    """UserError unless all have one shape and device: a kernel reads where it is told to, whatever lies there."""
    for name, other in (("noised", noised), ("gumbel", gumbel)):
        if other is not None and (other.shape != clean.shape or other.device != clean.device):
            raise UserError(
                f"{name} is {tuple(other.shape)} on {other.device}, clean {tuple(clean.shape)} on {clean.device}; "
                "all are row × vocabulary on one device; move or slice them alike"
            )


def _check_place(clean: Tensor, kernels: ModuleType) -> None:
    """UserError for tensors on a CPU, unless Triton interprets its kernels."""
    compiled = isinstance(kernels.chunk_peaks, kernels.triton.JITFunction)
    if compiled and clean.device.type == "cpu":
        raise UserError(
            "kernel='triton' with logits on the CPU; Triton compiles for GPUs; take kernel='torch', or move the model"
        )
