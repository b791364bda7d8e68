"""What answering will need: memory by formulas of the model's configuration, time by the seconds of one batch."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from PIL import Image

from experiments.benchmarks.images import open_image
from experiments.config import Run
from experiments.evaluation.case_batches import prompt_of, size_of
from experiments.studies.bench.known_models import Outline, at_hand, outline
from experiments.types import Sample
from interp.checkpoints.config import ModelConfig
from interp.checkpoints.load import dtype_on, resolve_device
from interp.checkpoints.memory import GIB, free_memory, row_bytes, token_cache_bytes
from interp.errors import UserError
from interp.loading import load
from interp.prompt import Prompt
from interp.prompt_length import Lengths
from mitigation.method import Baseline, abilities

if TYPE_CHECKING:
    from interp.vlm import VLM

CONTEXT_GIB = 0.75  # assumed: CUDA, its libraries and their workspaces
LOST = 0.03  # assumed: the share of a card that is lost between blocks
HOST = 0.7e-3  # seconds that a decoder layer's kernels take to start: 17 to 25 ms a token of 32 layers (docs/gpu.md)
TOKENS_PER_WORD = 1.4  # assumed for English, where the tokenizer is stood in for


@dataclass(frozen=True)
class Room:
    """The device that is planned for; ``usable`` bytes of it are for tensors."""

    title: str
    usable: int
    on_gpu: bool


def room_of(gpu_gib: float | None, model: ModelConfig) -> Room:
    """The card of ``gpu_gib``, or else what is free now on the device that the model would go to.

    Raises:
        UserError: the device is not there, or its free memory is not known.
    """
    if gpu_gib is not None:
        usable = int(gpu_gib * GIB * (1 - LOST) - CONTEXT_GIB * GIB)
        return Room(f"a GPU of {gpu_gib:g} GiB", max(0, usable), True)
    device = resolve_device(model.device, model.name)
    free = free_memory(device)
    if free is None:
        raise UserError(f"how much memory {device} has is not known here; say it with task.gpu_gib=<GiB>")
    on_gpu = device.type == "cuda"
    return Room(f"{device}, {free / GIB:.1f} GiB of it free now", int(free * (1 - LOST * on_gpu)), on_gpu)


@dataclass(frozen=True)
class Batch:
    """Cases that are answered at once, the length of their longest prompt, and patches of the picture in each."""

    samples: Sequence[Sample]
    columns: int
    patches: int

    @property
    def size(self) -> int:
        """Tokens, with the padding."""
        return len(self.samples) * self.columns


def batches_of(run: Run, samples: Sequence[Sample], found: Outline) -> list[Batch]:
    """The batches in which a study asks the cases."""
    texts = [sample.prompt for sample in samples]
    sizes = [size_of(sample.image) for sample in samples]
    lengths = Lengths(found.vlm).of(texts, sizes)
    if found.stand_in:
        more = TOKENS_PER_WORD - 1
        lengths = [length + ceil(more * len(text.split())) for length, text in zip(lengths, texts, strict=True)]
    patches = {size: _patches(found.vlm, size) for size in dict.fromkeys(sizes)}
    return [
        Batch(
            [samples[place] for place in batch],
            max(lengths[place] for place in batch),
            max(patches[sizes[place]] for place in batch),
        )
        for batch in run.batch_rule.form(lengths, [size is not None for size in sizes])
    ]


def _patches(vlm: "VLM", size: tuple[int, int] | None) -> int:
    """Patches that the vision tower sees of a picture."""
    if size is None:
        return 0
    pixels = vlm.inputs([Prompt("?", Image.new("RGB", size))]).get("pixel_values")
    vision = getattr(vlm.model.config, "vision_config", None)
    side = getattr(vision, "patch_size", 14)
    side = side if isinstance(side, int) else side[0]
    each = 3 * side**2 * getattr(vision, "temporal_patch_size", 1)
    return 0 if pixels is None else pixels.numel() // each


def weight_bytes(vlm: "VLM") -> int:
    """Parameters and buffers; tied ones once."""
    return sum(weight.numel() * weight.itemsize for weight in [*vlm.model.parameters(), *vlm.model.buffers()])


def batch_bytes(vlm: "VLM", batch: Batch, rows: int, branches: int, new_tokens: int) -> int:
    """The most that ``rows`` prompts of the batch take beside the weights: in the decoder, or in the vision tower."""
    config, kind = vlm.model.config, str(vlm.dtype).removeprefix("torch.")
    columns = batch.columns
    row = row_bytes(config, kind, columns) + new_tokens * token_cache_bytes(config, kind)
    if config._attn_implementation == "eager":  # queries × keys of a layer: scores, and their softmax in float32
        row += config.get_text_config().num_attention_heads * columns**2 * (2 * vlm.dtype.itemsize + 4)
    vision = getattr(config, "vision_config", None)
    width = getattr(vision, "hidden_size", 0)
    states = 4 * width + 3 * getattr(vision, "intermediate_size", 4 * width)
    return rows * max(branches * row, batch.patches * states * vlm.dtype.itemsize)


class Rates(NamedTuple):
    """What a device manages: operations and bytes a second; and a sentence on where that is from."""

    flops: float
    bytes: float
    said: str


class Seconds(NamedTuple):
    """Of one batch of ``rows``: to read its prompts, and for one more token of each. ``tokens`` are those that an
    answer had; None where none was asked for."""

    rows: int
    reading: float
    step: float
    tokens: float | None = None


def computed_seconds(vlm: "VLM", batch: Batch, rows: int, rates: Rates) -> Seconds:
    """By operations of matrix products, bytes of weights and cache, or what the host starts: what takes longest."""
    started = HOST * len(vlm.layout.module(vlm.model, "layers"))
    count = sum(weight.numel() for weight in vlm.model.parameters())
    layers = sum(weight.numel() for weight in vlm.layout.module(vlm.model, "layers").parameters())
    tables = {id(vlm.model.get_input_embeddings().weight), id(vlm.model.get_submodule(vlm.layout.lm_head).weight)}
    rest = sum(weight.numel() for weight in vlm.model.parameters() if id(weight) not in tables) - layers
    weights = count * vlm.dtype.itemsize
    cache = rows * batch.columns * token_cache_bytes(vlm.model.config, str(vlm.dtype).removeprefix("torch."))
    flops = 2 * rows * (layers * batch.columns + rest * batch.patches)
    return Seconds(
        rows,
        max(flops / rates.flops, weights / rates.bytes, started),
        max(2 * rows * layers / rates.flops, (weights + cache) / rates.bytes, started),
    )


def measured_seconds(vlm: "VLM", batch: Batch, new_tokens: int) -> Seconds:
    """By asking a loaded model one batch."""
    prompts = [prompt_of(one, None if one.image is None else open_image(one.image)) for one in batch.samples]

    def answered(tokens: int) -> tuple[float, list[int]]:
        begun = time.perf_counter()
        generation = Baseline().generate(vlm, prompts, max_new_tokens=tokens)
        return time.perf_counter() - begun, [len(ids) for ids in generation.token_ids]

    answered(1)  # what is made once
    reading, _ = answered(1)
    whole, counts = answered(new_tokens)
    step = max(0.0, whole - reading) / max(1, max(counts) - 1)
    return Seconds(len(prompts), reading, step, sum(counts) / len(counts))


@dataclass(frozen=True)
class ArmEstimate:
    """An arm's prompts and tokens in the whole run, those of steps included; ``rows`` at which its largest batch fits
    (0: not one), of ``asked``; its peak there, weights included, or at one row; and its seconds."""

    arm: str
    prompts: int
    tokens: int
    rows: int
    asked: int
    peak: int
    seconds: float


@dataclass(frozen=True)
class Estimate:
    """What is estimated of one device. Sizes are in bytes; ``speed`` is a sentence on where the seconds are from."""

    room: str
    on_cpu: bool
    usable: int
    weights: int
    parameters: int
    dtype: str
    origin: str
    stand_in: bool
    cases: int
    batches: int
    longest: int  # tokens of a prompt
    speed: str
    arms: list[ArmEstimate]


def estimated(
    run: Run,
    samples: Sequence[Sample],
    arms: Mapping[str, Any],
    cases: Mapping[str, int],
    gpu_gib: float | None,
    rates: Rates,
) -> Estimate:
    """What the ``arms`` need for their ``cases``, in the batches of ``samples``, on a card of ``gpu_gib`` (None: here).

    Where that is this machine and the model's weights are on it and fit, one batch is measured; else seconds are
    computed by ``rates``.

    Raises:
        UserError: no configuration of the model, or a device that is not there.
    """
    model, room = run.weights, room_of(gpu_gib, run.weights)
    automatic = room.on_gpu and model.dtype == "auto"
    found = outline(model, torch.bfloat16 if automatic else dtype_on(model.dtype, torch.device("cpu")))
    vlm, batches = found.vlm, batches_of(run, samples, found)
    new_tokens = run.max_new_tokens if run.protocol == "generate" else 1
    middle, weights = batches[len(batches) // 2], weight_bytes(vlm)
    speed: Rates | Seconds = rates
    said = rates.said if room.on_gpu else f"{rates.said} That is a card: this CPU takes longer."
    needed = weights + batch_bytes(vlm, middle, len(middle.samples), 1, new_tokens)
    if gpu_gib is None and at_hand(model) and needed <= room.usable:
        speed = measured_seconds(load(model), middle, new_tokens)
        said = (
            f"Times are by one batch of {speed.rows} cases, measured here: {speed.reading:.2g} s to read it and "
            f"{speed.step:.2g} s for a further token; its answers had {speed.tokens:.1f} tokens."
        )
    return Estimate(
        room=room.title,
        on_cpu=not room.on_gpu,
        usable=room.usable,
        weights=weights,
        parameters=sum(weight.numel() for weight in vlm.model.parameters()),
        dtype=str(vlm.dtype).removeprefix("torch."),
        origin=found.origin,
        stand_in=found.stand_in,
        cases=len(samples),
        batches=len(batches),
        longest=max(batch.columns for batch in batches),
        speed=said,
        arms=[
            arm_estimate(arm, method, cases[arm], batches, vlm, room, new_tokens, speed) for arm, method in arms.items()
        ],
    )


def arm_estimate(
    arm: str,
    method: Any,
    cases: int,
    batches: Sequence[Batch],
    vlm: "VLM",
    room: Room,
    new_tokens: int,
    speed: Rates | Seconds,
) -> ArmEstimate:
    """An arm by what its method says of its work: prompts and tokens, times the seconds of a batch."""
    largest = max(batches, key=lambda batch: batch.size)
    work, weights = abilities(method).work, weight_bytes(vlm)
    asked = rows = len(largest.samples)

    def peak(rows: int) -> int:
        return weights + batch_bytes(vlm, largest, rows, work.branches, new_tokens)

    while rows and peak(rows) > room.usable:
        rows //= 2
    batch = speed if isinstance(speed, Seconds) else computed_seconds(vlm, largest, max(1, rows), speed)
    answer = new_tokens if batch.tokens is None else batch.tokens
    prompts = cases * work.prompts
    # The first token of an answer comes with its prompt.
    steps = cases * (work.branches * (answer - 1) + work.step_tokens)
    return ArmEstimate(
        arm=arm,
        prompts=prompts,
        tokens=round(cases * (answer + work.step_tokens)),
        rows=rows,
        asked=asked,
        peak=peak(max(1, rows)),
        seconds=(prompts * batch.reading + steps * batch.step) / batch.rows,
    )
