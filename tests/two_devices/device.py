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

*Memory* is counted by device (``ledger``: ``tests.two_devices.ledger``): what a run would hold at most. A ledger with a
``capacity`` runs out of memory where a GPU of that size would. Attention by ``scaled_dot_product_attention`` is one
kernel, which never holds queries × keys.

torch's own ``FakeTensorMode`` has no values of whole numbers either: ``nonzero``, ``.item()`` and the test that stops
``generate`` raise there, so the real code would not run.

It rests on a private hook of torch that is for the whole process: call it in a process of its own.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.two_devices.ledger import fused_attention
from tests.two_devices.tensor import NAME, TOKEN, DeviceMismatch, Pretended, World, here, opened

__all__ = ["NAME", "TOKEN", "DeviceMismatch", "Unsupported", "World", "place", "world"]


class Unsupported(RuntimeError):
    """This torch cannot pretend a device."""


class _Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return here().run(func, args, kwargs or {})


_NEW: tuple[Callable[..., Any], ...] = (torch.tensor, torch.as_tensor)
_BACKWARD = {Tensor.backward, torch.autograd.backward, torch.autograd.grad}
_HANDLED = {Tensor.new_tensor, Tensor.tolist, Tensor.data_ptr, Tensor.__getitem__, Tensor.__setitem__}

_WATCHED = {*_NEW, *_BACKWARD, *_HANDLED, torch.nn.functional.scaled_dot_product_attention}


class _Functions(TorchFunctionMode):
    """What torch does in C++ without asking a dispatch mode: new tensors, and lists as indices."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in _WATCHED:
            return func(*args, **kwargs)
        kwargs = dict(kwargs)
        if func in _NEW and kwargs.get("device") is not None and torch.device(kwargs["device"]).type == NAME:
            device, data = kwargs.pop("device"), args[0]
            if isinstance(data, Pretended):
                return data.detach().clone().to(device, kwargs.get("dtype"))
            return func(_read(data), *args[1:], **kwargs).to(device)
        if func is torch.nn.functional.scaled_dot_product_attention:
            return (fused_attention if isinstance(args[0], Pretended) else func)(*args, **kwargs)
        if func in _BACKWARD:
            return here().backward(func, args, kwargs)
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
def world(*, values: bool = False, float64: bool = True) -> Iterator[World]:
    """The devices ``pretend:<n>`` while open, for this process alone; see the module's docstring.

    Without ``float64`` a tensor of that type raises TypeError on the device, as on Apple's MPS.

    Raises:
        Unsupported: a torch without the private hook.
    """
    _register()
    # The engine knows of one such device, and would look for threads of the others.
    with opened(World(values, float64)) as found:
        with _Dispatch(), _Functions(), torch.autograd.set_multithreading_enabled(False):
            yield found


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
    if tensor.is_meta and not tensor.is_floating_point():
        tensor = torch.zeros(tensor.shape, dtype=tensor.dtype)
    return Pretended(here().forgotten(tensor), device)


def _device_of(name: str, devices: Mapping[str, torch.device]) -> torch.device:
    fits = [prefix for prefix in devices if not prefix or name == prefix or name.startswith(prefix + ".")]
    return devices[max(fits, key=len)]
