"""The output head in float32: the logits of the model's own hidden states, before they are rounded to its type.

The logits of a bfloat16 head are multiples of 1/16 from 8 on, and of 1/8 from 16 on. Effects that are measured here are
not larger, and a contrast multiplies that. The hidden states and weights behind them are exact in float32, and so
are their products. While ``float32_head`` is open the head returns float32 logits, computed again from the same hidden
states. A scale or a soft cap is then applied by the model's code, in float32.

On a GPU that is a product of the same matrices that is not rounded at the end: no copy, no more bytes to read.
Elsewhere torch has no such product. There, and for gradients, the weights are kept a second time in float32, which on a
CPU takes as long as the native head.

A float32 model's head is left as it is. Where the logits cannot be had again, the native ones are used, and
``native_head`` says why.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from interp.device_copies import to_device
from interp.module_map import module_map_of

FEW = 16  # rows: from here on either way of a product takes about as long
PROBES = 4  # hidden states whose logits are compared with the native ones


@contextmanager
def float32_head(model: Any) -> Iterator[None]:
    """While open, the head of ``model`` gives float32 logits.

    Gradients reach the hidden states, not the weights. For ``model.generate`` with a contrastive logits processor, open
    it around the call; ``VLM.generate`` opens it too. Changes nothing where ``native_head`` has a reason.

    Raises:
        UserError: the family is not supported.
    """
    head, kind = _head_of(model)
    if kind.itemsize >= 4 or native_head(model):
        yield
        return
    with _exact(head):
        yield


@contextmanager
def _exact(head: Any) -> Iterator[None]:
    hooks = _Whole()
    handles = [head.register_forward_pre_hook(hooks.before), head.register_forward_hook(hooks)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def native_head(model: Any) -> str:
    """Return why margins of ``model`` come from its native head, as a sentence; "" if they are float32.

    The recomputed logits are compared with the native ones at the first call, or when the head is first used. They are
    compared again if the head or its weights are others. What is found is named on stderr once.

    Raises:
        UserError: the family is not supported.
    """
    head, kind = _head_of(model)
    if kind.itemsize >= 4:
        return ""
    weights = [part.weight for part in _parts(head)]
    weights_before, sentence = _SAID.get(head, ([], None))
    if sentence is None or [id(one()) for one in weights_before] != [id(weight) for weight in weights]:
        reason, step = _reason(head), 8 * torch.finfo(kind).eps
        sentence = reason and (
            f"Margins come from the model's own output head, which rounds its logits (to steps of {step:.2g} from 8 "
            f"on, of {2 * step:.2g} from 16 on): {reason}."
        )
        _SAID[head] = [ref(weight) for weight in weights], sentence
        if sentence:
            print(f"warning: {sentence}", file=sys.stderr)
    return sentence


_SAID: "WeakKeyDictionary[nn.Module, tuple[list[ref[Tensor]], str | None]]" = WeakKeyDictionary()


def _head_of(model: Any) -> tuple[Any, torch.dtype]:
    """Return the head, and the type that it computes in: the model's type if its weights are packed."""
    model = model.get_base_model() if hasattr(model, "get_base_model") else model
    head = module_map_of(model).module(model, "lm_head")
    weight = getattr(head, "weight", None)
    if isinstance(weight, Tensor) and weight.is_floating_point() and weight.dtype.itemsize > 1:
        return head, weight.dtype
    return head, model.dtype


def _parts(head: Any) -> list[Any]:
    """Return the linear layers of the head: in IDEFICS a second one has the tokens added to the vocabulary."""
    if not isinstance(head, nn.Linear):
        return []
    return [head, *filter(None, [getattr(head, "additional_fc", None)])]


def _reason(head: Any) -> str:
    """Return why the head's logits stay rounded; "" if they need not."""
    if not isinstance(head, nn.Linear):
        return f"the head is a {type(head).__name__}, no plain linear layer; if an adapter is on it, merge it"
    for weight in (part.weight for part in _parts(head)):
        if not weight.is_floating_point():
            return f"its weights are packed ({weight.dtype}); leave the head out of the quantisation"
        if weight.is_meta:
            return "its weights are offloaded; give the head a device that holds them"
        if hasattr(weight, "device_mesh") or weight.dim() != 2 or 0 in weight.shape:
            return "its weights are sharded; load the whole head on each device"
    return _compared(head)


@torch.no_grad()
def _compared(head: nn.Linear) -> str:
    """Compare the recomputed logits with the native ones, for random hidden states."""
    made = torch.randn(PROBES, head.weight.shape[1], generator=torch.Generator().manual_seed(0))
    probe = to_device(made, head.weight.device).to(head.weight.dtype)
    try:
        native = head(probe).float()
        with _exact(head):
            again = head(probe)
        # Half of it is the rounding of one number; a GPU may round its partial sums too.
        allowed = 2 * torch.finfo(probe.dtype).eps * again.abs().max()
        off = (again - native).abs().max()
        differs = bool(off > allowed)
    except (RuntimeError, NotImplementedError, TypeError, IndexError) as error:
        return f"they could not be computed again ({str(error).splitlines()[0][:120]})"
    return f"the logits computed again differ from its own by {float(off):.2g}, more than rounding does" * differs


class _Whole:
    """The hooks that put all float32 logits in place of the head's."""

    def __init__(self) -> None:
        self._hidden: Tensor | None = None

    def before(self, module: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Leave the native head nothing to compute."""
        hidden = arguments[0]
        if hidden.numel():
            self._hidden = hidden
        return hidden[..., :0, :], *arguments[1:]

    def __call__(self, module: Any, arguments: tuple[Any, ...], output: Tensor) -> Tensor:
        hidden, self._hidden = self._hidden, None
        if hidden is None:  # another block has held them back
            return output
        pieces = []
        for part in _parts(module):
            logits = _product(hidden.to(output.device).flatten(0, -2), part.weight)
            pieces.append(logits if part.bias is None else logits + part.bias.float())
        return torch.cat(pieces, -1).unflatten(0, hidden.shape[:-1])


def _product(hidden: Float[Tensor, "row width"], weight: Float[Tensor, "token width"]) -> Float[Tensor, "row token"]:
    """Return ``hidden`` × ``weight`` transposed, in float32."""
    if weight.device.type != "cpu" and not (torch.is_grad_enabled() and hidden.requires_grad):
        try:
            return torch.mm(hidden, weight.detach().T, out_dtype=torch.float32)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, NotImplementedError, TypeError):  # torch has no such product here
            pass
    version = weight.device, 0 if weight.is_inference() else weight._version
    if _COPIES.get(weight, (None,))[0] != version:
        _COPIES[weight] = version, weight.detach().float()
    rows, exact = hidden.float(), _COPIES[weight][1]
    # A few rows go as the product's transpose, which on a CPU reads the weights once.
    return (exact @ rows.T).T if len(rows) < FEW else rows @ exact.T


_COPIES = WeakTensorKeyDictionary()  # weights → their version, and the same in float32
