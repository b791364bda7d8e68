"""Tensors on a pretended device, and what operations on them give (``tests.two_devices.device`` has the devices).

``World.run`` is one operation of torch: it refuses what mixes devices, notes host waits, computes on what the tensors
hold, and enters memory in the ledger.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.two_devices.ledger import Ledger, Storage, aliased_input

NAME = "pretend"
TOKEN = 5
"""What ``argmax`` finds among numbers without a value."""
DRAWN = 2**20
"""Numbers without a value that are drawn where they are copied to the host at once; of more, these are repeated."""
REPEATED = 2**26
"""More than these are 0, which takes no time and no memory."""

aten = torch.ops.aten
# Ops whose index tensors may be on the CPU, with the position of the list of indices.
_INDEXED = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
_SHAPED_BY_VALUES = {
    aten.nonzero.default,
    aten.masked_select.default,
    aten._unique2.default,
    aten.unique_dim.default,
    aten.unique_consecutive.default,
    aten.repeat_interleave.Tensor,
    aten.bincount.default,
}


def tree_leaves(value: Any) -> list[Any]:
    """What lists, tuples and dicts hold. torch's own function does the same for any type, and takes half of a test."""
    if type(value) in (list, tuple):
        return [leaf for one in value for leaf in tree_leaves(one)]
    return [leaf for one in value.values() for leaf in tree_leaves(one)] if type(value) is dict else [value]


def tree_map(function: Callable[[Any], Any], value: Any) -> Any:
    """``function`` of every leaf, in the same lists, tuples and dicts."""
    if type(value) in (list, tuple):
        return type(value)([tree_map(function, one) for one in value])
    if type(value) is dict:
        return {name: tree_map(function, one) for name, one in value.items()}
    return function(value)


class DeviceMismatch(RuntimeError):
    """An operation on tensors of several devices."""


@dataclass(frozen=True)
class Wait:
    """One host wait: the operation, and the innermost place outside torch ("path/to/file.py:12 function")."""

    operation: str
    where: str


class Pretended(Tensor):
    """A tensor on a pretended device; ``held`` is the tensor on the CPU, or a ``meta`` one where it has no value."""

    held: Tensor
    memory: Storage
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, held: Tensor, device: torch.device, storage: Storage | None = None) -> "Pretended":
        made = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            layout=held.layout,
            device=device,
        )
        made.held = held
        made.memory = here().memory(held, made.device) if storage is None else storage
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        shown = "" if self.held.is_meta else f", {self.held.tolist()}" if self.held.numel() < 20 else ", ..."
        return f"Pretended({tuple(self.shape)}, {self.dtype}, {self.device}{shown})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return here().run(func, args, kwargs or {})


@dataclass
class World:
    """What ``world`` yields. ``waits`` are those since the beginning, or since the list was last cleared."""

    values: bool
    float64: bool = True
    ledger: Ledger = field(default_factory=Ledger)
    waits: list[Wait] = field(default_factory=list)
    _seen: dict[Any, Any] = field(default_factory=dict)
    _drawn: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0))
    _postponed: list[RuntimeError] | None = None  # what has gone wrong in the backward pass that is running, if one is

    def run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """One operation of torch."""
        flat = tree_leaves((args, kwargs))
        ours = [one for one in flat if isinstance(one, Pretended)]
        asked = kwargs.get("device")
        asked = None if asked is None else torch.device(asked)
        if not ours and (asked is None or asked.type != NAME):
            return func(*args, **kwargs)
        if func in (aten._to_copy.default, aten.copy_.default):
            return self._copied(func, args, kwargs, asked)
        if func is aten._local_scalar_dense.default:
            self._wait(func)
            return (self._host(args[0].held)).item()
        device = self._device(func, args, ours, flat) if ours else asked
        if func is aten.equal.default:
            self._wait(func)
            held = [one.held for one in ours]
            return any(one.is_meta for one in held) or torch.equal(*held)
        if func in _SHAPED_BY_VALUES:
            self._wait(func)
        if func in _INDEXED:
            args = self._indices(func, args)
        found = self._computed(func, args, kwargs)
        place = asked or device
        assert place is not None
        if func._schema.name.endswith("_") or func in _MUTATING:
            return args[0]
        if isinstance(out := kwargs.get("out"), Pretended):
            return out
        source = aliased_input(func)
        if source is not None and isinstance(viewed := args[source], Pretended):
            return tree_map(lambda one: self._wrapped(one, place, viewed.memory), found)
        return tree_map(lambda one: self._wrapped(one, place), found)

    def backward(self, func: Any, args: Any, kwargs: Any) -> Any:
        """``func``, which runs torch's engine. An exception within it would abort the process, so the first one waits
        for its end."""
        self._postponed, capacity = [], self.ledger.capacity
        try:
            found = func(*args, **kwargs)
            if self._postponed:
                raise self._postponed[0]
            return found
        finally:
            self._postponed, self.ledger.capacity = None, capacity

    def memory(self, held: Tensor, device: torch.device) -> Storage:
        """New memory for ``held`` on ``device``.

        Raises:
            torch.OutOfMemoryError: the device is full.
        """
        try:
            return self.ledger.held(held, device)
        except torch.OutOfMemoryError as error:
            self._refuse(error)
            self.ledger.capacity = None
            return self.ledger.held(held, device)

    def _device(self, func: Any, args: Sequence[Any], ours: Sequence[Pretended], flat: Sequence[Any]) -> torch.device:
        try:
            return _common(func, args, ours, flat)
        except DeviceMismatch as error:
            self._refuse(error)
            return ours[0].device

    def _refuse(self, error: RuntimeError) -> None:
        if self._postponed is None:
            raise error
        self._postponed.append(error)

    def _computed(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The operation on what the tensors hold."""
        args, kwargs = tree_map(_held, (args, kwargs))
        tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        unknown = any(one.is_meta for one in tensors)
        if unknown and func in _SHAPED_BY_VALUES:
            args, kwargs = tree_map(_zeros, (args, kwargs))
            unknown = False
        if unknown and func._schema.name.endswith("_") and not args[0].is_meta:
            return args[0]  # whole numbers do not take on what has no value
        if "device" in kwargs:
            kwargs["device"] = "meta" if unknown or not self._known(func, args, kwargs) else "cpu"
            kwargs.pop("pin_memory", None)
        return self._shaped(func, args, kwargs) if unknown else func(*args, **kwargs)

    def _shaped(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What an operation on tensors without values gives. Layers repeat each other, so that most are known."""
        key = _signature(func, args, kwargs)
        if key not in self._seen:
            args, kwargs = tree_map(lambda one: one.to("meta") if isinstance(one, Tensor) else one, (args, kwargs))
            self._seen[key] = func(*args, **kwargs)
        found = self._seen[key]
        index = TOKEN if func is aten.argmax.default else 0
        return tree_map(lambda one: self._decided(one, index), found)

    def _known(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> bool:
        """Whether a tensor that is made anew has values."""
        dtype = kwargs.get("dtype")
        if self.values or (dtype is not None and not dtype.is_floating_point):
            return True
        if dtype is not None:
            return False
        numbers = tree_leaves(args)
        tensors = [one for one in numbers if isinstance(one, Tensor)]
        if tensors:
            return not tensors[0].is_floating_point()
        return func._schema.name in ("aten::arange", "aten::full") and not any(isinstance(n, float) for n in numbers)

    def _decided(self, found: Any, index: int) -> Any:
        if isinstance(found, Tensor) and not (found.is_floating_point() or found.is_complex()):
            return torch.full(found.shape, bool(0) if found.dtype == torch.bool else index, dtype=found.dtype)
        return found

    def _wrapped(self, found: Any, device: torch.device, storage: Storage | None = None) -> Any:
        if not isinstance(found, Tensor) or isinstance(found, Pretended):
            return found
        self._check_type(found.dtype)
        return Pretended(self.forgotten(found), device, storage)

    def _check_type(self, dtype: torch.dtype) -> None:
        if dtype in (torch.float64, torch.complex128) and not self.float64:
            raise TypeError("this device has no float64, nor has Apple's MPS; use float32, or move to the CPU first")

    def forgotten(self, held: Tensor) -> Tensor:
        """``held`` without its values, where this world has none."""
        if held.is_floating_point() and not self.values and not held.is_meta:
            return torch.empty_strided(held.shape, held.stride(), dtype=held.dtype, device="meta")
        return held

    def _host(self, held: Tensor) -> Tensor:
        """What a copy to the host holds."""
        if not held.is_meta:
            return held
        count = held.numel()
        if count > REPEATED:
            return torch.zeros(held.shape, dtype=held.dtype)
        if count <= DRAWN:
            return torch.randn(held.shape, generator=self._drawn).to(held.dtype)
        drawn = torch.randn(DRAWN - 1, generator=self._drawn).to(held.dtype)  # of odd length, unlike rows of states
        return drawn.repeat(-(-count // len(drawn)))[:count].reshape(held.shape)

    def _copied(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], asked: torch.device | None) -> Any:
        """``_to_copy`` and ``copy_``, the two that may go from one device to another."""
        if func is aten.copy_.default:
            target, source = args[0], args[1]
            blocking = not (kwargs.get("non_blocking") or (len(args) > 2 and args[2]))
            if blocking and (target.device.type == NAME) != (source.device.type == NAME):
                self._wait(func)
            value = source.held if isinstance(source, Pretended) else source
            if not isinstance(target, Pretended):
                target.copy_(self._host(value))
            elif not target.held.is_meta and not value.is_meta:
                target.held.copy_(value)
            return target
        source = args[0]
        device = source.device if asked is None else asked
        if (device.type == NAME) != (source.device.type == NAME) and not kwargs.get("non_blocking"):
            self._wait(func)
        options = {key: kwargs[key] for key in ("dtype", "memory_format") if kwargs.get(key) is not None}
        held = source.held if isinstance(source, Pretended) else source
        if device.type != NAME:
            return func(self._host(held), **options, device=device)
        dtype = options.get("dtype", held.dtype)
        self._check_type(dtype)
        if held.is_meta and not dtype.is_floating_point:
            return Pretended(torch.zeros(held.shape, dtype=dtype), device)
        if not held.is_meta and dtype.is_floating_point and not self.values:
            held = held.to("meta")
        return Pretended(func(held, **options), device)

    def _indices(self, func: Any, args: Sequence[Any]) -> list[Any]:
        """Indices as whole numbers, for a mask says only by its values what shape comes of it."""
        own: torch.device = args[0].device
        found: list[Any] = []
        for index in args[1]:
            if index is None:
                found.append(None)
                continue
            if index.device != own or index.dtype in (torch.bool, torch.uint8):
                self._wait(func)
            held = index.held if isinstance(index, Pretended) else index
            found += list(held.nonzero(as_tuple=True)) if held.dtype in (torch.bool, torch.uint8) else [held]
        return [args[0], found, *args[2:]]

    def _wait(self, func: Any) -> None:
        self.waits.append(Wait(str(func._schema.name), _where()))


_MUTATING = {aten._index_put_impl_.default}


def _signature(func: Any, args: Any, kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """All that the shape of an operation's outcome depends on."""
    leaves = (
        (one.shape, one.stride(), one.dtype) if isinstance(one, Tensor) else (type(one), one)
        for one in tree_leaves((args, kwargs))
    )
    return func, *kwargs, *leaves


def _held(one: Any) -> Any:
    return one.held if isinstance(one, Pretended) else one


def _zeros(one: Any) -> Any:
    return torch.zeros_like(one, device="cpu") if isinstance(one, Tensor) and one.is_meta else one


def _common(func: Any, args: Sequence[Any], ours: Sequence[Pretended], flat: Sequence[Any]) -> torch.device:
    """The device of an operation.

    Raises:
        DeviceMismatch: its tensors are on several, as a GPU would refuse them.
    """
    exempt: set[int] = set()
    if func in _INDEXED:
        exempt = {id(index) for index in args[1] if index is not None and index.device.type == "cpu"}
        if args[0].device.type != NAME and any(i is not None and i.device.type == NAME for i in args[1]):
            raise DeviceMismatch(f"{func}: indices on {NAME} for a tensor on {args[0].device}")
    places: dict[torch.device, Tensor] = {}
    for one in flat:
        if isinstance(one, Tensor) and id(one) not in exempt and not (one.device.type == "cpu" and one.dim() == 0):
            places.setdefault(one.device, one)
    if len(places) > 1:
        named = ", ".join(f"{tuple(one.shape)} on {device}" for device, one in places.items())
        raise DeviceMismatch(f"{func._schema.name}: tensors on several devices ({named})")
    return ours[0].device


_OWN = {__file__, str(Path(__file__).with_name("device.py"))}


def _where() -> str:
    frame = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if path not in _OWN and "/torch/" not in path and not path.startswith("<"):
            return f"{path}:{frame.f_lineno} {frame.f_code.co_name}"
        frame = frame.f_back  # type: ignore[assignment]
    return "?"


_WORLD: World | None = None


def here() -> World:
    """The world that is open."""
    assert _WORLD is not None
    return _WORLD


@contextmanager
def opened(world: World) -> Iterator[World]:
    """While open, operations on pretended tensors are those of ``world``."""
    global _WORLD
    _WORLD = world
    try:
        yield world
    finally:
        _WORLD = None
