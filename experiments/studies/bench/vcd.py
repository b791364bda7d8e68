"""``task=bench_vcd``: what contrastive decoding and float32 logits cost a token, beside plain decoding.

Random weights: time and memory depend on a model's shape, not on its weights. What a model says decides only how often
a second branch is needed; so answers of the bundled organism are timed too. Imports neither torch nor transformers.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from experiments.config import Run
from experiments.studies.bench.harness import (
    MEBIBYTE,
    Bench,
    Bound,
    Result,
    Say,
    Setting,
    Turns,
    peaks,
    repeat,
    runner,
    table,
)
from experiments.studies.bench.models import DECODING_SIZES
from interp.errors import UserError

if TYPE_CHECKING:
    from rich.table import Table

    from experiments.studies.bench.decoding import DecodingRunner, GenerationReading


class RatioBound(NamedTuple):
    """``ratio`` of a row at this size, type and number of items is to be at most (``least``: at least) ``limit``."""

    size: str
    dtype: str
    items: int
    ratio: str
    limit: float
    least: bool = False


BOUNDS = (
    RatioBound("tiny", "float32", 1, "paired_over_plain", 1.40),
    RatioBound("tiny", "float32", 1, "two_forward_over_paired", 1.25, least=True),
    RatioBound("cpu", "bfloat16", 1, "paired_over_plain", 1.50),
    RatioBound("cpu", "bfloat16", 1, "answers_over_plain", 1.05),
    RatioBound("cpu", "bfloat16", 1, "whole_over_plain", 1.15),
    RatioBound("7b", "bfloat16", 1, "answers_over_plain", 1.02),
    RatioBound("7b", "bfloat16", 1, "whole_over_plain", 1.05),
    RatioBound("7b", "bfloat16", 1, "paired_over_plain", 1.10),
    RatioBound("7b", "bfloat16", 1, "paired_answer_over_plain", 1.10),
    RatioBound("7b", "bfloat16", 8, "paired_over_plain", 1.35),
    RatioBound("7b", "bfloat16", 8, "paired_answer_over_plain", 1.35),
    RatioBound("7b_qwen", "bfloat16", 1, "paired_over_plain", 1.10),
    RatioBound("7b_qwen", "bfloat16", 1, "paired_answer_over_plain", 1.10),
    RatioBound("7b_qwen", "bfloat16", 8, "paired_over_plain", 1.35),
    RatioBound("7b_qwen", "bfloat16", 8, "paired_answer_over_plain", 1.35),
)
SEQUENTIAL = 1.70  # at most, of an answer of the organism over a plain one, on a CPU
RATIOS = ("paired_over_plain", "sequential_over_plain", "two_forward_over_plain", "two_forward_over_paired",
          "answers_over_plain", "whole_over_plain")  # fmt: skip
OF_OTHERS = "two_forward_over_paired"  # left out of the table, which has the two that give it
PROMPTED, PEAKED = ("plain", "paired", "sequential", "two_forward"), ("plain", "paired", "sequential")
TERMS = (
    "plain: without contrast. two-forward: the published loop. sequential, paired: our branches, one after the other, "
    "both in one batch. answers, whole: plain, with the logits of Yes and No, or of all words, from a float32 head. "
    "/plain: times what plain takes."
)
FIRST_SECONDS = 5.0  # of rounds that each model and number of items gets before any gets more
DOING = "alpha 1, beta 0.1, greedy"


@dataclass(frozen=True)
class VcdBench(Bench):
    """The task. ``sizes`` name models, ``items`` the numbers of prompts in a batch.

    Each model and number of items is measured at least once in every variant, for five seconds if that is longer.
    ``memory=False`` leaves the peaks out. At the end the organism answers ``answers`` cases (0: none).

    Raises:
        UserError: an unknown size, numbers below 1, or a 7b size without a GPU.
    """

    sizes: list[str] = field(default_factory=lambda: ["tiny", "cpu"])
    items: list[int] = field(default_factory=lambda: [1, 8, 32])
    repeats: int = 30
    seconds: float = 150.0
    memory: bool = True
    answers: int = 10
    name = "vcd"
    about = (
        "contrastive decoding with models of random weights: this measures time and memory, not any trained model\n"
        f"{DOING}"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check("sizes", self.sizes, DECODING_SIZES, items=self.items)
        if self.answers < 0:
            raise UserError(f"task.answers={self.answers}: cases that the organism answers; give 0 or more")

    def measure(self, run: Run, device: str, say: Say) -> Result:
        """Models in the order of ``sizes``, of each its types, of each the numbers of items; then the answers."""
        settings = [Setting(size, dtype, device, self.seed) for size in self.sizes for dtype in
                    DECODING_SIZES[size].dtypes]  # fmt: skip
        measured = [one for setting in settings for one in self._prepared(setting, say)]
        repeat([one.turns for one in measured], self.repeats, self.seconds, least=FIRST_SECONDS)
        answered = []
        if self.answers:
            from experiments.studies.bench.decoding import answer_costs

            say("answers of the organism")
            answered = answer_costs(self.answers, device=device, seed=self.seed)
        rows, details = [one.row() for one in measured], [one.details() for one in measured]
        metrics = {
            "weights": f"random, seed {self.seed}",
            "what": DOING,
            "sizes": {size: asdict(DECODING_SIZES[size]) for size in self.sizes},
            "rows": rows,
            "answers": answered,
            "details": details,
        }
        held = [*bounds(rows), *answer_bounds(answered, device)]
        return Result(metrics, [*tables(rows, details), *answer_tables(answered)], held, ())

    def _prepared(self, setting: Setting, say: Say) -> "list[DecodingMeasurements]":
        from experiments.studies.bench.decoding import VARIANTS, DecodingRunner

        held: dict[int, dict[str, int]] = {}
        # On a CPU in the first type alone: each takes a process that builds the model again.
        if self.memory and (setting.device != "cpu" or setting.dtype == DECODING_SIZES[setting.size].dtypes[0]):
            held = peaks(DecodingRunner, setting, self.items, VARIANTS, setting.device, say)
        say(f"{setting.size} {setting.dtype}, building")
        model = runner(DecodingRunner, setting)
        return [DecodingMeasurements(setting, items, model, say, held.get(items, {})) for items in self.items]


class DecodingMeasurements:
    """All that was measured of one model with one number of items; ``peaks`` are bytes above the model, by variant."""

    def __init__(
        self, setting: Setting, items: int, model: "DecodingRunner", say: Say, peaks: Mapping[str, int]
    ) -> None:
        self.about = {"size": setting.size, "dtype": setting.dtype, "items": items}
        self.items, self.peaks, self._model, self._say = items, peaks, model, say
        self.readings: dict[str, list[GenerationReading]] = {}
        self.turns = Turns({name: partial(self._read, name) for name in model.variants})

    def _read(self, name: str) -> float:
        self._say(f"{self.about['size']} {self.about['dtype']}, {self.items} items, {name}")
        reading = self._model.read(name, self.items)
        self.readings.setdefault(name, []).append(reading)
        return reading.token

    def row(self) -> dict[str, Any]:
        """Ratios of seconds a decoded token, the prompt left out.

        A generation's seconds are the median of its steps', a ratio the median over rounds. ``answers`` and ``whole``
        are plain with the float32 logits that margins and contrasts are computed from. ``paired_answer`` is the whole
        answer, its prompt included.
        """
        return {
            **self.about,
            **self.turns.ratios(RATIOS),
            "paired_answer_over_plain": self.over_plain(lambda one: one.answer)["paired"],
            "plain_ms_per_token": 1000 * self.turns.median("plain"),
        }

    def over_plain(self, seconds: "Callable[[GenerationReading], float]") -> dict[str, float]:
        """By variant, the median over rounds of its ``seconds`` over plain's."""
        plain = list(map(seconds, self.readings["plain"]))
        return {
            name: median(seconds(one) / other for one, other in zip(found, plain, strict=True))
            for name, found in self.readings.items()
        }

    def details(self) -> dict[str, Any]:
        """Every time and peak behind the row, and whether the contrasting variants gave the same tokens."""
        expected = self.readings["two_forward"][0].tokens
        return {
            **self.about,
            "seconds_per_token": self.turns.rounds,
            "prefill_seconds": {name: [one.prefill for one in found] for name, found in self.readings.items()},
            "first_token_over_plain": self.over_plain(lambda one: one.prefill),
            "whole_answer_over_plain": self.over_plain(lambda one: one.answer),
            "peak_bytes": self.peaks,
            "same_tokens": {name: self.readings[name][0].tokens == expected for name in ("sequential", "paired")},
        }


def _heading(name: str) -> str:
    return name.replace("_over_", "/").replace("two_forward", "two-forward")


def tables(rows: Sequence[Mapping[str, Any]], details: Sequence[Mapping[str, Any]]) -> "list[Table]":
    """Medians and ratios of a decoded token; seconds to the first one, and peaks above the model in MiB."""
    decoded, prompted = [], []
    for row, detail in zip(rows, details, strict=True):
        named = {"model": f"{row['size']} {row['dtype']}", "items": str(row["items"])}
        rounds, ms, held = len(detail["seconds_per_token"]), row["plain_ms_per_token"], detail["peak_bytes"]
        ratios = {_heading(name): f"{row[name]:.2f}" for name in RATIOS if name != OF_OTHERS}
        decoded.append(named | {"rounds": str(rounds), "plain (ms)": f"{ms:.3g}"} | ratios)
        first = {_heading(f"{name} (s)"): f"{median(detail['prefill_seconds'][name]):.3g}" for name in PROMPTED}
        memory = {f"{name} (MiB)": f"{held[name] / MEBIBYTE:.0f}" if held else "–" for name in PEAKED}
        prompted.append(named | first | memory)
    return [
        table("A decoded token", decoded, TERMS),
        table("Prompt: seconds to the first token, and memory", prompted),
    ]


def bounds(rows: Iterable[Mapping[str, Any]]) -> list[Bound]:
    """The bounds that these rows are held to."""
    measured = {(row["size"], row["dtype"], row["items"]): row for row in rows}
    return [
        Bound(
            f"{size} {dtype}, {items} item{'s' * (items > 1)}: {ratio.replace('_', ' ')}",
            measured[size, dtype, items][ratio],
            limit,
            least,
        )
        for size, dtype, items, ratio, limit, least in BOUNDS
        if (size, dtype, items) in measured
    ]


def answer_tables(rows: Iterable[Mapping[str, Any]]) -> "list[Table]":
    """Whole answers of the organism over plain ones; none where none were timed."""
    records = [
        {"tokens at most": str(row["limit"]), "tokens": f"{row['tokens']:.1f}", "plain (ms)": f"{row['plain_ms']:.3g}"}
        | {_heading(ratio): f"{row[ratio]:.2f}" for ratio in RATIOS if ratio in row}
        for row in rows
    ]
    return [table("An answer of the organism", records)] if records else []


def answer_bounds(rows: Iterable[Mapping[str, Any]], device: str) -> list[Bound]:
    """What the sequential branch may cost an answer on a CPU; on a GPU it leaves no step out."""
    return [
        Bound(
            f"an answer of at most {row['limit']} token{'s' * (row['limit'] > 1)}: sequential over plain",
            row["sequential_over_plain"],
            SEQUENTIAL,
        )
        for row in rows
        if device == "cpu"
    ]
