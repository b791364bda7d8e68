"""``task=bench_attention``: what it costs to log attention, against the model alone and against eager attention.

Random weights: a model's shape decides time and memory, its weights do not. Imports neither torch nor transformers.

One forward pass, four ways of looking at its attention; each measured in a child process of its own, or here.
"""

import os
import platform
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from multiprocessing import get_context
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from einops import einsum
from jaxtyping import Float
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from experiments.bench.harness import Turns, meter_for, return_freed_blocks, timed
from experiments.bench.models import SHAPES, build, prompt_of
from experiments.config import Run
from experiments.runs.directory import open_run
from interp.attention import Queries, Record, record_attention
from interp.errors import UserError
from interp.segments import Segments, segment
from interp.vlm import VLM

MAPPED = tuple(range(-7, 1))  # steps whose whole rows are kept: the verdict and the seven before it


@dataclass(frozen=True)
class Setting:
    """Which model, where; all that a child process needs to build the same."""

    size: str
    device: str
    longest: int
    seed: int


class Seen(NamedTuple):
    """What a variant has found out about attention, in float32; ``rows`` are those of ``MAPPED``."""

    masses: Float[np.ndarray, "layer head query segment"]
    rows: Float[np.ndarray, "layer head mapped key"] | None


class Reading(NamedTuple):
    """One forward: its seconds, its peak in bytes above the model itself, and what it saw if that was asked for."""

    seconds: float
    peak: int
    seen: Seen | None


class Reader(Protocol):
    """Runs a variant on a prompt of so many tokens, here or elsewhere."""

    def read(self, variant: str, tokens: int, *, keep: bool) -> Reading:
        """``keep``: also hand back what the variant saw."""
        ...


class Inputs(NamedTuple):
    """One encoded prompt."""

    encoded: Mapping[str, Any]
    segments: Segments


def _native(vlm: VLM, inputs: Inputs) -> None:
    _forward(vlm, inputs)


def _mass(vlm: VLM, inputs: Inputs) -> Record:
    with record_attention(vlm, queries=Queries.ALL, segments=inputs.segments) as record:
        _forward(vlm, inputs)
    return record


def _maps(vlm: VLM, inputs: Inputs) -> Record:
    with record_attention(vlm, queries=Queries.ALL, maps=MAPPED, segments=inputs.segments) as record:
        _forward(vlm, inputs)
    return record


def _eager(vlm: VLM, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    with _eager_attention(vlm):
        return _forward(vlm, inputs, output_attentions=True).attentions


VARIANTS: dict[str, Callable[[VLM, Inputs], Any]] = {"native": _native, "mass": _mass, "maps": _maps, "eager": _eager}


def _forward(vlm: VLM, inputs: Inputs, **options: Any) -> Any:
    """The prompt as ``generate()`` begins: with a cache, and logits of the last position alone."""
    with torch.no_grad():
        return vlm.model(**inputs.encoded, logits_to_keep=1, **options)


@contextmanager
def _eager_attention(vlm: VLM) -> Iterator[None]:
    """The whole model as if loaded with ``attn_implementation="eager"``."""
    vlm.model.set_attn_implementation("eager")
    try:
        yield
    finally:
        vlm.model.set_attn_implementation("sdpa")


def _seen(result: Any, inputs: Inputs) -> Seen | None:
    if isinstance(result, Record):
        (piece,) = result.pieces
        rows = [attention.weights.numpy() for attention in result.maps]
        return Seen(piece.mass[:, 0].numpy(), np.stack(rows, axis=2) if rows else None)
    if isinstance(result, tuple):
        masses, rows = [], []
        for weights in result:
            layer = weights[0].float()
            indicator = inputs.segments.indicator(0, layer.shape[-1])[0].to(layer.device)
            masses.append(einsum(layer, indicator, "head query key, key segment -> head query segment").cpu().numpy())
            rows.append(layer[:, -len(MAPPED) :].cpu().numpy())
        return Seen(np.stack(masses), np.stack(rows))
    return None


class Probe:
    """The model in this process. On a CPU its peaks are a variant's own only if it is asked for no other variant."""

    def __init__(self, setting: Setting) -> None:
        device = torch.device(setting.device)
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.vlm = build(SHAPES[setting.size], longest=setting.longest, device=device, dtype=dtype, seed=setting.seed)
        self.seed = setting.seed
        self.inputs: dict[int, Inputs] = {}
        self.meter = meter_for(device)

    def read(self, variant: str, tokens: int, *, keep: bool) -> Reading:
        """See ``Reader``."""
        inputs = self._inputs(tokens)
        results: list[Any] = []
        work = timed(lambda: results.append(VARIANTS[variant](self.vlm, inputs)), synchronise=self.meter.synchronise)
        self.meter.start()
        try:
            seconds = work()
        except torch.OutOfMemoryError as error:
            raise UserError(_no_memory(variant, tokens)) from error
        peak = self.meter.peak()
        return Reading(seconds, peak, _seen(results.pop(), inputs) if keep else None)

    def _inputs(self, tokens: int) -> Inputs:
        if tokens not in self.inputs:
            prompts = [prompt_of(self.vlm, tokens, seed=self.seed)]
            encoded = self.vlm.encode(prompts)
            self.inputs[tokens] = Inputs(encoded, segment(self.vlm, prompts, encoded))
        return self.inputs[tokens]


class Children:
    """A process for each variant, all with the same model; a context manager. One works at a time."""

    def __init__(self, setting: Setting) -> None:
        begin = partial(_begin, setting, torch.get_num_threads())
        context = get_context("spawn")  # a fork would share pages with this process, and not start its threads
        self._pools = {name: ProcessPoolExecutor(1, context, begin) for name in VARIANTS}

    def __enter__(self) -> "Children":
        return self

    def __exit__(self, *_: object) -> None:
        for pool in self._pools.values():
            pool.shutdown(cancel_futures=True)

    def warm_up(self, tokens: int) -> None:
        """Builds all models at once and runs each variant once, so that no first time is measured."""
        waiting = {name: pool.submit(_read, name, tokens, False) for name, pool in self._pools.items()}
        for name, future in waiting.items():
            self._result(future, name, tokens)

    def read(self, variant: str, tokens: int, *, keep: bool) -> Reading:
        """See ``Reader``."""
        return self._result(self._pools[variant].submit(_read, variant, tokens, keep), variant, tokens)

    @staticmethod
    def _result(future: Any, variant: str, tokens: int) -> Reading:
        try:
            return future.result()
        except BrokenProcessPool as error:  # the kernel ends a process for which there is no memory
            raise UserError(_no_memory(variant, tokens)) from error


def _no_memory(variant: str, tokens: int) -> str:
    return (
        f"{variant} attention over {tokens} tokens did not end, most likely for want of memory; leave this length out "
        "with task.lengths=[...] or choose a smaller task.size"
    )


_PROBES: list[Probe] = []  # of a child process: one


def _begin(setting: Setting, threads: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C reaches all processes; only the first one has to say so
    return_freed_blocks()
    torch.set_num_threads(threads)
    _PROBES.append(Probe(setting))


def _read(variant: str, tokens: int, keep: bool) -> Reading:
    return _PROBES[0].read(variant, tokens, keep=keep)


TEMPLATE_TOKENS = 16  # more than the chat template and one word take
MEBIBYTE = 2**20


class Row(NamedTuple):
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
class Measured:
    """All that was measured at one prompt length; ``peaks`` are bytes above the model itself, by variant."""

    tokens: int
    turns: Turns
    peaks: dict[str, int] = field(default_factory=dict)
    seen: "dict[str, Seen]" = field(default_factory=dict)
    max_error: float = 0.0

    def row(self) -> Row:
        """The result of these measurements."""
        eager = self.peaks["eager"] - self.peaks["native"]
        mass = self.peaks["mass"] - self.peaks["native"]
        return Row(
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
        if self.size not in SHAPES:
            raise UserError(f"unknown size {self.size!r}; known: {', '.join(SHAPES)}; set task.size to one of them")
        least = SHAPES[self.size].image_tokens + TEMPLATE_TOKENS
        if not self.lengths or min(self.lengths) < least:
            raise UserError(
                f"task.lengths={list(self.lengths)}: an image of size {self.size} and the template take {least} "
                "tokens; give at least one length, and none below that"
            )
        if self.repeats < 1 or not self.seconds >= 0:
            raise UserError(f"repeats={self.repeats}, seconds={self.seconds}: at least 1 and 0; mend task.repeats")
        if self.device != "cpu" and self.device.partition(":")[0] != "cuda":
            raise UserError(f"unknown device {self.device!r}; known: cpu, cuda, cuda:<number>; mend task.device")
        if self.size == "7b" and self.device == "cpu":
            raise UserError("size 7b on a CPU: four processes would hold 26 GiB each; add task.device=cuda")

    def __call__(self, run: Run) -> None:
        """Measures, writes ``metrics.json`` into a new run directory, prints the table."""
        console = Console()
        with open_run(run.output_root, run.name, run.config, run.config_hash, fresh=True) as store:
            console.print(
                f"run {store.path}\nattention of a LLaVA of size {self.size} on {self.device}, with random weights: "
                "this measures time and memory, not any trained model",
                highlight=False,
                soft_wrap=True,
            )
            busy, started = os.getloadavg()[0], time.monotonic()
            measured = self.measure(console, deadline=started + self.seconds)
            metrics = self._metrics(measured, time.monotonic() - started, busy)
            store.write_json("metrics.json", metrics)
            console.print(table(measured))
            console.print(summary(measured[-1]), highlight=False)

    def measure(self, console: Console, *, deadline: float) -> list[Measured]:
        """Shortest prompt first, so that a peak is never that of a longer one before it."""
        from interp.checkpoints.load import resolve_device

        device = resolve_device(self.device)
        lengths = sorted(set(self.lengths))
        setting = Setting(self.size, str(device), lengths[-1], self.seed)
        with Progress(
            TextColumn("{task.description:<28}"), BarColumn(), TimeElapsedColumn(), console=console, transient=True
        ) as progress:
            bar = progress.add_task("building models", total=None)

            def say(what: str) -> None:
                progress.update(bar, description=what)

            if device.type == "cuda":
                probe = Probe(setting)
                for variant in ("native", "mass", "maps", "eager"):
                    probe.read(variant, lengths[0], keep=False)
                return self._alternate(probe, lengths, deadline, say)
            with Children(setting) as children:
                children.warm_up(lengths[0])
                return self._alternate(children, lengths, deadline, say)

    def _alternate(
        self, reader: "Reader", lengths: list[int], deadline: float, say: Callable[[str], None]
    ) -> list[Measured]:

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

    def _metrics(self, measured: list[Measured], seconds: float, busy: float) -> dict[str, Any]:
        import torch
        import transformers

        return {
            "benchmark": "attention",
            "weights": f"random, seed {self.seed}",
            "size": self.size,
            "shape": asdict(SHAPES[self.size]),
            "image_tokens": SHAPES[self.size].image_tokens,
            "device": torch.cuda.get_device_name(self.device) if self.device != "cpu" else platform.machine(),
            "dtype": "float32" if self.device == "cpu" else "bfloat16",
            "threads": torch.get_num_threads(),
            "cores": os.cpu_count(),
            "load_average_before": busy,  # well above 0: others were at work, and the times are theirs too
            "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
            "seconds": round(seconds, 1),
            "rows": [one.row()._asdict() for one in measured],
            "details": [one.details() for one in measured],
        }


def _prepared(reader: "Reader", tokens: int, variants: tuple[str, ...], say: Callable[[str], None]) -> Measured:
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

    one = Measured(tokens, Turns({name: variant(name) for name in variants}))
    return one


def largest_error(seen: "dict[str, Seen]") -> float:
    """The largest absolute difference of a mass or a map's weight from eager attention."""
    eager, maps = seen["eager"], seen["maps"]
    assert eager.rows is not None
    assert maps.rows is not None
    errors = [abs(seen[name].masses - eager.masses).max() for name in ("mass", "maps")]
    return float(max(*errors, abs(maps.rows - eager.rows).max()))


def table(measured: list[Measured]) -> Table:
    """One line a prompt length: medians of seconds, ratios, peaks above the model in MiB, error."""
    shown = Table(
        title="Logging attention: one forward pass of the prompt", title_justify="left", box=SIMPLE_HEAD, padding=0
    )
    for heading in ("tokens", "rounds", "native\ns", "mass ×\nnative", "maps ×\nnative", "eager ×\nmass"):
        shown.add_column(heading, justify="right")
    for heading in ("native\nMiB", "+mass\nMiB", "+eager\nMiB", "+mass\n/+eager", "max\nerror"):
        shown.add_column(heading, justify="right")
    for one in measured:
        row, native = one.row(), one.peaks["native"]
        memory = "–" if row.mass_memory_over_eager is None else f"{row.mass_memory_over_eager:.1%}"
        shown.add_row(
            str(row.tokens),
            str(len(one.turns.rounds)),
            f"{one.turns.median('native'):.3g}",
            *(f"{ratio:.2f}" for ratio in (row.mass_over_native, row.maps_over_native, row.eager_over_mass)),
            *(f"{size / MEBIBYTE:.0f}" for size in (native, one.peaks["mass"] - native, one.peaks["eager"] - native)),
            memory,
            f"{row.max_error:.0e}",
        )
    return shown


def summary(longest: Measured) -> str:
    """The result at the longest prompt, as a sentence."""
    row = longest.row()
    return (
        f"At {row.tokens} tokens a forward pass that logs every query's segment masses takes "
        f"{row.mass_over_native:.2f} times the native one's time, {row.maps_over_native:.2f} with maps of 8 queries; "
        f"eager attention takes {row.eager_over_mass:.1f} times that of the masses. Random weights, one prompt a "
        "batch, eager measured once a length."
    )
