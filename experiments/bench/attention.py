"""``task=bench_attention``: what it costs to log attention, against the model alone and against eager attention.

Random weights: time and memory depend on a model's shape, not on its weights. Imports neither torch nor transformers.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from experiments.bench.harness import MEBIBYTE, Turns, check_budget, load_average, machine
from experiments.bench.models import IMAGE_TOKENS, QWEN_TEXT, SHAPES
from experiments.config import Run
from experiments.report.table import Column, Table, terminal
from experiments.runs.directory import open_run
from interp.errors import UserError

if TYPE_CHECKING:
    from experiments.bench.attention_variants import ForwardRunner, SeenAttention

TEMPLATE_TOKENS = 16  # more than the chat template and one word take


class AttentionCost(NamedTuple):
    """The result at one prompt length. Ratios of times are medians over rounds.

    ``max_error`` is the largest absolute difference of a mass or of a map's weight from eager attention;
    ``mass_memory_over_eager`` what mass adds to the native peak over what eager adds, None where eager adds nothing.
    """

    tokens: int
    mass_over_native: float
    maps_over_native: float
    eager_over_mass: float
    max_error: float
    mass_memory_over_eager: float | None


@dataclass
class LengthMeasurements:
    """All that was measured at one prompt length; ``peaks`` are bytes above the model itself, by variant."""

    tokens: int
    turns: Turns
    peaks: dict[str, int] = field(default_factory=dict)
    seen: "dict[str, SeenAttention]" = field(default_factory=dict)
    max_error: float = 0.0

    def row(self) -> AttentionCost:
        """The result of these measurements."""
        eager = self.peaks["eager"] - self.peaks["native"]
        mass = self.peaks["mass"] - self.peaks["native"]
        return AttentionCost(
            tokens=self.tokens,
            mass_over_native=self.turns.ratio("mass", "native"),
            maps_over_native=self.turns.ratio("maps", "native"),
            eager_over_mass=self.turns.ratio("eager", "mass"),
            max_error=self.max_error,
            mass_memory_over_eager=mass / eager if eager > 0 else None,
        )

    def details(self) -> dict[str, Any]:
        """Every time and peak behind the row."""
        return {"tokens": self.tokens, "seconds": self.turns.rounds, "peak_bytes": self.peaks}


@dataclass(frozen=True)
class AttentionBench:
    """The task. ``size`` names a shape, ``lengths`` prompts in tokens, image included.

    Each length is measured at least once in each variant, then again without eager (which is slow, and far from its
    bound) up to ``repeats`` times, the longest first, as far as that ends within ``seconds``.

    Raises:
        UserError: an unknown size or device, a prompt that has no room for its image, or 7b without a GPU.
    """

    size: str = "cpu"
    lengths: list[int] = field(default_factory=lambda: [640, 1024, 2048, 3072])
    repeats: int = 3
    seconds: float = 240.0
    device: str = "cpu"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.size not in IMAGE_TOKENS:
            known = ", ".join(IMAGE_TOKENS)
            raise UserError(f"unknown size {self.size!r}; known: {known}; set task.size to one of them")
        least = IMAGE_TOKENS[self.size] + TEMPLATE_TOKENS
        if not self.lengths or min(self.lengths) < least:
            raise UserError(
                f"task.lengths={list(self.lengths)}: an image of size {self.size} and the template take {least} "
                "tokens; give at least one length, and none below that"
            )
        check_budget(self.repeats, self.seconds, self.device)
        if self.size.startswith("7b") and self.device == "cpu":
            raise UserError(f"size {self.size} on a CPU: four processes would hold 26 GiB each; add task.device=cuda")

    def __call__(self, run: Run) -> None:
        """Measures, writes ``metrics.json`` into a new run directory, prints the table."""
        console = Console()
        with open_run(run.output_root, run.name, run.config, run.config_hash, fresh=True) as store:
            console.print(
                f"run {store.path}\nattention of a model of size {self.size} on {self.device}, with random weights: "
                "this measures time and memory, not any trained model",
                highlight=False,
                soft_wrap=True,
            )
            busy, started = load_average(), time.monotonic()
            measured = self.measure(console, deadline=started + self.seconds)
            metrics = self._metrics(measured, time.monotonic() - started, busy)
            store.write_json("metrics.json", metrics)
            console.print(terminal(table(measured)))
            console.print(summary(measured[-1]), highlight=False)

    def measure(self, console: Console, *, deadline: float) -> list[LengthMeasurements]:
        """Shortest prompt first, so that a peak is never that of a longer one before it."""
        from experiments.bench.attention_variants import VARIANTS, AttentionSetting, ChildRunners, LocalRunner
        from interp.checkpoints.load import resolve_device

        device = resolve_device(self.device)
        lengths = sorted(set(self.lengths))
        setting = AttentionSetting(self.size, str(device), lengths[-1], self.seed)
        with Progress(
            TextColumn("{task.description:<28}"), BarColumn(), TimeElapsedColumn(), console=console, transient=True
        ) as progress:
            bar = progress.add_task("building models", total=None)

            def say(what: str) -> None:
                progress.update(bar, description=what)

            if device.type == "cuda":
                probe = LocalRunner(setting)
                for variant in VARIANTS:
                    probe.read(variant, lengths[0], keep=False)
                return self._alternate(probe, lengths, deadline, say)
            with ChildRunners(setting) as children:
                children.warm_up(lengths[0])
                return self._alternate(children, lengths, deadline, say)

    def _alternate(
        self, reader: "ForwardRunner", lengths: list[int], deadline: float, say: Callable[[str], None]
    ) -> list[LengthMeasurements]:
        from experiments.bench.attention_variants import VARIANTS, largest_error

        measured = [_prepared(reader, tokens, tuple(VARIANTS), say) for tokens in lengths]
        for one in measured:
            one.turns.run()
            one.max_error = largest_error(one.seen)
            one.seen.clear()
        for _ in range(self.repeats - 1):
            for one in reversed(measured):
                if time.monotonic() + one.turns.cost(without={"eager"}) <= deadline:
                    one.turns.run(without={"eager"})
        return measured

    def _metrics(self, measured: list[LengthMeasurements], seconds: float, busy: float) -> dict[str, Any]:
        return {
            "benchmark": "attention",
            "weights": f"random, seed {self.seed}",
            "size": self.size,
            "shape": asdict(SHAPES[self.size]) if self.size in SHAPES else QWEN_TEXT,
            "image_tokens": IMAGE_TOKENS[self.size],
            "dtype": "float32" if self.device == "cpu" else "bfloat16",
            **machine(self.device, busy),
            "seconds": round(seconds, 1),
            "rows": [one.row()._asdict() for one in measured],
            "details": [one.details() for one in measured],
        }


def _prepared(
    reader: "ForwardRunner", tokens: int, variants: tuple[str, ...], say: Callable[[str], None]
) -> LengthMeasurements:
    def variant(name: str) -> Callable[[], float]:
        def taking() -> float:
            say(f"{tokens} tokens, {name}")
            first = not one.turns.rounds
            reading = reader.read(name, tokens, keep=first)
            one.peaks.setdefault(name, reading.peak)
            if first and reading.seen is not None:
                one.seen[name] = reading.seen
            return reading.seconds

        return taking

    one = LengthMeasurements(tokens, Turns({name: variant(name) for name in variants}))
    return one


def table(measured: list[LengthMeasurements]) -> Table:
    """A row per prompt length: medians of seconds, ratios, peaks above the model in MiB, error."""
    columns = [
        Column("tokens"),
        Column("rounds"),
        Column("native (s)", short="native\ns"),
        Column("mass/native", short="mass ×\nnative"),
        Column("maps/native", short="maps ×\nnative"),
        Column("eager/mass", short="eager ×\nmass"),
        Column("native (MiB)", short="native\nMiB"),
        Column("+mass (MiB)", short="+mass\nMiB"),
        Column("+eager (MiB)", short="+eager\nMiB"),
        Column("+mass/+eager", short="+mass\n/+eager"),
        Column("largest error", short="max\nerror"),
    ]
    return Table.of("Logging attention: one forward pass of the prompt", map(_record, measured), columns=columns)


def _record(one: LengthMeasurements) -> dict[str, str]:
    row, native = one.row(), one.peaks["native"]
    memory = row.mass_memory_over_eager
    return {
        "tokens": str(row.tokens),
        "rounds": str(len(one.turns.rounds)),
        "native (s)": f"{one.turns.median('native'):.3g}",
        "mass/native": f"{row.mass_over_native:.2f}",
        "maps/native": f"{row.maps_over_native:.2f}",
        "eager/mass": f"{row.eager_over_mass:.2f}",
        "native (MiB)": f"{native / MEBIBYTE:.0f}",
        "+mass (MiB)": f"{(one.peaks['mass'] - native) / MEBIBYTE:.0f}",
        "+eager (MiB)": f"{(one.peaks['eager'] - native) / MEBIBYTE:.0f}",
        "+mass/+eager": "–" if memory is None else f"{memory:.1%}",
        "largest error": f"{row.max_error:.0e}",
    }


def summary(longest: LengthMeasurements) -> str:
    """The result at the longest prompt, as a sentence."""
    row = longest.row()
    return (
        f"At {row.tokens} tokens a forward pass that logs every query's segment masses takes "
        f"{row.mass_over_native:.2f} times the native one's time, {row.maps_over_native:.2f} with maps of 8 queries; "
        f"eager attention takes {row.eager_over_mass:.1f} times that of the masses. Random weights, one prompt a "
        "batch, eager measured once a length."
    )
