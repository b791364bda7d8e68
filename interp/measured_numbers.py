"""Numbers of a loaded model that its modules do not show: what sublayers are multiplied by, and logits after the head.

Both are fitted on one forward of a few words, on the model's own weights, with every hook taken off. Granite multiplies
what each sublayer adds and divides its logits; Gemma caps them.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor

from interp.errors import UserError
from interp.layout import Layout
from interp.trace import bare, is_empty, run_words

FITS = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 6e-2}
"""How far a fit may be from what was fitted, relative to its length, by the model's type."""


@dataclass(frozen=True)
class AfterHead:
    """What a model does to the logits of its head: multiplies them by ``scale``, then caps them softly at ``cap``."""

    scale: float = 1.0
    cap: float | None = None

    def __call__(self, logits: Float[Tensor, "*some vocab"]) -> Float[Tensor, "*some vocab"]:
        """The model's own logits, from those of its head."""
        if self.scale != 1.0:
            logits = logits * self.scale
        return logits if self.cap is None else (logits / self.cap).tanh() * self.cap


@dataclass(frozen=True)
class Measured:
    """``factors`` are by decoder layer and kind of sublayer; ``input`` is that of the layer's own input. ``off`` is how
    far each layer's output is from their sum, relative to its length. ``refusal`` is why logits after the head are
    unknown, "" if they are known.
    """

    after: AfterHead
    factors: Mapping[int, Mapping[str, float]]
    off: Mapping[int, float]
    refusal: str = ""


_ENDS: "WeakKeyDictionary[Any, int]" = WeakKeyDictionary()
_MEASURED: "WeakKeyDictionary[Any, tuple[float | None, Measured]]" = WeakKeyDictionary()  # with the config's cap


def after_head(model: Any, layout: Layout) -> AfterHead:
    """What ``model`` does to its logits after the head.

    Raises:
        UserError: something else than a factor and the soft cap of its config.
    """
    found = measured(model, layout)
    if found.refusal:
        raise UserError(found.refusal)
    return found.after


def measured(model: Any, layout: Layout) -> Measured:
    """The numbers of ``model``; of a model without values, and of one that does not run on words, none but its cap."""
    cap = getattr(model.config.get_text_config(), "final_logit_softcapping", None)
    if model not in _MEASURED or _MEASURED[model][0] != cap:
        nothing = Measured(AfterHead(cap=cap), {}, {})
        reads = not is_empty(model) and layout.lm_head and layout.prompt == "text" and not layout.unread
        _MEASURED[model] = cap, _measure(model, layout, cap) if reads else nothing
    return _MEASURED[model][1]


def _measure(model: Any, layout: Layout, cap: float | None) -> Measured:
    seen: dict[Any, Tensor] = {}

    def keep(key: Any, module: Any, args: Any, kwargs: Any, output: Any) -> None:
        seen[key] = (output[0] if isinstance(output, tuple) else output).detach()
        if key[0] == "layer":
            seen["input", key[1]] = (args[0] if args else kwargs["hidden_states"]).detach()

    layers = layout.module(model, "layers")
    kept = [(layers[i], ("layer", i)) for i in layout.blocks]
    kept += [
        (module, (kind, i))
        for kind in ("attention", "mixer", "mlp")
        for i, module in layout.sublayers(model, kind).items()  # type: ignore[arg-type]
    ]
    with ExitStack() as stack:
        stack.enter_context(bare(model))
        for module, key in (*kept, (layout.module(model, "lm_head"), ("head", 0))):
            stack.callback(module.register_forward_hook(partial(keep, key), with_kwargs=True).remove)
        logits = run_words(model, layout.lm_head).logits
    factors, off = {}, {}
    for i in layout.blocks:
        kinds = ["input", *(kind for kind in ("attention", "mixer", "mlp") if (kind, i) in seen)]
        factors[i], off[i] = fitted({kind: seen[kind, i] for kind in kinds}, seen["layer", i], FITS[model.dtype])
    after, refusal = _after(seen["head", 0], logits, cap, FITS[model.dtype], layout.model_type)
    return Measured(after, factors, off, refusal)


def fitted(parts: Mapping[str, Tensor], whole: Tensor, bound: float) -> tuple[dict[str, float], float]:
    """Factors of ``parts`` that add up to ``whole``, and how far they are off: 1 each where that fits."""
    device = whole.device
    columns = torch.stack([part.reshape(-1).to(device, torch.float32) for part in parts.values()], dim=1).cpu().double()
    target = whole.reshape(-1).float().cpu().double()
    length = target.norm().clamp(min=1e-12)
    ones = dict.fromkeys(parts, 1.0)
    plain = float((columns.sum(1) - target).norm() / length)
    if plain <= bound:
        return ones, plain
    solution = torch.linalg.lstsq(columns, target[:, None]).solution[:, 0]
    off = float((columns @ solution - target).norm() / length)
    if off > bound:
        return ones, plain
    return dict(zip(parts, (float(f"{factor:.6g}") for factor in solution), strict=True)), off


def _after(head: Tensor, logits: Tensor, cap: float | None, bound: float, name: str) -> tuple[AfterHead, str]:
    """What leads from the head's logits to the model's."""
    x, y = (some[:, -1].float() for some in (head, logits.to(head.device)))
    length = y.norm().clamp(min=1e-12)
    best = float((x * y).sum() / (x * x).sum().clamp(min=1e-12))
    ways = [AfterHead(1.0, cap), AfterHead(1.0, None), AfterHead(best, None)]
    if cap is not None:
        uncapped = (y / cap).clamp(-1 + 1e-6, 1 - 1e-6).atanh() * cap
        ways.append(AfterHead(float((x * uncapped).sum() / (x * x).sum()), cap))
    for way in ways:
        if x.shape == y.shape and float((way(x) - y).norm() / length) <= bound:
            return way, ""
    return AfterHead(cap=cap), (
        f"the logits of '{name}' are neither those of its head nor these times a number; what a state would say cannot "
        "be read off by norm and head; use patch, which runs the model"
    )


def picture_ends(model: Any, layout: Layout, forward: Callable[[], object]) -> int:
    """The first state of the residual stream behind which the picture is not added again (DeepStack); mostly 0.

    Measured once a model, on a ``forward`` of a picture: does each layer take what the one before it puts out?
    """
    if is_empty(model) or layout.cross_attended:
        return 0
    if model not in _ENDS:
        again, before = [0], dict[str, Tensor]()

        def compare(layer: int, module: Any, args: Any, kwargs: Any) -> None:
            state = args[0] if args else kwargs["hidden_states"]
            if before and off(state, before["out"]) > FITS[model.dtype]:
                again.append(layer + 1)

        def keep(module: Any, args: Any, output: Any) -> None:
            before["out"] = output[0] if isinstance(output, tuple) else output

        with ExitStack() as stack:
            for i, layer in enumerate(layout.module(model, "layers")):
                stack.callback(layer.register_forward_pre_hook(partial(compare, i), with_kwargs=True).remove)
                stack.callback(layer.register_forward_hook(keep).remove)
            forward()
        _ENDS[model] = again[-1]
    return _ENDS[model]


def pixel_inputs(inputs: Mapping[str, Any]) -> list[str]:
    """The names of the inputs that hold pixels: floating-point numbers that are no mask."""
    found = (name for name, value in inputs.items() if isinstance(value, Tensor) and value.is_floating_point())
    return sorted(name for name in found if not name.endswith("mask"))


def off(one: Tensor, other: Tensor) -> float:
    """How far two tensors are apart, relative to the second's length; infinite where their shapes differ."""
    if one.shape != other.shape:
        return float("inf")
    one, other = one.float(), other.to(one.device).float()
    apart = float((one - other).norm() / other.norm().clamp(min=1e-12))
    return apart if apart == apart else float("inf")


def is_gated(taken: Tensor, out: Tensor) -> bool:
    """Whether each number of ``taken`` is one of ``out`` times a gate from 0 to 1."""
    some = out.abs() > 1e-2 * out.abs().max()
    ratio = taken[some] / out[some]
    return bool((ratio > -1e-2).all()) and bool((ratio < 1 + 1e-2).all()) and float(ratio.std()) > 1e-3
