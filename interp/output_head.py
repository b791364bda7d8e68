"""The output head in float32: the logits of the model's own hidden states, before they are rounded to its type.

The logits of a bfloat16 head are multiples of 1/16 from 8 on, and of 1/8 from 16 on. Effects that are measured here are
not larger, and a contrast multiplies that. The hidden states and weights behind them are exact in float32, and so
are their products. While ``float32_head`` is open the head returns float32 logits, computed again from the same hidden
states. A scale or a soft cap is then applied by the model's code, in float32.

For a score the answers' few rows are enough, and cost nothing. ``VLM.generate`` computes the whole head, so that all
arms choose from the same numbers. On a GPU that is a product of the same matrices that is not rounded at the end: no
copy, no more bytes to read. Elsewhere torch has no such product. There the weights are kept a second time in float32,
which on a CPU takes as long as the native head.

A float32 model's head is left as it is. Where the logits cannot be had again, the native ones are used, and
``native_head`` says why.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, ref

import torch
from jaxtyping import Float
from torch import Tensor, nn

from interp.device_copies import to_device
from interp.module_map import module_map_of

FEW = 16  # rows: from here on either way of a product takes about as long
PROBES, SAMPLED = 4, 256  # hidden states and rows of the head that are compared with the native logits


@contextmanager
def float32_head(model: Any, tokens: Sequence[int] | None = None) -> Iterator[None]:
    """While open, the head of ``model`` gives float32 logits: of ``tokens``, or of the whole vocabulary (None).

    The other tokens' logits are the native ones. Gradients reach the hidden states, not the weights of a whole head.
    For ``model.generate`` with a contrastive logits processor, open it around the call; ``VLM.generate`` opens it too.
    Changes nothing where ``native_head`` has a reason.

    Raises:
        UserError: the family is not supported.
    """
    head, kind = _head_of(model)
    if kind.itemsize >= 4 or native_head(model):
        yield
        return
    if tokens is None:
        hooks = _Whole()
        handles = [head.register_forward_pre_hook(hooks.before), head.register_forward_hook(hooks)]
    else:
        handles = [head.register_forward_hook(_Rows(head, tokens))]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def native_head(model: Any) -> str:
    """Why margins of ``model`` come from its native head, as a sentence; "" if they are float32.

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


class _Part(NamedTuple):
    """A linear layer of the head; ``start`` is the token of its first row."""

    start: int
    weight: Tensor
    bias: Tensor | None


def _parts(head: Any) -> list[_Part]:
    """One layer; in IDEFICS a second one holds the tokens that were added to the vocabulary. None of another module."""
    if not isinstance(head, nn.Linear):
        return []
    more = getattr(head, "additional_fc", None)
    return [
        _Part(0, head.weight, head.bias),
        *([] if more is None else [_Part(len(head.weight), more.weight, more.bias)]),
    ]


def _reason(head: Any) -> str:
    """Why the head's logits stay rounded; "" if they need not."""
    if not isinstance(head, nn.Linear):
        return f"the head is a {type(head).__name__}, no plain linear layer; if an adapter is on it, merge it"
    for _, weight, _ in _parts(head):
        if not weight.is_floating_point():
            return f"its weights are packed ({weight.dtype}); leave the head out of the quantisation"
        if weight.is_meta:
            return "its weights are offloaded; give the head a device that holds them"
        if hasattr(weight, "device_mesh") or weight.dim() != 2 or 0 in weight.shape:
            return "its weights are sharded; load the whole head on each device"
    return _compared(head)


@torch.no_grad()
def _compared(head: nn.Linear) -> str:
    """Compares the recomputed logits of a sample of tokens with the native ones, for random hidden states."""
    made = torch.randn(PROBES, head.weight.shape[1], generator=torch.Generator().manual_seed(0))
    probe = to_device(made, head.weight.device).to(head.weight.dtype)
    tokens = [
        part.start + number
        for part in _parts(head)
        for number in range(0, len(part.weight), max(1, len(part.weight) // SAMPLED))
    ]
    try:
        native = head(probe).float()
        again = _Rows(head, tokens)(head, (probe,), native)
        # Half of it is the rounding of one number; a GPU may round its partial sums too.
        allowed = 2 * torch.finfo(probe.dtype).eps * again.abs().max()
        off = (again - native).abs().max()
        differs = bool(off > allowed)
    except (RuntimeError, NotImplementedError, TypeError, IndexError) as error:
        return f"they could not be computed again ({str(error).splitlines()[0][:120]})"
    return f"the logits computed again differ from its own by {float(off):.2g}, more than rounding does" * differs


class _Rows:
    """The hook that puts the float32 logits of some tokens in place of the head's."""

    def __init__(self, head: Any, tokens: Sequence[int]) -> None:
        self._rows: list[tuple[_Part, Tensor]] = []
        for part in _parts(head):
            members = [token for token in dict.fromkeys(tokens) if 0 <= token - part.start < len(part.weight)]
            if members:
                self._rows.append((part, to_device(torch.tensor(members), part.weight.device)))

    def __call__(self, module: Any, arguments: tuple[Any, ...], output: Tensor) -> Tensor:
        hidden = arguments[0].to(output.device)  # accelerate moves them inside the head's forward
        if hidden.shape[:-1] != output.shape[:-1]:  # another block has held them back, and computed all
            return output
        logits = output.to(torch.float32, copy=True)
        for part, tokens in self._rows:
            rows = tokens - part.start
            exact = hidden.float() @ part.weight.index_select(0, rows).float().T
            logits.index_copy_(-1, tokens, exact if part.bias is None else exact + part.bias[rows].float())
        return logits


class _Whole:
    """The hooks that put all float32 logits in place of the head's."""

    def __init__(self) -> None:
        self._hidden: Tensor | None = None

    def before(self, module: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Leaves the native head nothing to compute."""
        hidden = arguments[0]
        if hidden.numel():
            self._hidden = hidden
        return hidden[..., :0, :], *arguments[1:]

    def __call__(self, module: Any, arguments: tuple[Any, ...], output: Tensor) -> Tensor:
        hidden, self._hidden = self._hidden, None
        if hidden is None:  # another block has held them back
            return output
        pieces = []
        for number, part in enumerate(_parts(module)):
            logits = _product(hidden.to(output.device).flatten(0, -2), part.weight, module, number)
            pieces.append(logits if part.bias is None else logits + part.bias.float())
        return torch.cat(pieces, -1).unflatten(0, hidden.shape[:-1])


def _product(
    hidden: Float[Tensor, "row width"], weight: Float[Tensor, "token width"], head: Any, number: int
) -> Float[Tensor, "row token"]:
    """``hidden`` × ``weight`` transposed in float32, of the part with this number of the head."""
    if weight.device.type != "cpu" and not (torch.is_grad_enabled() and hidden.requires_grad):
        try:
            return torch.mm(hidden, weight.detach().T, out_dtype=torch.float32)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, NotImplementedError, TypeError):  # torch has no such product here
            pass
    rows, exact = hidden.float(), _copied(weight, head, number)
    # A few rows go as the product's transpose, which on a CPU reads the weights once.
    return (exact @ rows.T).T if len(rows) < FEW else rows @ exact.T


_COPIES: "WeakKeyDictionary[nn.Module, dict[int, tuple[ref[Tensor], Any, Tensor]]]" = WeakKeyDictionary()


def _copied(weight: Tensor, head: Any, number: int) -> Tensor:
    """Return the weights in float32, made once, and again if they have changed."""
    copies = _COPIES.setdefault(head, {})
    source, state, _ = copies.get(number, (None, None, None))
    version = weight.device, 0 if weight.is_inference() else weight._version
    if source is None or source() is not weight or state != version:
        copies[number] = ref(weight), version, weight.detach().float()
    return copies[number][2]
