"""``task=plan``: before any command, what that command will need. Loads no weights and asks no network.

``python -m experiments.run task=plan +exp=vcd_llava model=llava_1_5_7b task.gpu_gib=24``: the rest of the command is
composed as it would be without ``task=plan``, and its steps are run on a device that computes nothing
(``experiments.planning.peak_memory``). Importing this module loads neither torch nor transformers.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from experiments.benchmarks.iconworld import IconWorld
from experiments.config import Run
from experiments.evaluation.case_batches import size_of
from experiments.planning.models import Asked
from experiments.runs import provenance
from experiments.runs.resumption import open_run
from interp.checkpoints.config import ORGANISM
from interp.errors import UserError

if TYPE_CHECKING:
    from experiments.planning.peak_memory import Measured, Outcome

FILE = "plan.json"
GIB = 2**30
EFFICIENCY = {"arithmetic": 0.5, "memory": 0.7}  # assumed, of what the card's maker states
LAUNCH = 15e-6  # seconds, assumed: Python and the start of one kernel
# GiB → dense TFLOP/s in 16 bits and GB/s of typical cards, by their makers: T4, A10, A100 40 GB, A100 80 GB.
USUAL = (24.0, 80.0)  # GiB of the cards that are planned for where this machine has no GPU
CARDS = {16: (65.0, 320.0), 24: (125.0, 600.0), 40: (312.0, 1555.0), 80: (312.0, 2039.0)}
TOKENS_PER_WORD = 1.4  # assumed for English
TEMPLATE_TOKENS = 20  # assumed: the chat template around a question
DEFAULT_CASES = 100
NO_GPU = "This machine has no GPU; model.device=cpu plans for its CPU, task.gpu_gib=<GiB> for another card."


@dataclass(frozen=True)
class Plan:
    """The task.

    ``gpu_gib`` is the card's memory (None: what is free now on this machine's GPU; where it has none, the cards of
    ``USUAL``, but for a bundled model). ``text_tokens`` and ``picture`` (width, height) stand for
    the prompts where no cases are at hand. ``tflops`` and ``gb_per_s`` are the card's, as its maker states them.

    Raises:
        UserError: a number that is not above 0.
    """

    gpu_gib: float | None = None
    text_tokens: int = 128
    picture: tuple[int, int] = (640, 480)
    cases: int | None = None
    tflops: float | None = None
    gb_per_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("gpu_gib", "text_tokens", "cases", "tflops", "gb_per_s"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise UserError(f"task.{name}={value}: must be above 0 and finite; null leaves it open")
        if len(self.picture) != 2 or min(self.picture) < 1:
            raise UserError(f"task.picture={list(self.picture)}: must be width and height in pixels, as [640,480]")

    def __call__(self, run: Run) -> None:
        """Prints the plan and writes it to plan.json in a run directory."""
        from experiments.planning.peak_memory import measured

        console = Console()
        asked, cases, assumed = self.prompts(run)
        config = run.config | {"plan": repr(self)}
        with open_run(run.output_root, "plan", config, run.config_hash, fresh=True) as store:
            plans = []
            for card in self.cards(run):
                rates, notes = self.rates(card)
                with console.status("planning: the experiment's own code on shapes"):
                    found = measured(run, asked, card, rates)
                sentences = [*assumptions(found, run, assumed, notes), *sharing(found, cases), *advice(found, run)]
                plans.append(asdict(found) | {"sentences": sentences})
                console.print(table(found, run, cases))
                for sentence in sentences:
                    console.print(sentence, highlight=False, markup=False)
            if len(plans) > 1:
                console.print(NO_GPU, highlight=False, markup=False)
            store.write_json(
                FILE, {"command": provenance.command(), "model": run.model.name, "cases": cases, "plans": plans}
            )
            store.finish()
            console.print(f"plan: {store.path / FILE}", highlight=False, soft_wrap=True)

    def cards(self, run: Run) -> Sequence[float | None]:
        """The cards that are planned for, by their GiB; None is this machine's own device."""
        import torch

        if self.gpu_gib is not None or run.weights.path.startswith(ORGANISM) or run.weights.device != "auto":
            return [self.gpu_gib]
        return [None] if torch.cuda.is_available() else USUAL

    def prompts(self, run: Run) -> tuple[Asked, int, str]:
        """The prompts planned with, the number of cases, and a sentence on where both are from."""
        try:
            samples = run.benchmark.load().samples
        except UserError:
            samples = []
        if not samples:
            cases = self.cases or DEFAULT_CASES
            said = (
                f"Assumed, for want of cases: {self.text_tokens} words a prompt (task.text_tokens), a picture of "
                f"{self.picture[0]} × {self.picture[1]} pixels (task.picture), {cases} cases (task.cases)."
            )
            return Asked(self.text_tokens, *self.picture), cases, said
        words = max(len(sample.prompt.split()) for sample in samples)
        sizes = [size for sample in samples[:: max(1, len(samples) // 50)] if (size := size_of(sample.image))]
        largest = max(sizes, key=lambda size: size[0] * size[1], default=self.picture)
        looked_at = f"the largest of {len(sizes)} looked at"
        if isinstance(run.benchmark, IconWorld) and not run.weights.path.startswith(ORGANISM):
            looked_at = f"as photographs are (task.picture), though the drawings of {run.benchmark.name} are smaller"
            largest = self.picture
        said = (
            f"Prompts as long as the longest of {len(samples)} cases ({words} words, taken as {TOKENS_PER_WORD} "
            f"tokens each and {TEMPLATE_TOKENS} of the template), pictures of {largest[0]} × {largest[1]} pixels, "
            f"{looked_at}."
        )
        asked = Asked(math.ceil(TOKENS_PER_WORD * words) + TEMPLATE_TOKENS, *largest)
        return asked, self.cases or min(run.limit or len(samples), len(samples)), said

    def rates(self, gpu_gib: float | None) -> tuple[tuple[float, float, float], str]:
        """What a card of ``gpu_gib`` manages (``experiments.shapes.ledger.Rates``), and a sentence that says so."""
        size = min(CARDS, key=lambda size: abs(size - (gpu_gib or 24)))
        tflops, gb = CARDS[size]
        tflops, gb = self.tflops or tflops, self.gb_per_s or gb
        reached = tflops * 1e12 * EFFICIENCY["arithmetic"], gb * 1e9 * EFFICIENCY["memory"], LAUNCH
        return reached, (
            f"Times are for {EFFICIENCY['arithmetic']:.0%} of {tflops:g} TFLOP/s, {EFFICIENCY['memory']:.0%} of "
            f"{gb:g} GB/s and {LAUNCH * 1e6:.0f} µs a kernel, whichever is slowest (task.tflops, task.gb_per_s): "
            "assumed, not measured; reading pictures and weights comes on top."
        )


def assumptions(found: "Measured", run: Run, prompts: str, rates: str) -> list[str]:
    """What the numbers rest on."""
    source = f"Configuration: {found.origin}" + (
        "; its tokenizer is stood in for, by one token a word." if found.stand_in else "."
    )
    on_cpu = found.room.startswith("cpu")
    aside = (
        " For CUDA itself and for gaps between blocks .75 GiB and 3% of a card are set aside: assumed, not measured."
    )
    many = found.parameters >= 1e8
    counted = (
        f"{found.parameters / (1e9 if many else 1e6):.{2 if many else 1}f} {'b' if many else 'm'}illion parameters"
    )
    return [
        f"{run.model.name}: {counted} in {found.dtype}, {gib(found.weights)} of weights; {gib(found.usable)} usable of "
        f"{found.room}. {source}",
        f"{prompts} A prompt is then {found.tokens} tokens, {found.image_tokens} of them the picture's.",
        "Peaks are those of tensors, weights included, by the experiment's own code on shapes; attention is "
        f"{found.attention}.{'' if on_cpu else aside}",
        f"{rates}{' That is a card: this CPU takes longer, and how long is not known here.' if on_cpu else ''}",
    ]


def sharing(found: "Measured", cases: int) -> list[str]:
    """What arms save that ask the same prompts: a step's time in the table is what its arms take alone."""
    saved = sum(one.shared for one in found.outcomes)
    alone = sum(one.seconds for one in found.outcomes if one.step.startswith("answers"))
    if not saved:
        return []
    return [
        f"A step's time is that of its arms alone. Arms that ask the same prompts read them once, which saves at least "
        f"{duration(saved * cases)} of the {duration(alone * cases)} that all answers take."
    ]


def table(found: "Measured", run: Run, cases: int) -> Table:
    """A row for each step."""
    drawn = Table(
        title=Text(f"{run.model.name} on {found.room}", style="italic"), title_justify="left", caption_justify="left"
    )
    for name, side in (("step", "left"), ("batch", "right"), ("peak", "right"), ("fits", "left"), ("time", "right")):
        drawn.add_column(name, justify=side)  # type: ignore[arg-type]
    for one in found.outcomes:
        if one.error:
            drawn.add_row(one.step, "–", "–", Text(one.error), "–")
            continue
        batch = f"{one.rows or 1}" + (f" of {one.asked}" if one.rows != one.asked else "")
        done_with = min(cases, one.cases or cases)
        taken = f"{duration(one.seconds)} a step" if one.trains else duration(one.seconds * done_with)
        drawn.add_row(one.step, batch, gib(one.peak), "yes" if one.rows else "no", taken)
    return drawn


def duration(seconds: float) -> str:
    """About how long."""
    if seconds < 90:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def gib(size: int) -> str:
    """Bytes in GiB, or in MiB where they are few."""
    return f"{size / GIB:.1f} GiB" if size >= GIB / 10 else f"{size / 2**20:.0f} MiB"


def advice(found: "Measured", run: Run) -> list[str]:
    """The verdict first, then ways out."""
    planned = [one for one in found.outcomes if not one.error]
    lacking = [one for one in planned if not one.rows]
    smaller = [one for one in planned if 0 < one.rows < one.asked]
    unplanned = [f"{one.step} cannot be planned: {one.error}." for one in found.outcomes if one.error]
    unplanned += [f"{one.step}, not in the plan: {one.left_out}." for one in planned if one.left_out]
    cache = (
        f"feature_cache_mib={run.feature_cache_mib} is main memory, up to {run.feature_cache_mib / 1024:.1f} GiB of "
        "it, and none of the GPU's; 0 does without."
    )
    if not lacking and not smaller:
        return ["All of it fits at the batches asked for.", cache, *unplanned]
    if not lacking:
        return [*_halved(found, run, smaller), cache, *unplanned]
    return [*_too_large(found, run, lacking), *unplanned]


def _halved(found: "Measured", run: Run, smaller: "list[Outcome]") -> list[str]:
    sentences = ["All of it fits, but not at the batches asked for."]
    for one in smaller:
        if one.trains:
            sentences.append(
                f"{one.step}: take task.settings.batch_size={one.rows} and "
                f"task.settings.accumulation={math.ceil(one.asked / one.rows)} times what it is; a training does not "
                "halve its batches."
            )
    if any(not one.trains for one in smaller):
        least = min(one.rows for one in smaller if not one.trains)
        sentences.append(
            "A study halves its batches where memory runs out; to spare it the attempts, set "
            f"batch_tokens={least * found.tokens} (or batch_size={least})."
        )
    return sentences


def _too_large(found: "Measured", run: Run, lacking: "list[Outcome]") -> list[str]:
    worst = max(lacking, key=lambda one: one.peak)
    alone = found.weights > found.usable
    first = (
        f"It does not fit: the weights alone need {gib(found.weights)}, and {gib(found.usable)} are usable."
        if alone
        else f"It does not fit: {worst.step} needs {gib(worst.peak)} for one row, and {gib(found.usable)} are usable."
    )
    ways = []
    if found.dtype == "float32":
        ways.append(f"model.dtype=bfloat16 halves the weights to {gib(found.weights // 2)}")
    training = getattr(run.task, "settings", None)
    if training is not None and not training.four_bit:
        ways.append("task.settings.four_bit=true trains on weights in 4 bits")
    if training is not None and training.checkpointing == "off":
        ways.append("task.settings.checkpointing=on keeps fewer activations")
    if getattr(run.model, "max_pixels", None) is None and found.image_tokens > 1000:
        ways.append("model.max_pixels=500000 makes fewer tokens of a picture")
    cards = max(2, math.ceil(worst.peak / found.usable)) if found.usable else 2
    ways.append(f"model.device_map=auto spreads it over {cards} such cards or more, and over main memory, slowly")
    ways.append("choose a smaller model (task=model_table lists them)")
    return [first, f"What to change: {'; '.join(ways)}."]
