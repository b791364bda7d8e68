"""What a checkpoint needs, and whether it fits, before its weights are read. Sizes are in bytes.

Rejected is only what cannot work: weights and one prompt larger than the free memory. The memory of a batch depends on
what is done with it (``task=plan`` says how much). If it runs out there, batches are halved.
"""

import math
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from interp.checkpoints.config import ModelConfig
from interp.errors import UserError

if TYPE_CHECKING:
    import torch

GIB = 2**30
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
FLOATS = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")  # safetensors types converted on loading
TOKENS = 1024  # of the prompt that ``row_bytes`` is for


def stored_numbers(folder: Path) -> Counter[str]:
    """The number of weights of each safetensors type in the folder's files, only from their headers.

    Skips files that it cannot read: reading the weights will report what is wrong with them.
    """
    from safetensors import SafetensorError, safe_open

    numbers: Counter[str] = Counter()
    for path in sorted(folder.glob("*.safetensors")):
        with suppress(OSError, SafetensorError), safe_open(path, framework="np") as file:
            for name in file.keys():  # noqa: SIM118  not a mapping
                part = file.get_slice(name)
                numbers[part.get_dtype()] += math.prod(part.get_shape())
    return numbers


def weight_bytes(numbers: dict[str, int], dtype: str) -> int:
    """Bytes needed once loaded as ``dtype``. Integers keep their type and are counted as one byte each."""
    return sum(count * (BYTES[dtype] if kind in FLOATS else 1) for kind, count in numbers.items())


def row_bytes(configuration: Any, dtype: str, tokens: int = TOKENS) -> int:
    """About what one prompt of ``tokens`` tokens takes, by the checkpoint's configuration.

    Its keys and values in every layer, the widest layer's states and products, and the logits of one token in float32.
    An estimate from below: a tool may need more.
    """
    text = configuration.get_text_config()
    width = int(text.hidden_size)
    states = 4 * width + 3 * int(getattr(text, "intermediate_size", 4 * width))
    return tokens * (token_cache_bytes(configuration, dtype) + states * BYTES[dtype]) + 4 * int(text.vocab_size)


def token_cache_bytes(configuration: Any, dtype: str) -> int:
    """What one token's keys and values take in all layers, by the checkpoint's configuration."""
    text = configuration.get_text_config()
    heads = int(text.num_attention_heads)
    groups = int(getattr(text, "num_key_value_heads", None) or heads)
    head = int(getattr(text, "head_dim", None) or int(text.hidden_size) // heads)
    return 2 * int(text.num_hidden_layers) * groups * head * BYTES[dtype]


def estimate(config: ModelConfig, numbers: dict[str, int] | None, dtype: str, device: Any, row: int) -> str | None:
    """Weights and one prompt against the free memory of ``device``, in a sentence; None if the size is not known."""
    needed = _needed(config, numbers, dtype)
    if needed is None:
        return None
    free = None if device is None else free_memory(device)
    there = "spread over several devices" if device is None else f"on {device}"
    left = f"{_size(free)} free {there}" if free is not None else there
    return (
        f"{config.name}: {_size(needed)} of weights in {dtype} and about {_size(row)} for one prompt of {TOKENS:,} "
        f"tokens; {left}"
    )


def check_room(
    config: ModelConfig, numbers: dict[str, int] | None, dtype: str, device: "torch.device", row: int = 0
) -> None:
    """Checks that the weights and ``row`` more bytes for one prompt fit in the free memory of ``device``.

    ``numbers`` counts the weights by type; if None (unknown), ``config.memory_gib`` is used. With ``config.force``
    nothing is checked.

    Raises:
        UserError: they are larger than the free memory.
    """
    sizes = {name: _needed(config, numbers, name) for name in BYTES}
    needed, free = sizes[dtype], free_memory(device)
    if config.force or needed is None or free is None or needed + row <= free:
        return
    ways = []
    half = sizes["bfloat16"]
    if dtype == "float32" and half is not None and half + row // 2 <= free:
        ways.append(f"set model.dtype=bfloat16 ({_gib(half)})")
    ways.append("choose a smaller model")
    if device.type == "cuda":
        ways.append("spread it over all cards and this machine's memory with model.device_map=auto")
    else:
        ways.append("use a machine with a GPU or more memory")
    prompt = "" if needed > free else f", one prompt of {TOKENS:,} tokens about {_gib(row)} more,"
    raise UserError(
        f"the weights of {config.name} need {_gib(needed)} in {dtype}{prompt} and {device} has {_gib(free)} free; "
        f"{', '.join(ways[:-1])} or {ways[-1]} (force=true goes on all the same)"
    )


def _needed(config: ModelConfig, numbers: dict[str, int] | None, dtype: str) -> int | None:
    if numbers:
        return weight_bytes(numbers, dtype)
    return None if config.memory_gib is None else int(config.memory_gib * GIB * BYTES[dtype] / BYTES["bfloat16"])


def free_memory(device: "torch.device") -> int | None:
    """Free bytes on ``device``: of the GPU, or of this machine within its container's limit. None if unknown."""
    if device.type == "cuda":
        import torch

        return int(torch.cuda.mem_get_info(device)[0])
    if device.type != "cpu":
        return None
    import psutil

    available = int(psutil.virtual_memory().available)
    return min([available, *_container()])


def _container(folder: Path = Path("/sys/fs/cgroup")) -> list[int]:
    """Bytes left within the container's limit (cgroup v2); empty without a limit."""
    try:
        limit = int((folder / "memory.max").read_text())
        used = int((folder / "memory.current").read_text())
        pages = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no container, or "max"
        return []
    return [max(0, limit - used + int(pages.get("inactive_file", 0)))]  # such pages are reclaimable


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"


def _size(size: int) -> str:
    return _gib(size) if size >= GIB / 10 else f"{size / 2**20:.0f} MiB"


def device_map(config: ModelConfig, configuration: Any, dtype: "torch.dtype") -> dict[str, Any] | None:
    """Module → device ("cpu" or a GPU index) by ``config.device_map``; None without one.

    Computed from ``found``, the checkpoint's configuration, before any weights are read.

    Raises:
        UserError: the model would spill to disk, where one token takes minutes.
    """
    if config.device_map is None:
        return None
    import torch
    from accelerate import infer_auto_device_map
    from accelerate.utils import get_balanced_memory, get_max_memory
    from transformers import AutoModelForImageTextToText

    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(
            configuration, dtype=dtype, trust_remote_code=config.trust_remote_code
        )
    model.tie_weights()
    undivided = {"no_split_module_classes": list(model._no_split_modules or ()), "dtype": dtype}
    if config.device_map == "sequential":
        room = get_max_memory()
    else:
        room = get_balanced_memory(model, low_zero=config.device_map == "balanced_low_0", **undivided)
    places = infer_auto_device_map(model, room, **undivided)
    if "disk" in places.values():
        needed = sum(weight.numel() for weight in model.parameters()) * dtype.itemsize
        there = ", ".join(f"{place}: {_gib(int(size))}" for place, size in room.items())
        raise UserError(
            f"the weights of {config.name} need {_gib(needed)} and do not fit here ({there}); from the disk a token "
            "would take minutes; choose a smaller model, model.dtype=bfloat16, or more cards"
        )
    return dict(places)


def offloaded(places: dict[str, Any]) -> str | None:
    """A warning if the map keeps part of the model in this machine's memory; else None."""
    apart = sum(place == "cpu" for place in places.values())
    if not apart or apart == len(places):
        return None
    return (
        f"{apart} of {len(places)} parts of the model stay in this machine's memory and are copied to the GPU whenever "
        "they are used, which is slow; use more or larger cards"
    )
