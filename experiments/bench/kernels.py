"""``task=bench_kernels``: the fused contrast and cutoff on a GPU, as eager torch, as torch.compile and as Triton.

What it finds decides which of them ``mitigation.contrastive.kernels`` runs by default. Imports neither torch nor
transformers.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console

from experiments.bench.harness import Turns, timed
from experiments.config import Run
from experiments.report.table import Table, terminal
from experiments.runs.directory import open_run
from interp.errors import UserError
from mitigation.validation import check_alpha, check_beta

if TYPE_CHECKING:
    from mitigation.contrastive.kernels import Fused

CALLS = 50  # between two synchronisations; a single call is too short to time


class KernelTimes(NamedTuple):
    """Microseconds a call, the medians over rounds; ``largest_error`` is of scores from eager torch's."""

    rows: int
    vocabulary: int
    dtype: str
    gumbel: bool
    torch_us: float
    compile_us: float
    triton_us: float
    largest_error: float


@dataclass(frozen=True)
class KernelBench:
    """The task: every number of ``rows`` with every vocabulary, with and without Gumbel noise.

    Raises:
        UserError: numbers below 1, an unknown type, or another device than a GPU.
    """

    rows: list[int] = field(default_factory=lambda: [1, 2, 4, 8, 16, 32])
    vocabularies: list[int] = field(default_factory=lambda: [32064, 152064])
    dtype: str = "bfloat16"
    alpha: float = 1.0
    beta: float = 0.1
    rounds: int = 15
    device: str = "cuda"
    seed: int = 0

    def __post_init__(self) -> None:
        check_alpha(self.alpha)
        check_beta(self.beta)
        if not self.rows or not self.vocabularies or min(*self.rows, *self.vocabularies, self.rounds) < 1:
            raise UserError(
                f"rows={list(self.rows)}, vocabularies={list(self.vocabularies)}, rounds={self.rounds}: "
                "give at least one of each, all from 1"
            )
        if self.dtype not in ("bfloat16", "float16", "float32"):
            raise UserError(f"task.dtype={self.dtype!r}: known are bfloat16, float16, float32")
        if self.device.partition(":")[0] != "cuda":
            raise UserError(
                f"task.device={self.device!r}: these kernels are compiled for a GPU, and a CPU's times would decide "
                "nothing; run it where there is one, with task.device=cuda"
            )

    def __call__(self, run: Run) -> None:
        """Measures, writes ``metrics.json`` into a new run directory, prints the table.

        Raises:
            UserError: there is no such GPU, or no triton.
        """
        import torch

        if (torch.device(self.device).index or 0) >= torch.cuda.device_count():
            raise UserError(
                f"task.device={self.device!r}: torch {torch.__version__} sees {torch.cuda.device_count()} GPUs here; "
                "run it where there is one, with a torch built for its driver"
            )
        implementations()  # a missing triton is reported before the run directory is made
        console = Console()
        with open_run(run.output_root, run.name, run.config, run.config_hash, fresh=True) as store:
            console.print(f"run {store.path}", highlight=False, soft_wrap=True)
            rows = self.measure(self.device)
            store.write_json("metrics.json", self._metrics(rows))
            console.print(terminal(table(rows)))

    def measure(self, device: str, make: "Callable[[], dict[str, Fused]] | None" = None) -> list[KernelTimes]:
        """Every case in turn; within it the variants that ``make`` returns (``implementations``) by turns."""
        make = make or implementations
        cases = product(self.vocabularies, (False, True), self.rows)
        return [self._row(device, make(), *case) for case in cases]

    def _row(self, device: str, variants: "dict[str, Fused]", vocabulary: int, noise: bool, rows: int) -> KernelTimes:
        import torch

        from experiments.bench.harness import meter_for

        generator = torch.Generator(device).manual_seed(self.seed)
        dtype = getattr(torch, self.dtype)
        clean, noised = (
            3 * torch.randn(rows, vocabulary, generator=generator, device=device).to(dtype) for _ in range(2)
        )
        gumbel = -torch.empty(rows, vocabulary, device=device).exponential_(generator=generator).log()
        settings: dict[str, Any] = {"alpha": self.alpha, "beta": self.beta, "gumbel": gumbel if noise else None}
        scores = {name: variant(clean, noised, **settings) for name, variant in variants.items()}  # also compiles

        def calls(variant: "Fused") -> Callable[[], None]:
            def work() -> None:
                for _ in range(CALLS):
                    variant(clean, noised, **settings)

            return work

        synchronise = meter_for(torch.device(device)).synchronise
        turns = Turns({name: timed(calls(variant), synchronise=synchronise) for name, variant in variants.items()})
        for _ in range(self.rounds):
            turns.run()
        kept = scores["torch"].isfinite()
        errors = [(scores[name][kept] - scores["torch"][kept]).abs().max().item() for name in ("compile", "triton")]
        taken = {f"{name}_us": 1e6 * turns.median(name) / CALLS for name in variants}
        return KernelTimes(rows, vocabulary, self.dtype, noise, **taken, largest_error=max(errors))

    def _metrics(self, rows: list[KernelTimes]) -> dict[str, Any]:
        import torch
        import triton

        return {
            "benchmark": "kernels",
            "calls_between_synchronisations": CALLS,
            "environment": {
                "device": torch.cuda.get_device_name(self.device),
                "versions": {"torch": torch.__version__, "triton": triton.__version__},
            },
            "rows": [row._asdict() for row in rows],
        }


def implementations() -> "dict[str, Fused]":
    """Eager torch, the same under ``torch.compile`` with an empty cache, and the Triton kernel.

    Raises:
        UserError: triton is not installed.
    """
    import torch

    from mitigation.contrastive.kernels import contrast_and_cut, fused

    torch.compiler.reset()  # after eight shapes torch.compile would fall back to eager torch, and not say so
    compiled: Any = torch.compile(contrast_and_cut, dynamic=False)
    return {"torch": contrast_and_cut, "compile": compiled, "triton": fused("triton")}


def table(rows: list[KernelTimes]) -> Table:
    """A row per case, in microseconds a call."""
    records = [
        {
            "vocabulary": str(row.vocabulary),
            "rows": str(row.rows),
            "Gumbel": "yes" if row.gumbel else "no",
            "torch": f"{row.torch_us:.1f}",
            "compile": f"{row.compile_us:.1f}",
            "triton": f"{row.triton_us:.1f}",
            "max error": f"{row.largest_error:.0e}",
        }
        for row in rows
    ]
    return Table.of("Contrast and cutoff: µs a call", records)
