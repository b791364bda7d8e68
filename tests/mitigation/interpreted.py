"""Triton's kernels without a GPU, for tests: calls of them in a process of their own. Imported there and here.

Triton decides when it is imported whether it compiles or interprets, and transformers imports it; so the process that
runs the tests cannot change its mind.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any
from unittest import mock

from jaxtyping import install_import_hook
from safetensors.torch import load, save
from torch import Tensor

Call = Callable[..., Tensor]


@contextmanager
def interpreter() -> Iterator[Call]:
    """``contrast_and_cut_triton``, interpreted; ``strided=True`` has it read every second column of wider logits."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        with mock.patch.dict(os.environ, TRITON_INTERPRET="1"):
            pool.submit(os.getpid).result()  # it has started, with that in its environment
        yield lambda clean, noised, **settings: _asked(pool, clean, noised, settings)


def compiled(architecture: int, dtype: str) -> list[int]:
    """Bytes of machine code of either kernel for an NVIDIA GPU, compiled in a process of its own; needs no GPU."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(_compiled, architecture, dtype).result()


def _asked(pool: ProcessPoolExecutor, clean: Tensor, noised: Tensor, settings: Any) -> Tensor:
    given = {"clean": clean, "noised": noised}
    tensors = save({name: one.contiguous() for name, one in given.items()})
    return load(pool.submit(_answered, tensors, settings).result())["scores"]


def _answered(tensors: bytes, settings: dict[str, Any]) -> bytes:
    from mitigation.contrastive.kernels import contrast_and_cut_triton

    given = load(tensors)
    if settings.pop("strided", False):
        given = {name: one.repeat_interleave(2, dim=1)[:, ::2] for name, one in given.items()}
        given["noised"] = given["noised"].t().contiguous().t()
        assert not any(one.is_contiguous() for one in given.values())
    return save({"scores": contrast_and_cut_triton(**given, **settings)})


def _compiled(architecture: int, dtype: str) -> list[int]:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    # As in the process of the tests, where this hook would wrap a kernel that did not ask to be left alone.
    with install_import_hook("mitigation", "beartype.beartype"):
        from mitigation.contrastive import kernels_triton

    pointers = {"clean": dtype, "noised": dtype, "peaks": "fp32", "scores": "fp32"}
    weights = ("clean_weight", "noised_weight", "log_beta")
    constants = {"CUT": True, "CHUNKS": 128, "CHUNK": kernels_triton.CHUNK}
    target, sizes = GPUTarget("cuda", architecture, 32), []
    for kernel in (kernels_triton.chunk_peaks, kernels_triton.contrast_chunk):
        signature = {name: "fp32" if name in weights else "i32" for name in kernel.arg_names}
        signature |= {name: f"*{pointers[name]}" for name in kernel.arg_names if name in pointers}
        fixed = {name: constants[name] for name in kernel.arg_names if name in constants}
        source = ASTSource(kernel, signature=signature | dict.fromkeys(fixed, "constexpr"), constexprs=fixed)
        sizes.append(len(compile(source, target=target, options={"enable_fp_fusion": False}).asm["cubin"]))
    return sizes
