"""The output head in float32: the logits of the model's own hidden states, before they are rounded to its type.

The logits of a bfloat16 head are multiples of 1/16 from 8 on and of 1/8 from 16 on, as large as the effects that are
measured here, and a contrast multiplies that. The hidden states and weights behind them are exact in float32, and so
are their products. While ``float32_head`` is open the head returns float32 logits, computed again from the same hidden
states. Whatever the model does to them then (a scale, a soft cap) is done by its own code, in float32.

For a score the answers' few rows are enough, and cost nothing. ``VLM.generate`` computes the whole head, whatever is
made of its logits, so that all arms choose from the same numbers. On a GPU that is a product of the same matrices that
is not rounded at the end: no copy, no more bytes to read. Elsewhere torch has no such product. There the weights are
kept a second time in float32 (``COPIED`` bytes at most, else they are converted in parts at every step), which on a CPU
takes as long as the native head.

A float32 model's head is left as it is. Where the logits cannot be had again, the native ones are used, and
``native_head`` says why.
"""

import sys
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from interp.device_copies import to_device
from interp.layout import layout_for

COPIED = 2**30
PART = 2**25  # bytes in float32 that are converted at a time, of a head that is too large to be copied
FEW = 16  # rows: from here on either way takes about as long
PROBES, SAMPLED = 4, 256  # hidden states and rows of the head that are compared with the native logits


@contextmanager
def float32_head(model: Any, tokens: Sequence[int] | None = None) -> Iterator[None]:
    """While open, the head of ``model`` gives float32 logits: of ``tokens``, or of the whole vocabulary (None).

    The other tokens' logits are the native ones. Gradients reach the hidden states, not the weights of a whole head.
    For ``model.generate`` with a contrastive logits processor, open it around the call; ``VLM.generate`` does so by
    itself. Changes nothing where ``native_head`` has a reason.

    Raises:
        UserError: the family is not supported.
    """
    head = _of(model)
    if head.reason() or not head.rounds:
        yield
        return
    again = _Again(head, tokens)
    handles = [head.module.register_forward_hook(again)]
    if tokens is None:
        handles.append(head.module.register_forward_pre_hook(again.before))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def native_head(model: Any) -> str:
    """Why margins of ``model`` come from its native head, as a sentence; "" if they are float32.

    The recomputed logits are compared with the native ones when this is first asked, or the head first used.

    Raises:
        UserError: the family is not supported.
    """
    head = _of(model)
    reason = head.reason()
    if not reason:
        return ""
    step = 8 * torch.finfo(head.kind).eps
    return (
        f"Margins come from the model's own output head, which rounds its logits (to steps of {step:.2g} from 8 on, of "
        f"{2 * step:.2g} from 16 on): {reason}."
    )


class _Part(NamedTuple):
    """A linear layer of the head; ``start`` is the token of its first row."""

    start: int
    weight: Tensor
    bias: Tensor | None


class _Head:
    """The head of one model. Modules and weights are looked up anew, because adapters and training replace them."""

    def __init__(self, model: Any) -> None:
        self._model = weakref.ref(model)
        self._path = layout_for(model).path("lm_head")
        self._checked: list[weakref.ref[Any]] = []
        self._reason = ""
        self._copies: dict[int, tuple[weakref.ref[Tensor], int, Tensor]] = {}
        self._unrounded = True  # until torch says that it has no such product here

    @property
    def module(self) -> Any:
        model = self._model()
        assert model is not None
        return model.get_submodule(self._path)

    @property
    def kind(self) -> torch.dtype:
        """The type that the native head computes in; that of the model where its weights are packed."""
        weight, model = getattr(self.module, "weight", None), self._model()
        assert model is not None
        if isinstance(weight, Tensor) and weight.is_floating_point() and weight.dtype.itemsize > 1:
            return weight.dtype
        return model.dtype

    @property
    def rounds(self) -> bool:
        """Whether the head's type is coarser than float32."""
        return self.kind.itemsize < 4

    def parts(self) -> list[_Part]:
        """One layer; in IDEFICS a second one holds the tokens that were added to the vocabulary."""
        head = self.module
        found = [_Part(0, head.weight, head.bias)]
        more = getattr(head, "additional_fc", None)
        return found if more is None else [*found, _Part(len(head.weight), more.weight, more.bias)]

    def reason(self) -> str:
        """Why the head's logits stay rounded; "" if they need not. Asked anew when module or weights change."""
        if not self.rounds:
            return ""
        head = self.module
        now = [head, *(part.weight for part in self.parts())] if isinstance(head, nn.Linear) else [head]
        known = [one() for one in self._checked]
        if len(known) != len(now) or any(one is not other for one, other in zip(known, now, strict=True)):
            self._checked, self._reason = [weakref.ref(one) for one in now], self._asked()
            if self._reason:
                print(f"warning: {native_head(self._model())}", file=sys.stderr)
        return self._reason

    def _asked(self) -> str:
        head = self.module
        if not isinstance(head, nn.Linear):
            return f"the head is a {type(head).__name__}, no plain linear layer; if an adapter is on it, merge it"
        for _, weight, _ in self.parts():
            if not weight.is_floating_point():
                return f"its weights are packed ({weight.dtype}); leave the head out of the quantisation"
            if weight.is_meta:
                return "its weights are offloaded; give the head a device that holds them"
            if hasattr(weight, "device_mesh") or weight.dim() != 2 or 0 in weight.shape:
                return "its weights are sharded; load the whole head on each device"
        return self._compared()

    @torch.no_grad()
    def _compared(self) -> str:
        """Compares the recomputed logits of a sample of tokens with the native ones, for random hidden states."""
        head, parts = self.module, self.parts()
        made = torch.randn(PROBES, parts[0].weight.shape[1], generator=torch.Generator().manual_seed(0))
        probe = to_device(made, parts[0].weight.device).to(parts[0].weight.dtype)
        tokens = [
            part.start + number
            for part in parts
            for number in range(0, len(part.weight), max(1, len(part.weight) // SAMPLED))
        ]
        try:
            native = head(probe).float()
            again = _Again(self, tokens)(head, (probe,), native)
            scale = again.abs().max()
            # Half of it is the rounding of one number; a GPU may round its partial sums too.
            allowed = 2 * torch.finfo(probe.dtype).eps * scale
            off = (again - native).abs().max()
            differs = bool(off > allowed)
        except (RuntimeError, NotImplementedError, TypeError, IndexError) as error:
            return f"they could not be computed again ({str(error).splitlines()[0][:120]})"
        if differs:
            return f"the logits computed again differ from its own by {float(off):.2g}, more than rounding does"
        return ""

    def whole(self, hidden: Float[Tensor, "*some width"]) -> Float[Tensor, "*some vocab"]:
        """All logits of ``hidden``."""
        flat = hidden.reshape(-1, hidden.shape[-1])
        logits = [_plus(self._product(flat, number, part), part.bias) for number, part in enumerate(self.parts())]
        return torch.cat(logits, -1).reshape(*hidden.shape[:-1], -1)

    def _product(self, hidden: Float[Tensor, "row width"], number: int, part: _Part) -> Float[Tensor, "row token"]:
        weight = part.weight.detach()
        if weight.device.type != "cpu" and self._unrounded and not (torch.is_grad_enabled() and hidden.requires_grad):
            try:
                return torch.mm(hidden, weight.T, out_dtype=torch.float32)
            except torch.OutOfMemoryError:
                raise
            except (RuntimeError, NotImplementedError, TypeError):
                self._unrounded = False
        rows = hidden.float()
        if 4 * weight.numel() <= COPIED:
            return _times(rows, self._copy(number, part.weight))
        some = max(1, PART // (4 * weight.shape[1]))
        return torch.cat([_times(rows, few.float()) for few in weight.split(some)], -1)

    def _copy(self, number: int, weight: Tensor) -> Tensor:
        """The weights in float32, made once, and anew if they have changed."""
        version = 0 if weight.is_inference() else weight._version
        kept = self._copies.get(number)
        if kept is None or kept[0]() is not weight or kept[1] != version or kept[2].device != weight.device:
            kept = self._copies[number] = (weakref.ref(weight), version, weight.detach().float())
        return kept[2]


class _Again:
    """The hook that puts float32 logits in place of the head's."""

    def __init__(self, head: _Head, tokens: Sequence[int] | None) -> None:
        self._head = head
        self._hidden: Tensor | None = None
        self._rows: list[tuple[_Part, Tensor, Tensor]] | None = None
        if tokens is not None:
            self._rows = [rows for part in head.parts() if (rows := _rows_of(part, tokens)) is not None]

    def before(self, module: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Leaves the native head nothing to compute, where all its logits are computed again."""
        hidden = arguments[0]
        if hidden.numel():
            self._hidden = hidden
        return hidden[..., :0, :], *arguments[1:]

    def __call__(self, module: Any, arguments: tuple[Any, ...], output: Tensor) -> Tensor:
        """The logits of the hidden states ``arguments[0]``, or of those that ``before`` held back."""
        hidden = arguments[0].to(output.device)  # accelerate moves them inside the head's forward
        if self._rows is None:
            held, self._hidden = self._hidden, None
            return output if held is None else self._head.whole(held.to(output.device))
        if hidden.shape[:-1] != output.shape[:-1]:  # another block has held them back, and computed all
            return output
        logits = output.float() if output.dtype != torch.float32 else output.clone()
        for part, tokens, rows in self._rows:
            bias = None if part.bias is None else part.bias.index_select(0, rows)
            exact = _plus(hidden.float() @ part.weight.index_select(0, rows).float().T, bias)
            logits.index_copy_(-1, tokens, exact)
        return logits


def _rows_of(part: _Part, tokens: Sequence[int]) -> tuple[_Part, Tensor, Tensor] | None:
    """Those of ``tokens`` that are in ``part``, and their rows there; None if there are none."""
    own = [token for token in dict.fromkeys(tokens) if part.start <= token < part.start + len(part.weight)]
    if not own:
        return None
    columns = to_device(torch.tensor(own), part.weight.device)
    return part, columns, columns - part.start


def _times(rows: Float[Tensor, "row width"], weight: Float[Tensor, "token width"]) -> Float[Tensor, "row token"]:
    """``rows`` × ``weight`` transposed, in the order that is fastest on a CPU.

    A few rows go as the product's transpose, which reads the weights once: two, as paired decoding asks for, else take
    up to four times as long as one. One row goes twice, since by itself it may take twice as long as two.
    """
    if len(rows) == 1:
        return _times(torch.cat([rows, rows]), weight)[:1]
    return (weight @ rows.T).T if len(rows) < FEW else rows @ weight.T


def _plus(logits: Tensor, bias: Tensor | None) -> Tensor:
    return logits if bias is None else logits + bias.float()


_HEADS: "weakref.WeakKeyDictionary[Any, _Head]" = weakref.WeakKeyDictionary()


def _of(model: Any) -> _Head:
    model = model.get_base_model() if hasattr(model, "get_base_model") else model
    if model not in _HEADS:
        _HEADS[model] = _Head(model)
    return _HEADS[model]
