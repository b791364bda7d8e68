"""Moves tensors between host and device with as few waits as can be.

A copy from the device makes the host wait until the device has caught up. So everything that a step needs is fetched at
once. A copy to the device need not wait.
"""

import time
from collections.abc import Sequence

import torch
from torch import Tensor

SMALL = 2**25  # bytes below which a plain copy is about as fast
PART = 2**24  # bytes of page-locked memory that a copy takes twice


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor made on the host, on ``device``, without waiting."""
    return tensor.to(device, non_blocking=True)


def to_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The tensors on the CPU, in one transfer and so with one wait; they may be of several types and devices."""
    if len(tensors) < 2 or all(one.device.type == "cpu" for one in tensors):
        return [_fetched(one) for one in tensors]
    order = sorted(range(len(tensors)), key=lambda i: -tensors[i].element_size())  # each part stays aligned
    parts = [tensors[i].to(tensors[0].device).contiguous().reshape(-1) for i in order]
    if len({part.dtype for part in parts}) > 1:
        parts = [part.view(torch.uint8) for part in parts]
    packed = _fetched(torch.cat(parts)).split([len(part) for part in parts])
    copies = {i: part.view(tensors[i].dtype).reshape(tensors[i].shape) for i, part in zip(order, packed, strict=True)}
    return [copies[i] for i in range(len(tensors))]


def synchronised_time() -> float:
    """Return the seconds of a clock, once a GPU has done what it was given."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter()


def _fetched(tensor: Tensor) -> Tensor:
    """The tensor on the CPU; from a GPU by way of page-locked memory, which is several times as fast."""
    if tensor.device.type != "cuda" or tensor.nbytes < SMALL:
        return tensor.cpu()
    flat = tensor.contiguous().view(-1)
    copy = torch.empty(flat.shape, dtype=flat.dtype)
    parts = list(zip(flat.split(PART // flat.itemsize), copy.split(PART // flat.itemsize), strict=True))
    stages = [torch.empty(len(parts[0][0]), dtype=flat.dtype, pin_memory=True) for _ in parts[:2]]
    arrived = [torch.cuda.Event() for _ in stages]
    for i in range(len(parts) + 1):  # a part is on its way while the one before it is copied on
        if i < len(parts):
            stages[i % 2][: len(parts[i][0])].copy_(parts[i][0], non_blocking=True)
            arrived[i % 2].record(torch.cuda.current_stream(tensor.device))
        if i:
            arrived[(i - 1) % 2].synchronize()
            parts[i - 1][1].copy_(stages[(i - 1) % 2][: len(parts[i - 1][1])])
    return copy.view(tensor.shape)


class Copies:
    """A tensor made on the host, and its copy for every device and type that it was asked for."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor
        self._made: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    def like(self, other: Tensor) -> Tensor:
        """The copy on the device and in the type of ``other``."""
        key = (other.device, other.dtype)
        if key not in self._made:
            self._made[key] = self._tensor.to(*key, non_blocking=True)
        return self._made[key]
