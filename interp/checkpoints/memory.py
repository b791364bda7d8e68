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
    """Return the number of weights of each safetensors type in the folder's files, only from their headers.

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


def row_bytes(configuration: Any, dtype: str, tokens: int = TOKENS) -> int:
    """Return about what one prompt of ``tokens`` tokens takes, by the checkpoint's configuration.

    Its keys and values in every layer, the widest layer's states and products, and the logits of one token in float32.
    An estimate from below: a tool may need more.
    """
    text = configuration.get_text_config()
    width = int(text.hidden_size)
    states = 4 * width + 3 * int(getattr(text, "intermediate_size", 4 * width))
    return tokens * (token_cache_bytes(configuration, dtype) + states * BYTES[dtype]) + 4 * int(text.vocab_size)


def token_cache_bytes(configuration: Any, dtype: str) -> int:
    """Return what one token's keys and values take in all layers, by the checkpoint's configuration."""
    text = configuration.get_text_config()
    heads = int(text.num_attention_heads)
    groups = int(getattr(text, "num_key_value_heads", None) or heads)
    head = int(getattr(text, "head_dim", None) or int(text.hidden_size) // heads)
    return 2 * int(text.num_hidden_layers) * groups * head * BYTES[dtype]


def check_room(
    config: ModelConfig, numbers: dict[str, int] | None, dtype: str, device: "torch.device", row: int = 0
) -> None:
    """Check that the weights and ``row`` more bytes for one prompt fit in the free memory of ``device``.

    ``numbers`` counts the weights by type; integers are one byte each. If None (unknown), ``config.memory_gib`` is
    used. With ``config.force`` nothing is checked.

    Raises:
        UserError: they are larger than the free memory.
    """
    needed = int((config.memory_gib or 0) * GIB * BYTES[dtype] / BYTES["bfloat16"])
    if numbers:
        needed = sum(count * (BYTES[dtype] if kind in FLOATS else 1) for kind, count in numbers.items())
    free = free_memory(device)
    if config.force or not needed or free is None or needed + row <= free:
        return
    raise UserError(
        f"the weights of {config.name} need {needed / GIB:.1f} GiB in {dtype}, one prompt of {TOKENS:,} tokens about "
        f"{row / GIB:.1f} GiB more, and {device} has {free / GIB:.1f} GiB free; set model.dtype=bfloat16, choose a "
        "smaller model, or spread it over all cards and this machine's memory with model.device_map=auto (force=true "
        "goes on all the same)"
    )


def free_memory(device: "torch.device") -> int | None:
    """Return the free bytes of a GPU, or of this machine within its container's limit; None if they are not known."""
    if device.type == "cuda":
        import torch

        return int(torch.cuda.mem_get_info(device)[0])
    if device.type != "cpu":
        return None
    import psutil

    available = int(psutil.virtual_memory().available)
    return min([available, *_container()])


def _container(folder: Path = Path("/sys/fs/cgroup")) -> list[int]:
    """Return the bytes left within the container's limit (cgroup v2); nothing without a limit."""
    try:
        limit = int((folder / "memory.max").read_text())
        used = int((folder / "memory.current").read_text())
        pages = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no container, or "max"
        return []
    return [max(0, limit - used + int(pages.get("inactive_file", 0)))]  # such pages are reclaimable
