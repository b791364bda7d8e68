# mypy: allow-untyped-defs
"""The two passes of ``mitigation.contrastive.kernels.contrast_and_cut_triton`` over logits, in Triton.

A row is longer than a block, so the first pass finds the largest clean logit of every chunk. The second finds the row's
maximum among those while it contrasts its own chunk. Both run one program per row and chunk: a decoding step has few
rows, and one program per row would leave most of a GPU idle. Importing this module requires triton.
"""

from typing import no_type_check

import triton
import triton.language as tl

CHUNK = 2048  # tokens per program; a power of two


@triton.jit
@no_type_check  # triton compiles the source: a runtime type checker must not wrap it
def chunk_peaks(clean, row_stride, token_stride, peaks, vocab, chunks, CHUNK: tl.constexpr):
    """Writes the largest logit of each chunk of each row to ``peaks`` (row × chunk), NaN where the chunk has one."""
    row = tl.program_id(0).to(tl.int64)  # 64 bits: offsets into the logits of whole prompts exceed 2³¹
    chunk = tl.program_id(1)
    token = chunk * CHUNK + tl.arange(0, CHUNK)
    logits = tl.load(
        clean + row * row_stride + token.to(tl.int64) * token_stride, mask=token < vocab, other=float("-inf")
    ).to(tl.float32)
    # Propagate NaN as torch does; the GPU's maximum would drop it.
    broken = tl.max((logits != logits).to(tl.int32), axis=0)
    tl.store(peaks + row * chunks + chunk, tl.where(broken != 0, float("nan"), tl.max(logits, axis=0)))


@triton.jit
@no_type_check
def contrast_chunk(
    clean,
    clean_row,
    clean_token,
    noised,
    noised_row,
    noised_token,
    peaks,
    scores,
    vocab,
    chunks,
    clean_weight,
    noised_weight,
    log_beta,
    CUT: tl.constexpr,
    CHUNKS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Writes a chunk of ``scores`` (row × vocab). ``CHUNKS`` is ``chunks`` rounded up to a power of two."""
    row = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    inside = token < vocab
    far = token.to(tl.int64)
    own = tl.load(clean + row * clean_row + far * clean_token, mask=inside, other=0).to(tl.float32)
    worse = tl.load(noised + row * noised_row + far * noised_token, mask=inside, other=0).to(tl.float32)
    contrasted = clean_weight * own - noised_weight * worse
    if CUT:
        chunk = tl.arange(0, CHUNKS)
        found = tl.load(peaks + row * chunks + chunk, mask=chunk < chunks, other=float("-inf"))
        broken = tl.max((found != found).to(tl.int32), axis=0)
        peak = tl.where(broken != 0, float("nan"), tl.max(found, axis=0))
        contrasted = tl.where(own >= log_beta + peak, contrasted, float("-inf"))
    tl.store(scores + row * vocab + token, contrasted, mask=inside)
