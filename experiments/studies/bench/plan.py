"""``task=plan``: before a command, an estimate of what its answers will need. Asks no network.

``python -m experiments.run task=plan +exp=vcd_llava model=llava_1_5_7b task.gpu_gib=24``: the rest of the command is
composed as it would be without ``task=plan``. Importing this module loads neither torch nor transformers.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from experiments.config import Run
from experiments.evaluation import training
from experiments.evaluation.admission import not_applicable
from experiments.evaluation.cases import development_cases, limited, load_cases
from experiments.runs import provenance
from experiments.runs.responses import Responses
from experiments.runs.resumption import open_run
from experiments.types import Sample
from interp.checkpoints.config import ORGANISM
from interp.errors import UserError
from mitigation.method import abilities

if TYPE_CHECKING:
    from experiments.studies.bench.estimate import Estimate, Rates

FILE = "plan.json"
GIB = 2**30
EFFICIENCY = {"arithmetic": 0.5, "memory": 0.7}  # assumed, of what the card's maker states
USUAL = (24.0, 80.0)  # GiB of the cards that are planned for where this machine has no GPU
# GiB → dense TFLOP/s in 16 bits and GB/s of typical cards, by their makers: T4, A10, A100 40 GB, A100 80 GB.
CARDS = {16: (65.0, 320.0), 24: (125.0, 600.0), 40: (312.0, 1555.0), 80: (312.0, 2039.0)}
NO_GPU = "This machine has no GPU; model.device=cpu plans for its CPU, task.gpu_gib=<GiB> for another card."
# Measured as docs/guide-models.md says.
ERROR = (
    "This is an estimate: on the two bundled models peaks were within 7% of what was measured; times on the first were "
    "21% too long for the plain model and 65% for VCD, whose second branch a CPU leaves out where one token is certain"
    ". At the shape of LLaVA-1.5-7B on an H200 peaks were within 1%, times 41% too short (docs/gpu.md)."
)
LEFT_OUT = (
    "In it are the answers of the arms to all cases, each arm by itself: arms that ask the same prompts read them once "
    "in a run, and keep them while there is room. Not in it are learning, looking inside (attention, knockout, "
    "patching) and whatever a task does beside its arms: training above all, and the three random models of "
    "+exp=mechanism, each of which takes the weights' size once more."
)


@dataclass(frozen=True)
class Plan:
    """The task.

    ``gpu_gib`` is the card's memory (None: what is free now on this machine's device; where it has no GPU, the cards of
    ``USUAL``, but for a bundled model). ``tflops`` and ``gb_per_s`` are the card's, as its maker states them.

    Raises:
        UserError: a number that is not above 0.
    """

    gpu_gib: float | None = None
    tflops: float | None = None
    gb_per_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("gpu_gib", "tflops", "gb_per_s"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise UserError(f"task.{name}={value}: must be above 0 and finite; null leaves it open")

    def __call__(self, run: Run) -> None:
        """Prints the estimate and writes it to plan.json in a run directory.

        Raises:
            UserError: no cases, no configuration of the model, a device that is not there, or an arm that cannot enter.
        """
        from experiments.studies.bench.estimate import estimated

        console = Console()
        cards = self.cards(run)
        every = load_cases(run, console).samples
        arms = entering(run)
        cases = cases_by_arm(run, arms, every)
        with open_run(run.output_root, "plan", run.config, run.config_hash, fresh=True) as store:
            plans = []
            for card in cards:
                with console.status("estimating"):
                    found = estimated(run, limited(every, run.limit), arms, cases, card, self.rates(card))
                sentences = [*assumptions(found, run), *verdict(found, run), LEFT_OUT, ERROR]
                console.print(table(found, run))
                for sentence in sentences:
                    console.print(sentence, highlight=False, markup=False)
                plans.append(asdict(found) | {"sentences": sentences})
            if len(plans) > 1:
                console.print(NO_GPU, highlight=False, markup=False)
            store.write_json(FILE, {"command": provenance.command(), "model": run.model.name, "plans": plans})
            store.finish()
            console.print(f"plan: {store.path / FILE}", highlight=False, soft_wrap=True)

    def cards(self, run: Run) -> Sequence[float | None]:
        """The cards that are planned for, by their GiB; None is this machine's own device."""
        import torch

        if self.gpu_gib is not None or run.weights.path.startswith(ORGANISM) or run.weights.device != "auto":
            return [self.gpu_gib]
        return [None] if torch.cuda.is_available() else USUAL

    def rates(self, gpu_gib: float | None) -> "Rates":
        """What a card of ``gpu_gib`` manages."""
        from experiments.studies.bench.estimate import Rates

        size = min(CARDS, key=lambda size: abs(size - (gpu_gib or 24)))
        tflops, gb = CARDS[size]
        tflops, gb = self.tflops or tflops, self.gb_per_s or gb
        said = (
            f"Times are computed for {EFFICIENCY['arithmetic']:.0%} of {tflops:g} TFLOP/s and "
            f"{EFFICIENCY['memory']:.0%} of {gb:g} GB/s (task.tflops, task.gb_per_s), and for answers as long as "
            "max_new_tokens; reading pictures and weights comes on top."
        )
        return Rates(tflops * 1e12 * EFFICIENCY["arithmetic"], gb * 1e9 * EFFICIENCY["memory"], said)


def entering(run: Run) -> dict[str, Any]:
    """The arms that ask the model."""
    absent = not_applicable(run)
    return {
        name: method for name, method in run.arms.items() if name not in absent and not isinstance(method, Responses)
    }


def cases_by_arm(run: Run, arms: Mapping[str, Any], every: Sequence[Sample]) -> dict[str, int]:
    """How many cases each arm is asked: those of the run, and of the development split where others are fitted to it.

    Raises:
        UserError: as ``development_cases`` does, or an arm has nothing to be fitted to.
    """
    found = dict.fromkeys(arms, len(limited(every, run.limit)))
    fitted = [method for method in arms.values() if abilities(method).fitted_to]
    if fitted and (development := development_cases(run, every)) is not None:
        more = len(limited(development.samples, run.limit))
        for arm in {name for method in fitted for name in training.arms_needed(method, run.arm, run.arms)}:
            found[arm] += more
    return found


def assumptions(found: "Estimate", run: Run) -> list[str]:
    """What the numbers rest on."""
    words = "; its tokenizer is stood in for, by 1.4 tokens a word" if found.stand_in else ""
    aside = "" if found.on_cpu else "; .75 GiB and 3% of the card are set aside for CUDA, which is assumed"
    scale, unit = (1e9, "billion") if found.parameters >= 1e8 else (1e6, "million")
    counted = f"{found.parameters / scale:.2f} {unit} parameters in {found.dtype}, {size(found.weights)} of weights"
    return [
        f"{run.model.name}: {counted}; {size(found.usable)} usable of {found.room}{aside}. Configuration: "
        f"{found.origin}{words}.",
        f"{found.cases} cases in {found.batches} batches; the longest prompt has {found.longest} tokens. A peak is "
        "weights, and of every branch keys, values and one layer's states, by formula.",
        found.speed,
    ]


def verdict(found: "Estimate", run: Run) -> list[str]:
    """Whether it fits, and what to change where it does not."""
    if all(one.rows == one.asked for one in found.arms):
        return ["All of it fits at the batches asked for."]
    if all(one.rows for one in found.arms):
        least = min(one.rows for one in found.arms)
        return [
            "All of it fits, but not at the batches asked for. A study halves its batches where memory runs out; to "
            f"spare it the attempts, set batch_tokens={least * found.longest} (or batch_size={least})."
        ]
    worst = max(found.arms, key=lambda one: one.peak)
    ways = ["model.dtype=bfloat16 halves the weights"] if found.dtype == "float32" else []
    if run.weights.max_pixels is None:
        ways.append("model.max_pixels=500000 bounds the tokens of a picture")
    ways.append("model.device_map=auto spreads it over several cards and over main memory, slowly")
    ways.append("choose a smaller model")
    return [
        f"It does not fit: {worst.arm} needs {size(worst.peak)} for one row, {size(found.weights)} of it weights, and "
        f"{size(found.usable)} are usable. What to change: {'; '.join(ways)}."
    ]


def table(found: "Estimate", run: Run) -> Table:
    """A row for each arm."""
    drawn = Table(title=Text(f"{run.model.name} on {found.room}", style="italic"), title_justify="left")
    for name in ("arm", "prompts", "tokens", "batch", "peak", "fits", "time"):
        drawn.add_column(name, justify="left" if name in ("arm", "fits") else "right")
    for one in found.arms:
        batch = f"{one.rows or 1}" + (f" of {one.asked}" if one.rows != one.asked else "")
        numbers = (f"{one.prompts:,}", f"{one.tokens:,}", batch, size(one.peak), "yes" if one.rows else "no")
        drawn.add_row(one.arm, *numbers, duration(one.seconds))
    return drawn


def duration(seconds: float) -> str:
    """About how long."""
    if seconds < 90:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def size(count: int) -> str:
    """Bytes in GiB, or in MiB where they are few."""
    return f"{count / GIB:.1f} GiB" if count >= GIB / 10 else f"{count / 2**20:.0f} MiB"
