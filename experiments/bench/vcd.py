"""``task=bench_vcd``: what contrastive decoding and float32 logits cost a token, beside plain decoding.

Random weights: time and memory depend on a model's shape, not on its weights. What a model says decides only how often
a second branch is needed; so answers of the bundled organism are timed too. Imports neither torch nor transformers.
"""

import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from experiments.bench.harness import MEBIBYTE, Turns, check_budget, load_average, machine
from experiments.bench.models import DECODING_SIZES
from experiments.config import Run
from experiments.report.table import Column, Narrow, Table, terminal
from experiments.runs.directory import open_run
from interp.errors import UserError

if TYPE_CHECKING:
    from experiments.bench.vcd_answers import AnswerCost
    from experiments.bench.vcd_variants import DecodingRunner, GenerationReading


@dataclass(frozen=True)
class RatioBound:
    """``ratio`` of a row at this size, type and number of items is to be at most (``least``: at least) ``limit``."""

    size: str
    dtype: str
    items: int
    ratio: str
    limit: float
    least: bool = False

    def met(self, value: float) -> bool:
        """Whether a measured ratio keeps to it."""
        return value >= self.limit if self.least else value <= self.limit


BOUNDS = (
    RatioBound("tiny", "float32", 1, "paired_over_plain", 1.40),
    RatioBound("tiny", "float32", 1, "two_forward_over_paired", 1.25, least=True),
    RatioBound("tiny", "float32", 1, "lazy_over_plain", 1.25),
    RatioBound("cpu", "bfloat16", 1, "paired_over_plain", 1.50),
    RatioBound("cpu", "bfloat16", 1, "answers_over_plain", 1.05),
    RatioBound("cpu", "bfloat16", 1, "whole_over_plain", 1.15),
    RatioBound("7b", "bfloat16", 1, "answers_over_plain", 1.02),
    RatioBound("7b", "bfloat16", 1, "whole_over_plain", 1.05),
    RatioBound("7b", "bfloat16", 1, "paired_over_plain", 1.10),
    RatioBound("7b", "bfloat16", 8, "paired_over_plain", 1.35),
    RatioBound("7b_qwen", "bfloat16", 1, "paired_over_plain", 1.10),
    RatioBound("7b_qwen", "bfloat16", 8, "paired_over_plain", 1.35),
)


SEQUENTIAL = 1.70  # at most, of an answer of the organism over a plain one, on a CPU


class DecodingCost(NamedTuple):
    """The result for one model and number of items; every ratio is of seconds a decoded token, the prompt left out.

    A generation's seconds are the median of its steps', a ratio the median over rounds in which both were measured.
    ``answers`` and ``whole`` are plain with the float32 logits that margins and contrasts are computed from.
    ``lazy_skipped`` is the share of steps that lazy decoding did without its noised branch.
    """

    size: str
    dtype: str
    items: int
    paired_over_plain: float
    lazy_over_plain: float
    sequential_over_plain: float
    two_forward_over_paired: float
    answers_over_plain: float
    whole_over_plain: float
    two_forward_over_plain: float
    plain_ms_per_token: float
    lazy_skipped: float


@dataclass
class DecodingMeasurements:
    """All that was measured of one model with one number of items; ``peaks`` are bytes above the model, by variant."""

    size: str
    dtype: str
    items: int
    turns: Turns
    prefills: list[dict[str, float]] = field(default_factory=list)
    seconds: float = 0.0  # that its rounds have taken, prompts included
    peaks: dict[str, int] = field(default_factory=dict)
    first: "dict[str, GenerationReading]" = field(default_factory=dict)

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

    def row(self) -> DecodingCost:
        """The result of these measurements."""
        ratio = self.turns.ratio
        return DecodingCost(
            size=self.size,
            dtype=self.dtype,
            items=self.items,
            paired_over_plain=ratio("paired", "plain"),
            lazy_over_plain=ratio("lazy", "plain"),
            sequential_over_plain=ratio("sequential", "plain"),
            two_forward_over_paired=ratio("two_forward", "paired"),
            answers_over_plain=ratio("answers", "plain"),
            whole_over_plain=ratio("whole", "plain"),
            two_forward_over_plain=ratio("two_forward", "plain"),
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
            "first_token_over_plain": {
                name: median(taken[name] / taken["plain"] for taken in self.prefills) for name in self.turns.variants
            },
            "peak_bytes": self.peaks,
            "same_tokens": {name: self.first[name].tokens == expected for name in ("sequential", "paired")},
        }

    def prefill(self, name: str) -> float:
        """Median seconds from the call to the first token."""
        return median(taken[name] for taken in self.prefills)


def applicable_bounds(rows: Iterable[DecodingCost]) -> list[tuple[RatioBound, float]]:
    """The bounds that these rows are held to, each with the value measured."""
    measured = {(row.size, row.dtype, row.items): row._asdict() for row in rows}
    keys = {bound: (bound.size, bound.dtype, bound.items) for bound in BOUNDS}
    return [(bound, measured[key][bound.ratio]) for bound, key in keys.items() if key in measured]


def bound_sentences(rows: Iterable[DecodingCost]) -> list[str]:
    """A sentence for each bound: the ratio, the limit, and whether it was kept."""
    return [
        f"{bound.size} {bound.dtype}, {bound.items} item{'s' * (bound.items > 1)}: {bound.ratio.replace('_', ' ')} "
        f"{value:.2f}, {'at least' if bound.least else 'at most'} {bound.limit:.2f} wanted: "
        f"{'kept' if bound.met(value) else 'missed'}"
        for bound, value in applicable_bounds(rows)
    ]


def tables(measured: Iterable[DecodingMeasurements]) -> list[Table]:
    """Medians and ratios of a decoded token; seconds to the first one, and peaks above the model in MiB."""
    listed = list(measured)
    token, prompt = _columns(TOKEN_COLUMNS, fold=12), _columns(PROMPT_COLUMNS, fold=8)
    about = "Prompt: seconds to the first token, and memory"
    return [
        Table.of("A decoded token", map(_token_record, listed), columns=token, legend=TERMS),
        Table.of(about, map(_prompt_record, listed), columns=prompt),
    ]


def answer_tables(rows: "Iterable[AnswerCost]") -> list[Table]:
    """Whole answers of the organism over plain ones; none where none were timed."""
    records = [
        {"tokens at most": str(row.limit), "tokens": f"{row.tokens:.1f}", "plain (ms)": f"{row.plain_ms:.3g}"}
        | {heading: f"{getattr(row, ratio):.2f}" for heading, ratio in RATIOS.items() if hasattr(row, ratio)}
        for row in rows
    ]
    return [Table.of("An answer of the organism", records, columns=_columns(list(records[0])))] if records else []


def answer_sentences(rows: "Iterable[AnswerCost]", device: str) -> list[str]:
    """Whether the sequential branch keeps to its bound; none on a GPU, where it leaves no step out."""
    return [
        f"an answer of at most {row.limit} token{'s' * (row.limit > 1)}: sequential over plain "
        f"{row.sequential_over_plain:.2f}, at most {SEQUENTIAL:.2f} wanted: "
        f"{'kept' if row.sequential_over_plain <= SEQUENTIAL else 'missed'}"
        for row in rows
        if device == "cpu"
    ]


RATIOS = {
    "paired/plain": "paired_over_plain",
    "lazy/plain": "lazy_over_plain",
    "sequential/plain": "sequential_over_plain",
    "two-forward/plain": "two_forward_over_plain",
    "two-forward/paired": "two_forward_over_paired",
    "answers/plain": "answers_over_plain",
    "whole/plain": "whole_over_plain",
}
TOKEN_COLUMNS = ("model", "items", "rounds", "plain (ms)", *RATIOS)
OF_OTHERS = "two-forward/paired"  # left out of a terminal, which has 80 columns and the two that give it
TERMS = (
    "plain: without contrast. two-forward: the published loop. sequential, paired, lazy: our branches, one after the "
    "other, both in one batch, the second only where it can change the choice. answers, whole: plain, with the logits "
    "of Yes and No, or of all words, from a float32 head. /plain: times what plain takes."
)
PROMPTED, PEAKED = ("plain", "paired", "sequential", "two-forward", "lazy"), ("plain", "paired", "sequential")
PROMPT_COLUMNS = ("model", "items", *(f"{name} (s)" for name in PROMPTED), *(f"{name} (MiB)" for name in PEAKED))


def _columns(headings: Sequence[str], *, fold: int = 0) -> list[Column]:
    """In a terminal the unit, or what a time is divided by, stands below the name; a model's name is folded."""

    def column(name: str) -> Column:
        if name == "model":
            return Column(name, "left", fold=fold)
        short = re.sub(r" \((.*)\)", r"\n\1", name).replace("/", "\n/").replace("two-", "two-\n")
        return Column(name, short=short, narrow=Narrow.NOTHING if name == OF_OTHERS else Narrow.WHOLE)

    return [column(name) for name in headings]


def _token_record(one: DecodingMeasurements) -> dict[str, str]:
    row = one.row()
    return {
        "model": f"{row.size} {row.dtype}",
        "items": str(row.items),
        "rounds": str(len(one.turns.rounds)),
        "plain (ms)": f"{row.plain_ms_per_token:.3g}",
    } | {heading: f"{getattr(row, ratio):.2f}" for heading, ratio in RATIOS.items()}


def _prompt_record(one: DecodingMeasurements) -> dict[str, str]:
    peaks = {name: one.peaks.get(name) for name in PEAKED}
    return (
        {"model": f"{one.size} {one.dtype}", "items": str(one.items)}
        | {f"{name} (s)": f"{one.prefill(name.replace('-', '_')):.3g}" for name in PROMPTED}
        | {f"{name} (MiB)": "–" if peak is None else f"{peak / MEBIBYTE:.0f}" for name, peak in peaks.items()}
    )


FIRST_SECONDS = 5.0  # of rounds that each model and number of items gets before any gets more
DOING = "alpha 1, beta 0.1, greedy; lazy has a head that is always sure of one token, the others the model's own"


@dataclass(frozen=True)
class VcdBench:
    """The task. ``sizes`` name models, ``items`` the numbers of prompts in a batch.

    Each model and number of items is measured at least once in every variant, for five seconds if that is longer; then
    those that have taken the least time again, up to ``repeats`` times, as far as that ends within ``seconds``.
    ``memory=False`` leaves the peaks out. At the end the organism answers ``answers`` cases (0: none).

    Raises:
        UserError: an unknown size or device, numbers below 1, or 7b without a GPU.
    """

    sizes: list[str] = field(default_factory=lambda: ["tiny", "cpu"])
    items: list[int] = field(default_factory=lambda: [1, 8, 32])
    repeats: int = 30
    seconds: float = 150.0
    memory: bool = True
    answers: int = 10
    device: str = "cpu"
    seed: int = 0

    def __post_init__(self) -> None:
        unknown = [size for size in self.sizes if size not in DECODING_SIZES]
        if unknown or not self.sizes:
            raise UserError(
                f"task.sizes={list(self.sizes)}: known are {', '.join(DECODING_SIZES)}; give at least one of them"
            )
        if not self.items or min(self.items) < 1:
            raise UserError(f"task.items={list(self.items)}: prompts in a batch; give one number or more, from 1")
        if self.answers < 0:
            raise UserError(f"task.answers={self.answers}: cases that the organism answers; give 0 or more")
        check_budget(self.repeats, self.seconds, self.device)
        if self.device == "cpu" and (large := [size for size in self.sizes if size.startswith("7b")]):
            raise UserError(f"size {large[0]} on a CPU takes minutes a token; add task.device=cuda")

    def __call__(self, run: Run) -> None:
        """Measures, writes ``metrics.json`` into a new run directory, prints the table."""
        console = Console()
        with open_run(run.output_root, run.name, run.config, run.config_hash, fresh=True) as store:
            console.print(
                f"run {store.path}\ncontrastive decoding on {self.device} with models of random weights: this measures "
                f"time and memory, not any trained model\n{DOING}",
                highlight=False,
                soft_wrap=True,
            )
            busy, started = load_average(), time.monotonic()
            measured = self.measure(console, deadline=started + self.seconds)
            answered = self._answered(console)
            store.write_json("metrics.json", self._metrics(measured, answered, time.monotonic() - started, busy))
            console.print(*map(terminal, [*tables(measured), *answer_tables(answered)]), sep="\n")
            said = bound_sentences([one.row() for one in measured])
            console.print(*said, *answer_sentences(answered, self.device), sep="\n", highlight=False)

    def measure(self, console: Console, *, deadline: float) -> list[DecodingMeasurements]:
        """Models in the order of ``sizes``, of each its types, of each the numbers of items."""
        from interp.checkpoints.load import resolve_device

        device = str(resolve_device(self.device))
        columns = TextColumn("{task.description:<44}"), BarColumn(), TimeElapsedColumn()
        with Progress(*columns, console=console, transient=True) as progress:
            bar = progress.add_task("building models", total=None)

            def say(what: str) -> None:
                progress.update(bar, description=what)

            measured = self._prepared(device, say)
            for one in measured:
                self._begin(one)
            self._repeat(measured, deadline)
        return measured

    def _answered(self, console: Console) -> "list[AnswerCost]":
        if not self.answers:
            return []
        from experiments.bench.vcd_answers import answer_costs
        from interp.checkpoints.load import resolve_device

        with console.status("answers of the organism"):
            return answer_costs(self.answers, device=str(resolve_device(self.device)), seed=self.seed)

    def _prepared(self, device: str, say: Callable[[str], None]) -> list[DecodingMeasurements]:
        from experiments.bench.vcd_variants import VARIANTS, DecodingRunner, DecodingSetting, peaks_in_child

        settings = [
            DecodingSetting(size, dtype, device, self.seed)
            for size in self.sizes
            for dtype in DECODING_SIZES[size].dtypes
        ]
        apart: dict[tuple[DecodingSetting, int], dict[str, int]] = {}
        if self.memory and device == "cpu":
            first = [setting for setting in settings if setting.dtype == DECODING_SIZES[setting.size].dtypes[0]]
            apart = peaks_in_child(first, self.items, say)
        measured = []
        for setting in settings:
            say(f"{setting.size} {setting.dtype}, building")
            probe = DecodingRunner(setting)
            for variant in VARIANTS:  # once, so that no first time is measured
                probe.read(variant, 1, new_tokens=3)
            for items in self.items:
                one = _measured(probe, setting.size, setting.dtype, items, say)
                if self.memory and device != "cpu":
                    one.peaks |= {name: probe.peak(name, items) for name in VARIANTS}
                one.peaks |= apart.get((setting, items), {})
                measured.append(one)
        return measured

    def _begin(self, one: DecodingMeasurements) -> None:
        """A round, and more where rounds are short, so that no bound is judged by a single round."""
        one.round()
        while one.seconds + one.cost < FIRST_SECONDS and len(one.turns.rounds) < self.repeats:
            one.round()

    def _repeat(self, measured: list[DecodingMeasurements], deadline: float) -> None:
        """The model with the least time so far goes next, so that short rounds are repeated more often."""
        while True:
            now = time.monotonic()
            fitting = [m for m in measured if len(m.turns.rounds) < self.repeats and now + m.cost <= deadline]
            if not fitting:
                return
            min(fitting, key=lambda m: m.seconds).round()

    def _metrics(
        self, measured: list[DecodingMeasurements], answered: "list[AnswerCost]", seconds: float, busy: float
    ) -> dict[str, Any]:
        rows = [one.row() for one in measured]
        return {
            "benchmark": "vcd",
            "weights": f"random, seed {self.seed}",
            "what": DOING,
            "sizes": {size: asdict(DECODING_SIZES[size]) for size in self.sizes},
            "environment": machine(self.device, busy),
            "seconds": round(seconds, 1),
            "rows": [row._asdict() for row in rows],
            "answers": [row._asdict() for row in answered],
            "bounds": [
                asdict(bound) | {"value": value, "met": bound.met(value)} for bound, value in applicable_bounds(rows)
            ],
            "details": [one.details() for one in measured],
        }


def _measured(
    probe: "DecodingRunner", size: str, dtype: str, items: int, say: Callable[[str], None]
) -> DecodingMeasurements:
    from experiments.bench.vcd_variants import VARIANTS

    def variant(name: str) -> Callable[[], float]:
        def taking() -> float:
            say(f"{size} {dtype}, {items} items, {name}")
            reading = probe.read(name, items)
            one.first.setdefault(name, reading)
            one.prefills[-1][name] = reading.prefill
            return reading.token

        return taking

    one = DecodingMeasurements(size, dtype, items, Turns({name: variant(name) for name in VARIANTS}))
    return one
