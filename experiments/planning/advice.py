"""What a plan comes to, in sentences: whether all fits, at what batch, and what to change where it does not."""

import math
from typing import TYPE_CHECKING

from experiments.config import Run

if TYPE_CHECKING:
    from experiments.planning.peak_memory import Measured, Outcome

GIB = 2**30


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
