"""What ``+exp=bench_vcd`` has measured: ratios, bounds, a table. Imports neither torch nor transformers."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.table import Table

from experiments.bench.timing import Turns
from experiments.bench.vcd_sizes import BOUNDS, Bound

if TYPE_CHECKING:
    from experiments.bench.vcd_variants import Reading

MEBIBYTE = 2**20


class Row(NamedTuple):
    """The result for one model and number of items; every ratio is of seconds a decoded token, the prompt left out.

    A generation's seconds are the median of its steps', a ratio the median over rounds in which both were measured.
    ``lazy_skipped`` is the share of steps that lazy decoding did without its noised branch.
    """

    size: str
    dtype: str
    items: int
    paired_over_plain: float
    lazy_over_plain: float
    sequential_over_plain: float
    two_forward_over_paired: float
    plain_ms_per_token: float
    lazy_skipped: float


@dataclass
class Measured:
    """All that was measured of one model with one number of items; ``peaks`` are bytes above the model, by variant."""

    size: str
    dtype: str
    items: int
    turns: Turns
    prefills: list[dict[str, float]] = field(default_factory=list)
    seconds: float = 0.0  # that its rounds have taken, prompts included
    peaks: dict[str, int] = field(default_factory=dict)
    first: "dict[str, Reading]" = field(default_factory=dict)

    @property
    def cost(self) -> float:
        """Seconds of a round."""
        return self.seconds / len(self.turns.rounds) if self.turns.rounds else 0.0

    def round(self) -> None:
        """Every variant once more."""
        self.prefills.append({})
        began = time.monotonic()
        self.turns.run()
        self.seconds += time.monotonic() - began

    def row(self) -> Row:
        """The result of these measurements."""
        ratio = self.turns.ratio
        return Row(
            size=self.size,
            dtype=self.dtype,
            items=self.items,
            paired_over_plain=ratio("paired", "plain"),
            lazy_over_plain=ratio("lazy", "plain"),
            sequential_over_plain=ratio("sequential", "plain"),
            two_forward_over_paired=ratio("two_forward", "paired"),
            plain_ms_per_token=1000 * self.turns.median("plain"),
            lazy_skipped=self.first["lazy"].skipped or 0.0,
        )

    def details(self) -> dict[str, Any]:
        """Every time and peak behind the row, and whether the contrasting variants gave the same tokens."""
        expected = self.first["two_forward"].tokens
        return {
            "size": self.size,
            "dtype": self.dtype,
            "items": self.items,
            "seconds_per_token": self.turns.rounds,
            "prefill_seconds": self.prefills,
            "peak_bytes": self.peaks,
            "same_tokens": {name: self.first[name].tokens == expected for name in ("sequential", "paired")},
        }

    def prefill(self, name: str) -> float:
        """Median seconds from the call to the first token."""
        return median(taken[name] for taken in self.prefills)


def judged(rows: Iterable[Row]) -> list[tuple[Bound, float]]:
    """The bounds that these rows are held to, each with the value measured."""
    measured = {(row.size, row.dtype, row.items): row._asdict() for row in rows}
    keys = {bound: (bound.size, bound.dtype, bound.items) for bound in BOUNDS}
    return [(bound, measured[key][bound.ratio]) for bound, key in keys.items() if key in measured]


def verdicts(rows: Iterable[Row]) -> list[str]:
    """A sentence a bound."""
    return [
        f"{bound.size} {bound.dtype}, {bound.items} item{'s' * (bound.items > 1)}: {bound.ratio.replace('_', ' ')} "
        f"{value:.2f}, {'at least' if bound.least else 'at most'} {bound.limit:.2f} wanted: "
        f"{'kept' if bound.met(value) else 'missed'}"
        for bound, value in judged(rows)
    ]


def tables(measured: Iterable[Measured]) -> list[Table]:
    """Medians and ratios of a decoded token; seconds to the first one, and peaks above the model in MiB."""
    times = _table(
        "A decoded token",
        (
            "items",
            "rounds",
            "plain\nms",
            "paired\n/plain",
            "lazy\n/plain",
            "sequential\n/plain",
            "two-forward\n/paired",
        ),
    )
    prompts = _table(
        "Prompt: seconds to the first token, and memory",
        ("items", "plain\ns", "paired\ns", "sequential\ns", "lazy\ns", "plain\nMiB", "paired\nMiB", "sequential\nMiB"),
    )
    for one in measured:
        row = one.row()
        named = f"{row.size} {row.dtype}", str(row.items)
        ratios = (row.paired_over_plain, row.lazy_over_plain, row.sequential_over_plain, row.two_forward_over_paired)
        plain = f"{row.plain_ms_per_token:.3g}"
        times.add_row(*named, str(len(one.turns.rounds)), plain, *(f"{ratio:.2f}" for ratio in ratios))
        peaks = (one.peaks.get(name) for name in ("plain", "paired", "sequential"))
        prompts.add_row(
            *named,
            *(f"{one.prefill(name):.3g}" for name in ("plain", "paired", "sequential", "lazy")),
            *("–" if peak is None else f"{peak / MEBIBYTE:.0f}" for peak in peaks),
        )
    return [times, prompts]


def _table(title: str, headings: Sequence[str]) -> Table:
    shown = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    shown.add_column("model")
    for heading in headings:
        shown.add_column(heading, justify="right")
    return shown
