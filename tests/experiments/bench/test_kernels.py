"""The kernels' benchmark where there is no GPU: that it says so, and that it compares what it says it does."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from experiments.bench.kernels import CALLS, KernelBench, KernelTimes, implementations, table
from interp.errors import UserError
from mitigation.contrastive.kernels import contrast_and_cut
from tests.experiments.compose import run_of


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_refuses_and_leaves_nothing(tmp_path: Any) -> None:
    run = run_of("task=bench_kernels", f"output_root={tmp_path}")
    with pytest.raises(UserError, match=r"sees 0 GPUs here; run it where there is one"):
        run.task(run)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("task.device=cpu", "task.device='cpu': these kernels are compiled for a GPU"),
        ("task.rows=[]", "rows=[]"),
        ("task.rows=[0]", "rows=[0]"),
        ("task.vocabularies=[]", "vocabularies=[]"),
        ("task.rounds=0", "rounds=0"),
        ("task.dtype=int8", "task.dtype='int8'"),
        ("task.beta=2", "beta=2"),
        ("task.alpha=-1", "alpha=-1"),
    ],
)
def test_bad_options_are_named(override: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        run_of("task=bench_kernels", override)
    assert message in str(error.value)


def test_every_case_is_measured_with_all_variants_and_errors_are_found() -> None:
    seen: list[tuple[int, ...]] = []

    def off_by(error: float) -> Callable[..., Tensor]:
        def variant(clean: Tensor, noised: Tensor, **settings: Any) -> Tensor:
            seen.append((*clean.shape, settings["gumbel"] is not None))
            assert clean.dtype == noised.dtype == torch.bfloat16
            return contrast_and_cut(clean, noised, **settings) + error

        return variant

    bench = KernelBench(rows=[1, 3], vocabularies=[40], rounds=2)
    variants = {"torch": contrast_and_cut, "compile": off_by(0), "triton": off_by(0.5)}
    rows = bench.measure("cpu", lambda: dict(variants))
    assert [(row.rows, row.vocabulary, row.gumbel) for row in rows] == [
        (1, 40, False),
        (3, 40, False),
        (1, 40, True),
        (3, 40, True),
    ]
    assert all(row.largest_error == pytest.approx(0.5, abs=1e-5) for row in rows)
    assert all(min(row.torch_us, row.compile_us, row.triton_us) > 0 for row in rows)
    assert seen.count((3, 40, True)) == 2 * (1 + 2 * CALLS)
    assert len(table(rows).rows) == 4


@pytest.mark.gpu
def test_on_a_gpu_all_three_agree() -> None:
    (row,) = KernelBench(rows=[4], vocabularies=[32064], rounds=1).measure("cuda")[:1]
    assert isinstance(row, KernelTimes)
    assert row.largest_error < 1e-4
    assert set(implementations()) == {"torch", "compile", "triton"}
