"""What operations on a pretended device would hold: memory now, and at most.

Memory is that of storages: a view costs nothing, and a storage is free when the last tensor on it is gone, whether a
name, a list or autograd held it. Sizes are rounded up to ``BLOCK`` as torch's allocator for GPUs does. What is not seen
is what a kernel takes for itself while it runs (cuBLAS and cuDNN workspaces) and what the allocator loses to gaps.
"""

import math
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor

BLOCK = 512  # bytes

aten = torch.ops.aten
# Their outputs are on the storage of their input, though their schemas do not say so.
_VIEWS_UNSAID = {aten._unsafe_view.default: 0}


@dataclass
class Account:
    """One device: bytes held now, and the most since the last ``restart``."""

    now: int = 0
    most: int = 0


class Storage:
    """The memory behind one tensor and its views; alive as long as one of them is."""

    __slots__ = ("account", "size")

    def __init__(self, account: Account, size: int) -> None:
        self.account, self.size = account, size
        account.now += size
        account.most = max(account.most, account.now)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Storage":
        return Storage(self.account, self.size)

    def __del__(self) -> None:
        self.account.now -= self.size


@dataclass
class Ledger:
    """All devices together. ``capacity`` (bytes a device) makes an allocation beyond it fail as on a GPU."""

    capacity: int | None = None
    accounts: dict[torch.device, Account] = field(default_factory=dict)

    def held(self, tensor: Tensor, device: torch.device) -> Storage:
        """New memory for ``tensor`` on ``device``.

        Raises:
            torch.OutOfMemoryError: the device is full.
        """
        account = self.accounts.setdefault(device, Account())
        size = storage_bytes(tensor)
        if self.capacity is not None and account.now + size > self.capacity:
            raise torch.OutOfMemoryError(
                f"{device} holds {account.now} bytes and has no room for {size} more of {self.capacity}"
            )
        return Storage(account, size)

    @property
    def most(self) -> int:
        """The most bytes held at once, of the device where that is largest."""
        return max((account.most for account in self.accounts.values()), default=0)

    @property
    def now(self) -> int:
        """The bytes held now, of the device where that is largest."""
        return max((account.now for account in self.accounts.values()), default=0)

    def restart(self) -> None:
        """Forgets earlier peaks."""
        for account in self.accounts.values():
            account.most = account.now


def storage_bytes(tensor: Tensor) -> int:
    """Bytes of a storage just large enough for the tensor, as the allocator deals them out."""
    if not tensor.numel():
        return 0
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return math.ceil(extent * tensor.element_size() / BLOCK) * BLOCK


@cache
def aliased_input(func: Any) -> int | None:
    """The position of the argument whose storage the outputs of ``func`` are on; None where they have their own."""
    if func in _VIEWS_UNSAID:
        return _VIEWS_UNSAID[func]
    for found in func._schema.returns:
        if found.alias_info is None or found.alias_info.is_write:
            continue
        for position, argument in enumerate(func._schema.arguments):
            info = argument.alias_info
            if info is not None and not info.is_write and info.before_set & found.alias_info.before_set:
                return position
    return None


def fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """``scaled_dot_product_attention`` by one kernel that never holds queries × keys, as GPUs and CPUs have.

    A mask of truth values becomes one of numbers first, as there. Grouped keys and values are repeated, which some
    kernels do without.
    """
    if enable_gqa and key.shape[1] != query.shape[1]:
        times = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(times, 1), value.repeat_interleave(times, 1)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(~attn_mask, -math.inf)
    made = aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale
    )
    found: Tensor = made[0]
    return found
