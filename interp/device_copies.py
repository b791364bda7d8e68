"""Moves tensors between host and device with as few waits as can be.

A copy from the device makes the host wait until the device has caught up. So everything that a step needs is fetched at
once. A copy to the device need not wait.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor made on the host, on ``device``, without waiting."""
    return tensor.to(device, non_blocking=True)


def to_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the tensors on the CPU, with one wait for each GPU. They may be of several types and devices."""
    copies = [one.to("cpu", non_blocking=one.is_cuda) for one in tensors]
    for device in {one.device for one in tensors if one.is_cuda}:
        torch.cuda.current_stream(device).synchronize()
    # The copies from a GPU are in page-locked memory, which torch uses again.
    return [copy.clone() if one.is_cuda else copy for one, copy in zip(tensors, copies, strict=True)]


class Copies:
    """A tensor made on the host, and its copy for every device and type that it was asked for."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor
        self._made: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    def like(self, other: Tensor) -> Tensor:
        """Return the copy on the device and in the type of ``other``."""
        key = (other.device, other.dtype)
        if key not in self._made:
            self._made[key] = self._tensor.to(*key, non_blocking=True)
        return self._made[key]
