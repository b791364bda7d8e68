"""Checks that a checkpoint's weights fit in memory before they are read. Sizes are in bytes.

Only weights that are larger than the free memory are rejected. Activations and the key-value cache depend on batch and
prompt; running out of memory there is handled where it happens.
"""

import json
import math
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from interp.checkpoints.config import ModelConfig
from interp.errors import UserError

if TYPE_CHECKING:
    import torch

GIB = 2**30
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
FLOATS = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")  # safetensors types converted on loading
HEADER = 8  # bytes that hold the length of a safetensors file's header
LONGEST_HEADER = 100_000_000  # bytes; safetensors' own limit


def stored_numbers(folder: Path) -> Counter[str]:
    """The number of weights of each safetensors type in the folder's files, from their headers alone.

    Skips files that it cannot read: reading the weights will report what is wrong with them.
    """
    found: Counter[str] = Counter()
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as stream:
            length = int.from_bytes(stream.read(HEADER), "little")
            if length > LONGEST_HEADER:
                continue
            try:
                entries = json.loads(stream.read(length))
                found.update(_counted({k: v for k, v in entries.items() if k != "__metadata__"}))
            except (ValueError, TypeError, KeyError, AttributeError):
                continue
    return found


def _counted(entries: dict[str, Any]) -> Counter[str]:
    found: Counter[str] = Counter()
    for entry in entries.values():
        found[entry["dtype"]] += math.prod(entry["shape"])
    return found


def weight_bytes(numbers: dict[str, int], dtype: str) -> int:
    """Bytes needed once loaded as ``dtype``. Integers keep their type and are counted as one byte each."""
    return sum(count * (BYTES[dtype] if kind in FLOATS else 1) for kind, count in numbers.items())


def check_room(config: ModelConfig, numbers: dict[str, int] | None, dtype: str, device: "torch.device") -> None:
    """Checks that the weights fit in the free memory of ``device``.

    ``numbers`` counts the weights by type; if None (unknown), ``config.memory_gib`` is used.

    Raises:
        UserError: the weights alone are larger than the free memory.
    """
    sizes = {name: _needed(config, numbers, name) for name in BYTES}
    needed, free = sizes[dtype], free_memory(device)
    if needed is None or free is None or needed <= free:
        return
    ways = []
    half = sizes["bfloat16"]
    if dtype == "float32" and half is not None and half <= free:
        ways.append(f"set model.dtype=bfloat16 ({_gib(half)})")
    ways.append("choose a smaller model")
    if device.type == "cuda":
        ways.append("spread it over all cards and this machine's memory with model.device_map=auto")
    else:
        ways.append("use a machine with a GPU or more memory")
    raise UserError(
        f"the weights of {config.name} need {_gib(needed)} in {dtype} and {device} has {_gib(free)} free; "
        f"{', '.join(ways[:-1])} or {ways[-1]}"
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


def device_map(config: ModelConfig, found: Any, dtype: "torch.dtype") -> dict[str, Any] | None:
    """Module → device ("cpu" or a GPU index) by ``config.device_map``; None without one.

    Computed from ``found``, the checkpoint's configuration, before any weights are read.

    Raises:
        UserError: a malformed ``max_memory``, or a model that would spill to disk, where one token takes minutes.
    """
    if config.device_map is None:
        return None
    import torch
    from accelerate import infer_auto_device_map
    from accelerate.utils import get_balanced_memory, get_max_memory
    from transformers import AutoModelForImageTextToText

    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(found, dtype=dtype, trust_remote_code=config.trust_remote_code)
    model.tie_weights()
    whole = list(model._no_split_modules or ())
    bounds = _bounds(config)
    try:
        if config.device_map == "sequential":
            room = get_max_memory(bounds)
        else:
            low_zero = config.device_map == "balanced_low_0"
            room = get_balanced_memory(model, bounds, no_split_module_classes=whole, low_zero=low_zero, dtype=dtype)
        places = infer_auto_device_map(model, room, no_split_module_classes=whole, dtype=dtype)
    except ValueError as error:
        raise UserError(
            f"model.max_memory={config.max_memory} cannot be used ({error}); write it as {{'0': 20GiB, cpu: 60GiB}}"
        ) from error
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


def _bounds(config: ModelConfig) -> dict[int | str, int | str] | None:
    """``max_memory`` with GPUs as integers, as accelerate expects, completed with the free memory of other devices."""
    if config.max_memory is None:
        return None
    from accelerate.utils import get_max_memory

    given: dict[int | str, int | str] = {int(k) if k.isdigit() else k: v for k, v in config.max_memory.items()}
    return get_max_memory() | given


def input_device(model: Any) -> "torch.device":
    """The device for a model's inputs; with a device map, the device of its embeddings."""
    import torch

    if getattr(model, "_hf_hook", None) is None:  # accelerate's hook, which moves inputs and weights
        return model.device
    embeddings = model.get_input_embeddings()
    place = embeddings.weight.device
    return torch.device(embeddings._hf_hook.execution_device) if place.type == "meta" else place
