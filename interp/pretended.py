"""Devices that compute nothing: the real code, run on shapes, on as many of them as are asked for.

``pretend:0``, ``pretend:1``, ... are devices for ``model.to`` and ``tensor.to`` in a process that has called ``world``.
What mixes two of them, or one of them with the CPU, raises ``DeviceMismatch`` where a GPU would. Whole numbers and
truth values are computed for real, so tokens, masks, positions and decisions are what they are. Floating-point numbers
have a shape and a type but no value, so that a model of seven billion parameters takes no memory and seconds:

- copied to the host they are drawn from a normal distribution, by a fixed seed (very many at once are 0);
- a whole number or truth value that depends on one is 0 or False, and an ``argmax`` is ``TOKEN``.

With ``values=True`` they have values too, and answers are those of the CPU: for small models.

*Host waits* are counted (``waits``): whatever makes the host wait until a GPU has caught up. These are reading a number
(``.item()``, ``.tolist()``, ``bool(tensor)``), a copy from or to the host that is not ``non_blocking``, indices or new
tensors made on the host for the device, and shapes that depend on values (``nonzero``, a mask as an index).

*Memory and work* are counted by device (``ledger``: ``interp.device_ledger``): what a run would hold at most, and what
it would compute. A device of a given ``capacity`` runs out of memory where a GPU of that size would. Attention is taken
apart into its products, which hold queries × keys; with ``fused`` it is one kernel, which does not.

It rests on a private hook of torch that is for the whole process: call it in a process of its own.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from interp.device_ledger import Ledger, Storage, aliased_input, fused_attention

NAME = "pretend"
TOKEN = 5
"""What ``argmax`` finds among numbers without a value."""
DRAWN = 2**20
"""Numbers without a value that are copied to the host at once and drawn; more than these are 0, which takes no time."""

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


class DeviceMismatch(RuntimeError):
    """An operation on tensors of several devices."""


class Unsupported(RuntimeError):
    """This torch cannot pretend a device."""


@dataclass(frozen=True)
class Wait:
    """One host wait: the operation, and the innermost place outside torch ("path/to/file.py:12 function")."""

    operation: str
    where: str


class Pretended(Tensor):
    """A tensor on a pretended device; ``held`` is the tensor on the CPU, or a ``meta`` one where it has no value."""

    held: Tensor
    memory: Storage

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
        assert _WORLD is not None
        made.held = held
        made.memory = _WORLD.memory(held, made.device) if storage is None else storage
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        shown = "" if self.held.is_meta else f", {self.held.tolist()}" if self.held.numel() < 20 else ", ..."
        return f"Pretended({tuple(self.shape)}, {self.dtype}, {self.device}{shown})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        assert _WORLD is not None
        return _WORLD.run(func, args, kwargs or {})


@dataclass
class World:
    """What ``world`` yields. ``waits`` are those since the beginning, or since the list was last cleared."""

    values: bool
    fused: bool = False
    ledger: Ledger = field(default_factory=Ledger)
    waits: list[Wait] = field(default_factory=list)
    _seen: dict[Any, Any] = field(default_factory=dict)
    _drawn: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0))
    _postponed: list[RuntimeError] | None = None  # what has gone wrong in the backward pass that is running, if one is

    def run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """One operation of torch."""
        flat = _leaves((args, kwargs))
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
            self.ledger.count(func, args, kwargs, ours, ours[:1])
            return args[0]
        if isinstance(out := kwargs.get("out"), Pretended):
            self.ledger.count(func, args, kwargs, ours, [out])
            return out
        source = aliased_input(func)
        if source is not None and isinstance(viewed := args[source], Pretended):
            return _mapped(lambda one: self._wrapped(one, place, viewed.memory), found)
        made = _mapped(lambda one: self._wrapped(one, place), found)
        self.ledger.count(func, args, kwargs, ours, [one for one in _leaves([made]) if isinstance(one, Pretended)])
        return made

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
            if self._postponed is None:
                raise
            self._postponed.append(error)
            self.ledger.capacity = None
            return self.ledger.held(held, device)

    def _device(self, func: Any, args: Sequence[Any], ours: Sequence[Pretended], flat: Sequence[Any]) -> torch.device:
        try:
            return _common(func, args, ours, flat)
        except DeviceMismatch as error:
            if self._postponed is None:
                raise
            self._postponed.append(error)
            return ours[0].device

    def _computed(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The operation on what the tensors hold."""
        args, kwargs = _mapped(_held, (args, kwargs))
        tensors = [one for one in _leaves((args, kwargs)) if isinstance(one, Tensor)]
        unknown = any(one.is_meta for one in tensors)
        if unknown and func in _SHAPED_BY_VALUES:
            args, kwargs = _mapped(_zeros, (args, kwargs))
            unknown = False
        if unknown and func._schema.name.endswith("_") and not args[0].is_meta:
            return args[0]  # whole numbers do not take on what has no value
        if "device" in kwargs:
            kwargs["device"] = "meta" if unknown or not self._known(func, args, kwargs) else "cpu"
            kwargs.pop("pin_memory", None)
        return self._shaped(func, args, kwargs) if unknown else func(*args, **kwargs)

    def _shaped(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What an operation on tensors without values gives. Layers repeat each other, so that most are known."""
        try:
            key = (func, *_signature((args, kwargs)))
            if key in self._seen:
                found = self._seen[key]
            else:
                args, kwargs = _mapped(lambda one: one.to("meta") if isinstance(one, Tensor) else one, (args, kwargs))
                found = self._seen[key] = func(*args, **kwargs)
        except TypeError as error:
            if "unhashable" not in str(error):
                raise
            found = func(*args, **kwargs)
        index = TOKEN if func is aten.argmax.default else 0
        return _mapped(lambda one: self._decided(one, index), found)

    def _known(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> bool:
        """Whether a tensor that is made anew has values."""
        dtype = kwargs.get("dtype")
        if self.values or (dtype is not None and not dtype.is_floating_point):
            return True
        if dtype is not None:
            return False
        numbers = _leaves(args)
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
        return Pretended(self._forgotten(found), device, storage)

    def _forgotten(self, held: Tensor) -> Tensor:
        if held.is_floating_point() and not self.values and not held.is_meta:
            return torch.empty_strided(held.shape, held.stride(), dtype=held.dtype, device="meta")
        return held

    def _host(self, held: Tensor) -> Tensor:
        """What a copy to the host holds."""
        if not held.is_meta:
            return held
        if held.numel() > DRAWN:
            return torch.zeros(held.shape, dtype=held.dtype)
        return torch.randn(held.shape, generator=self._drawn).to(held.dtype)

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
        if held.is_meta and not dtype.is_floating_point:
            return Pretended(torch.zeros(held.shape, dtype=dtype), device)
        if not held.is_meta and dtype.is_floating_point and not self.values:
            held = held.to("meta")
        made = Pretended(func(held, **options), device)
        self.ledger.count(func, args, kwargs, [source], [made])
        return made

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
_WORLD: World | None = None


def _leaves(tree: Any) -> list[Any]:
    """What lists, tuples and dictionaries hold. As torch's ``pytree``, and faster."""
    found: list[Any] = []
    waiting = [tree]
    while waiting:
        for one in waiting.pop():
            if isinstance(one, list | tuple):
                waiting.append(one)
            elif isinstance(one, dict):
                waiting.append(one.values())
            else:
                found.append(one)
    return found


def _mapped(change: Callable[[Any], Any], tree: Any) -> Any:
    if isinstance(tree, list | tuple):
        return (
            [_mapped(change, one) for one in tree]
            if isinstance(tree, list)
            else tuple(_mapped(change, one) for one in tree)
        )
    if isinstance(tree, dict):
        return {name: _mapped(change, one) for name, one in tree.items()}
    return change(tree)


def _signature(tree: Any) -> Iterator[Any]:
    """All that the shape of an operation's outcome depends on."""
    if isinstance(tree, list | tuple):
        yield len(tree)
        for one in tree:
            yield from _signature(one)
    elif isinstance(tree, dict):
        for name, one in tree.items():
            yield name
            yield from _signature(one)
    elif isinstance(tree, Tensor):
        yield (tree.shape, tree.stride(), tree.dtype)
    else:
        yield (type(tree), tree)


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


def _where() -> str:
    frame = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if path != __file__ and "/torch/" not in path and not path.startswith("<"):
            return f"{path}:{frame.f_lineno} {frame.f_code.co_name}"
        frame = frame.f_back  # type: ignore[assignment]
    return "?"


class _Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert _WORLD is not None
        return _WORLD.run(func, args, kwargs or {})


_NEW: tuple[Callable[..., Any], ...] = (torch.tensor, torch.as_tensor)
_BACKWARD = {Tensor.backward, torch.autograd.backward, torch.autograd.grad}
_HANDLED = {Tensor.new_tensor, Tensor.tolist, Tensor.data_ptr, Tensor.__getitem__, Tensor.__setitem__}


class _Functions(TorchFunctionMode):
    """What torch does in C++ without asking a dispatch mode: new tensors, and lists as indices."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in _NEW and kwargs.get("device") is not None and torch.device(kwargs["device"]).type == NAME:
            device, data = kwargs.pop("device"), args[0]
            if isinstance(data, Pretended):
                return data.detach().clone().to(device, kwargs.get("dtype"))
            return func(_read(data), *args[1:], **kwargs).to(device)
        if func is torch.nn.functional.scaled_dot_product_attention and _WORLD is not None and _WORLD.fused:
            return (fused_attention if isinstance(args[0], Pretended) else func)(*args, **kwargs)
        if func in _BACKWARD and _WORLD is not None:
            return _WORLD.backward(func, args, kwargs)
        if func not in _HANDLED:
            return func(*args, **kwargs)
        if func is Tensor.new_tensor and isinstance(args[0], Pretended):
            kwargs.setdefault("dtype", args[0].dtype)
            return torch.tensor(*args[1:], **kwargs).to(kwargs.pop("device", args[0].device))
        if func is Tensor.tolist and isinstance(args[0], Pretended):
            return args[0].cpu().tolist()
        if func is Tensor.data_ptr and isinstance(args[0], Pretended):
            return id(args[0].held)
        if func in (Tensor.__getitem__, Tensor.__setitem__) and isinstance(args[0], Pretended):
            index = args[1]
            if isinstance(index, tuple):
                index = tuple(_listed(one) for one in index)
            args = (args[0], _listed(index), *args[2:])
            return func(*args, **kwargs)
        return func(*args, **kwargs)


def _read(data: Any) -> Any:
    """Lists of numbers, without tensors among them."""
    if isinstance(data, list | tuple):
        return [_read(one) for one in data]
    return data.item() if isinstance(data, Pretended) and not data.dim() else data


def _listed(index: Any) -> Any:
    """A list as an index, as the tensor that torch makes of it on the host."""
    return torch.tensor(index, dtype=None if index else torch.long) if isinstance(index, list) else index


@contextmanager
def world(*, values: bool = False, fused: bool = False, capacity: int | None = None) -> Iterator[World]:
    """The devices ``pretend:<n>`` while open, for this process alone; see the module's docstring.

    ``capacity`` is in bytes a device; None for as much as is asked for.

    Raises:
        Unsupported: a torch without the private hook.
    """
    global _WORLD
    _register()
    _WORLD = World(values, fused, Ledger(capacity))
    try:
        # The engine knows of one such device, and would look for threads of the others.
        with _Dispatch(), _Functions(), torch.autograd.set_multithreading_enabled(False):
            yield _WORLD
    finally:
        _WORLD = None


def _register() -> None:
    try:
        from torch.utils.backend_registration import _setup_privateuseone_for_python_backend as setup
    except ImportError as error:
        raise Unsupported(f"torch {torch.__version__} has no device type to pretend with") from error
    if not hasattr(torch, NAME):
        setup(NAME)
        # Recomputing activations in a backward pass asks for these, also where no autocast is on.
        getattr(torch, NAME).get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]


def place(model: torch.nn.Module, devices: Mapping[str, torch.device]) -> torch.nn.Module:
    """Puts every parameter and buffer of ``model`` on the device of the longest of the prefixes ``devices``.

    Tied weights stay one tensor. With more than one device, accelerate's hooks move states from one to the next, as
    ``device_map`` does.
    """
    placed: dict[tuple[int, torch.device], Tensor] = {}
    for name, module in model.named_modules():
        for kind in (module._parameters, module._buffers):
            for leaf, tensor in kind.items():
                if tensor is not None and not isinstance(tensor, Pretended):
                    full = f"{name}.{leaf}" if name else leaf
                    device = _device_of(full, devices)
                    if (known := placed.get((id(tensor), device))) is None:
                        made = _placed(tensor.detach(), device)
                        known = torch.nn.Parameter(made, tensor.requires_grad) if kind is module._parameters else made
                        placed[id(tensor), device] = known
                    kind[leaf] = known  # type: ignore[index]
    if len(set(devices.values())) > 1:
        from accelerate import dispatch_model

        whole = getattr(model, "_skip_keys_device_placement", None)
        dispatch_model(model, dict(devices), skip_keys=whole, force_hooks=True)
    return model


def _placed(tensor: Tensor, device: torch.device) -> Tensor:
    assert _WORLD is not None
    if tensor.is_meta and not tensor.is_floating_point():
        tensor = torch.zeros(tensor.shape, dtype=tensor.dtype)
    return Pretended(_WORLD._forgotten(tensor), device)


def _device_of(name: str, devices: Mapping[str, torch.device]) -> torch.device:
    fits = [prefix for prefix in devices if not prefix or name == prefix or name.startswith(prefix + ".")]
    return devices[max(fits, key=len)]
