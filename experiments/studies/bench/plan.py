"""``task=plan``: before a command, an estimate of what its answers will need. Uses no network.

``python -m experiments.run task=plan +exp=vcd_llava model=llava_1_5_7b task.gpu_gib=24``: the rest of the command is
composed as without ``task=plan``. Memory and time are estimated by formulas of the model's configuration.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from huggingface_hub import try_to_load_from_cache
from PIL import Image
from rich.console import Console

from experiments.config import Run
from experiments.evaluation import fitting
from experiments.evaluation.cases import development_cases, limited, load_cases, outlines
from experiments.evaluation.validated_run import excluded_arms
from experiments.runs import record_fields
from experiments.runs.responses import Responses
from experiments.runs.store import open_run
from experiments.studies.bench.harness import table
from experiments.studies.bench.models import built, configured, shipped, stand_in
from experiments.types import Sample
from interp.batching import Lengths
from interp.checkpoints.config import (
    GIB,
    ORGANISM,
    ModelConfig,
    Source,
    find,
    free_memory,
    row_bytes,
    token_cache_bytes,
)
from interp.checkpoints.load import dtype_on, read_config, read_processor, resolve_device, set_bounds
from interp.errors import UserError
from interp.prompt import Prompt
from mitigation.method import abilities

if TYPE_CHECKING:
    from interp.vlm import VLM

USUAL = 24.0  # GiB of the card for a real model on a machine without a GPU
# GiB → dense FLOP/s in 16 bits and bytes a second, by the makers of T4, A10, A100 (40 and 80 GB) and H200. Of these
# half and 70% are assumed.
CARDS = {16: (65e12, 320e9), 24: (125e12, 600e9), 40: (312e12, 1555e9), 80: (312e12, 2039e9), 141: (989e12, 4800e9)}
CONTEXT_GIB, LOST = 0.75, 0.03  # assumed: CUDA with its libraries, and the share of a card lost between blocks
HOST = 0.7e-3  # seconds to start the kernels of a decoder layer: 17 to 25 ms a token of 32 layers (docs/gpu.md)
TOKENS_PER_WORD = 1.4  # assumed for English, if the tokenizer is a stand-in
NOTE = (
    "This is an estimate of each arm's answers; a run reads prompts that arms share once. It does not count learning, "
    "training, attention, knockout and patching. On an H200 peaks were within 1% of the measured ones; "
    "on CPUs they can be 10 to 20 MiB too low. On the H200 times were 41% too short (docs/gpu.md); "
    "for a CPU there are none."
)


class Batch(NamedTuple):
    """Cases of a batch, the length of their longest prompt, and the patches of a picture."""

    samples: Sequence[Sample]
    columns: int
    patches: int


@dataclass(frozen=True)
class Plan:
    """The task.

    ``gpu_gib`` is the card's memory. None is the free memory of this machine's device; without a GPU here, a real model
    is planned for a card of ``USUAL``.

    Raises:
        UserError: the memory is not above 0.
    """

    gpu_gib: float | None = None

    def __post_init__(self) -> None:
        if self.gpu_gib is not None and not 0 < self.gpu_gib < math.inf:
            raise UserError(f"task.gpu_gib={self.gpu_gib}: must be above 0 and finite; null plans for this machine")

    def __call__(self, run: Run) -> None:
        """Print the estimate and write it to plan.json in a run directory.

        Raises:
            UserError: no cases, no configuration of the model, an absent device, or an arm that cannot enter.
        """
        console = Console()
        every = load_cases(run, console).samples
        with open_run(run.output_root, "plan", run.config, run.config_hash, fresh=True) as store:
            with console.status("estimating"):
                plan = estimated(run, every, self.card(run))
            console.print(table(f"{run.model.name} on {plan['room']}", plan["arms"]))
            console.print(*plan["sentences"], sep="\n", highlight=False, markup=False)
            store.write_json("plan.json", {"command": record_fields.command(), "model": run.model.name, **plan})
            store.finish()
            console.print(f"plan: {store.path / 'plan.json'}", highlight=False, soft_wrap=True)

    def card(self, run: Run) -> float | None:
        """Return the GiB of the card. None is this machine's own device."""
        import torch

        here = run.weights.path.startswith(ORGANISM) or run.weights.device != "auto" or torch.cuda.is_available()
        return self.gpu_gib or (None if here else USUAL)


def cases_by_arm(run: Run, every: Sequence[Sample]) -> dict[str, int]:
    """Return each arm's number of cases: the run's cases, and the development split's if another arm is fitted to it.

    Raises:
        UserError: as ``development_cases`` does, or an arm has nothing to be fitted to.
    """
    counts = dict.fromkeys(run.arms, len(limited(every, run.limit)))
    fitted = [method for method in run.arms.values() if fitting.is_fitted(method)]
    if fitted and (development := development_cases(run, every)) is not None:
        for arm in {name for method in fitted for name in fitting.arms_needed(method, run.arm, run.arms)}:
            counts[arm] += len(limited(development.samples, run.limit))
    return counts


def room_of(gpu_gib: float | None, model: ModelConfig) -> tuple[str, int, bool]:
    """Return a device in words, its usable bytes, and whether it is a GPU: a card, or the model's device here.

    Raises:
        UserError: the device is absent, or its free memory is unknown.
    """
    if gpu_gib is not None:
        return f"a GPU of {gpu_gib:g} GiB", max(0, int((gpu_gib * (1 - LOST) - CONTEXT_GIB) * GIB)), True
    device = resolve_device(model.device, model.name)
    free, on_gpu = free_memory(device), device.type == "cuda"
    if free is None:
        raise UserError(f"the memory of {device} is unknown here; set task.gpu_gib=<GiB>")
    return f"{device}, {free / GIB:.1f} GiB of it free now", int(free * (1 - LOST * on_gpu)), on_gpu


def estimated(run: Run, every: Sequence[Sample], gpu_gib: float | None) -> dict[str, Any]:
    """Return what the arms of ``run`` need for its cases among ``every``, on a card of ``gpu_gib`` (None: here).

    Raises:
        UserError: no configuration of the model, or an absent device.
    """
    import torch

    model, (room, usable, on_gpu) = run.weights, room_of(gpu_gib, run.weights)
    dtype = torch.bfloat16 if on_gpu and model.dtype == "auto" else dtype_on(model.dtype, torch.device("cpu"))
    vlm, origin, per_word = outline(model, dtype)
    batches = batches_of(run, limited(every, run.limit), vlm, per_word)
    new_tokens = run.max_new_tokens if run.protocol == "generate" else 1
    flops, moved = CARDS[min(CARDS, key=lambda gib: abs(gib - (gpu_gib or USUAL)))]
    absent, rows = excluded_arms(run), []
    arms = {
        name: method for name, method in run.arms.items()
        if name not in absent and not isinstance(method, Responses) and not fitting.only_shifts(method)
    }  # fmt: skip
    counts, batch, longest = cases_by_arm(run, every), largest_of(batches), max(each.columns for each in batches)
    for arm, method in arms.items():
        work, count = abilities(method).work, counts[arm]
        batch_rows, peak = fit(method, batch, vlm, usable, new_tokens)
        prompts, tokens = count * work.prompts, count * (new_tokens + work.step_tokens)
        row = {"arm": arm, "prompts": prompts, "tokens": tokens, "peak GiB": peak / GIB}
        row |= {"rows that fit": batch_rows, "of": fit(method, batch, vlm, 2**60, new_tokens)[0]}
        reading, step = seconds_of(vlm, batch, max(1, batch_rows), flops / 2, moved * 0.7)
        # The first token of an answer comes with its prompt.
        seconds = prompts * reading + count * (work.branches * (new_tokens - 1) + work.step_tokens) * step
        rows.append(row | {"minutes": seconds / max(1, batch_rows) / 60 if on_gpu else None})
    weights, kind = weight_bytes(vlm), str(vlm.dtype).removeprefix("torch.")
    millions = sum(weight.numel() for weight in vlm.model.parameters()) / 1e6
    sentences = [
        f"{run.model.name}: {millions:,.2f} million parameters in {kind}, {weights / GIB:.2f} GiB of weights; "
        f"{usable / GIB:.1f} GiB usable of {room}. Configuration: {origin}; prompts of at most {longest} tokens.",
        f"Times are computed for half of {flops / 1e12:g} TFLOP/s and 70% of {moved / 1e9:g} GB/s.",
        verdict(rows, usable, longest),
        NOTE,
    ]
    return {"room": room, "weights": weights, "longest": longest, "arms": rows, "sentences": sentences}


def outline(model: ModelConfig, dtype: Any) -> "tuple[VLM, str, float]":
    """Return the model without weights, the origin of its configuration, and the tokens of a word (1: tokenized).

    Raises:
        UserError: neither shipped, nor a folder, nor in the hub's cache; or a folder that cannot be read.
    """
    import torch

    if model.path in shipped():
        config, origin, per_word = configured(model.path, {}, {}), "the shipped one", TOKENS_PER_WORD
        longest = config.get_text_config().max_position_embeddings
        processor = stand_in(config, shipped()[model.path]["image_processor"], words=(), longest=longest)
        set_bounds(processor.image_processor, model)
    else:
        local = model.path.startswith(ORGANISM) or Path(model.path).expanduser().is_dir() or model.path.count("/") != 1
        cached = None if local else try_to_load_from_cache(model.path, "config.json", revision=model.revision)
        if not local and not isinstance(cached, str):
            raise UserError(
                f"the configuration of {model.path} is not known here; it is for {', '.join(shipped())}; "
                "give a folder with its config.json and processor as model.path, or fetch those once with network"
            )
        source = find(model) if local else Source(model.path, model.revision)
        config, processor, origin, per_word = (
            read_config(source, model),
            read_processor(source, model),
            source.path,
            1.0,
        )
    options: dict[str, Any] = {"attn_implementation": model.attn_implementation}
    return built(config, processor, torch.device("meta"), dtype, name=model.name, **options), origin, per_word


def batches_of(run: Run, samples: Sequence[Sample], vlm: "VLM", per_word: float = 1.0) -> list[Batch]:
    """Return the batches of a study; a word has ``per_word`` tokens."""
    prompts, pictured = outlines(samples)
    lengths = Lengths(vlm).count(prompts, pictured)
    texts, sizes = [sample.prompt for sample in samples], [max(each, default=None) for each in pictured]
    lengths = [n + math.ceil((per_word - 1) * len(text.split())) for n, text in zip(lengths, texts, strict=True)]
    patches = {side: _patches(vlm, side) for side in dict.fromkeys(sizes)}
    formed = run.batch_rule.form(lengths, [len(each) for each in pictured])
    return [
        Batch([samples[n] for n in batch], max(lengths[n] for n in batch), max(patches[sizes[n]] for n in batch))
        for batch in formed
    ]


def largest_of(batches: Sequence[Batch]) -> Batch:
    """Return the batch with the most tokens, padding included."""
    return max(batches, key=lambda batch: len(batch.samples) * batch.columns)


def _patches(vlm: "VLM", side: tuple[int, int] | None) -> int:
    """Return the patches of a picture in the vision tower."""
    pixels = None if side is None else vlm.inputs([Prompt("?", Image.new("RGB", side))]).get("pixel_values")
    vision = getattr(vlm.model.config, "vision_config", None)
    patch = getattr(vision, "patch_size", 14)
    patch = patch if isinstance(patch, int) else patch[0]
    return 0 if pixels is None else pixels.numel() // (3 * patch**2 * getattr(vision, "temporal_patch_size", 1))


def weight_bytes(vlm: "VLM") -> int:
    """Return the bytes of parameters and buffers; shared ones once."""
    return sum(weight.numel() * weight.itemsize for weight in [*vlm.model.parameters(), *vlm.model.buffers()])


def batch_bytes(vlm: "VLM", batch: Batch, rows: int, branches: int, new_tokens: int) -> int:
    """Return the most that ``rows`` prompts take in addition to the weights: in the decoder or the vision tower."""
    config, kind = vlm.model.config, str(vlm.dtype).removeprefix("torch.")
    row = row_bytes(config, kind, batch.columns) + new_tokens * token_cache_bytes(config, kind)
    if config._attn_implementation == "eager":  # scores of a layer, and their softmax in float32
        row += config.get_text_config().num_attention_heads * batch.columns**2 * (2 * vlm.dtype.itemsize + 4)
    vision = getattr(config, "vision_config", None)
    width = getattr(vision, "hidden_size", 0)
    states = 4 * width + 3 * getattr(vision, "intermediate_size", 4 * width)
    return rows * max(branches * row, batch.patches * states * vlm.dtype.itemsize)


def fit(method: Any, batch: Batch, vlm: "VLM", usable: int, new_tokens: int) -> tuple[int, int]:
    """Return how many rows of the batch fit, by halves (0: none), and the peak with the weights, at least of a row."""
    rows = len(batch.samples)

    def peak(rows: int) -> int:
        return weight_bytes(vlm) + batch_bytes(vlm, batch, max(1, rows), abilities(method).work.branches, new_tokens)

    while rows and peak(rows) > usable:
        rows //= 2
    return rows, peak(rows)


def seconds_of(vlm: "VLM", batch: Batch, rows: int, flops: float, moved: float) -> tuple[float, float]:
    """Return the seconds to read ``rows`` prompts, and for a further token of each.

    They are the slowest of ``flops`` operations a second, ``moved`` bytes a second, and the host's start of kernels.
    """
    decoder = vlm.module_map.module(vlm.model, "layers")
    started, layers = HOST * len(decoder), sum(weight.numel() for weight in decoder.parameters())
    tables = {id(vlm.model.get_input_embeddings().weight), id(vlm.model.get_submodule(vlm.module_map.lm_head).weight)}
    rest = sum(weight.numel() for weight in vlm.model.parameters() if id(weight) not in tables) - layers
    weights = sum(weight.numel() for weight in vlm.model.parameters()) * vlm.dtype.itemsize
    cache = rows * batch.columns * token_cache_bytes(vlm.model.config, str(vlm.dtype).removeprefix("torch."))
    reading = 2 * rows * (layers * batch.columns + rest * batch.patches) / flops
    step = max(2 * rows * layers / flops, (weights + cache) / moved, started)
    return max(reading, weights / moved, started), step


def verdict(arms: Sequence[Mapping[str, Any]], usable: int, longest: int) -> str:
    """Return whether all arms fit, and what to change if they do not."""
    least, worst = min(arm["rows that fit"] for arm in arms), max(arms, key=lambda arm: arm["peak GiB"])
    if all(arm["rows that fit"] == arm["of"] for arm in arms):
        return "All of it fits at the batches asked for."
    if least:
        return f"All of it fits in smaller batches. Set batch_tokens={least * longest} (or batch_size={least})."
    return (
        f"It does not fit: {worst['arm']} needs {worst['peak GiB']:.1f} GiB for a row, of {usable / GIB:.1f} usable. "
        "Change model.dtype=bfloat16, model.max_pixels=500000, model.device_map=auto (slow), or take a smaller model."
    )
