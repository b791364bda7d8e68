"""How a model scales what it adds: its sublayers' outputs, the logits after its head, and a picture added again later.

Granite multiplies what each sublayer adds and divides its logits; Gemma caps its logits; Qwen3-VL adds the picture
again behind its first layers (DeepStack). Modules do not show this. Each tool that depends on it is checked by
``interp.selfcheck``.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor

from interp.errors import UserError
from interp.module_map import ModuleMap, bare, is_empty, run_words

FITS = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 6e-2}
"""Largest relative error within one forward, by the model's type."""


@dataclass(frozen=True)
class AfterHead:
    """What a model does to the logits of its head: multiply them by ``scale``, then cap them softly at ``cap``."""

    scale: float = 1.0
    cap: float | None = None

    def __call__(self, logits: Float[Tensor, "*row vocab"]) -> Float[Tensor, "*row vocab"]:
        """Return the model's logits for its head's."""
        if self.scale != 1.0:
            logits = logits * self.scale
        return logits if self.cap is None else (logits / self.cap).tanh() * self.cap


_AFTER: "WeakKeyDictionary[Any, tuple[float | None, AfterHead | None]]" = WeakKeyDictionary()  # with the config's cap
_ENDS: "WeakKeyDictionary[Any, int]" = WeakKeyDictionary()


def after_head(model: Any, module_map: ModuleMap) -> AfterHead:
    """Return what ``model`` does to its logits after the head, fitted once on one forward of a few words.

    If the model has no values or does not run on words, the soft cap of its config is used.

    Raises:
        UserError: it does something else than a factor and a soft cap.
    """
    cap = getattr(model.config.get_text_config(), "final_logit_softcapping", None)
    if model not in _AFTER or _AFTER[model][0] != cap:
        runs = not is_empty(model) and module_map.lm_head and module_map.prompt == "text" and not module_map.unread
        _AFTER[model] = cap, _fitted(model, module_map, cap) if runs else AfterHead(cap=cap)
    after = _AFTER[model][1]
    if after is None:
        raise UserError(
            f"the logits of '{module_map.model_type}' are neither those of its head nor these times a number; norm and "
            "head cannot read what a state would say; use patch, which runs the model"
        )
    return after


def _fitted(model: Any, module_map: ModuleMap, cap: float | None) -> AfterHead | None:
    head: list[Tensor] = []
    with ExitStack() as stack:
        stack.enter_context(bare(model))
        hook = module_map.module(model, "lm_head").register_forward_hook(
            lambda module, args, output: head.append(output)
        )
        stack.callback(hook.remove)
        y = run_words(model, module_map.lm_head).logits[:, -1].float()
    x = head[0][:, -1].to(y.device).float()
    square = (x * x).sum().clamp(min=1e-12)
    ways = [AfterHead(1.0, cap), AfterHead(), AfterHead(float((x * y).sum() / square))]
    if cap is not None:
        uncapped = (y / cap).clamp(-1 + 1e-6, 1 - 1e-6).atanh() * cap
        ways.append(AfterHead(float((x * uncapped).sum() / square), cap))
    return next((way for way in ways if relative_error(way(x), y) <= FITS[model.dtype]), None)


def sublayer_factor(model: Any) -> float:
    """Return what each sublayer's output is multiplied by before it is added, as the config says (Granite)."""
    return float(getattr(model.config.get_text_config(), "residual_multiplier", None) or 1.0)


def picture_ends(model: Any, module_map: ModuleMap, forward: Callable[[], object]) -> int:
    """Return the first state of the residual stream after which no picture is added again (DeepStack); mostly 0.

    ``forward`` runs a prompt with a picture. Measured once a model: does each layer take its predecessor's output?
    """
    if is_empty(model) or module_map.cross_attended:
        return 0
    if model not in _ENDS:
        changed, before = [0], dict[str, Tensor]()

        def compare(layer: int, module: Any, args: Any, kwargs: Any) -> None:
            state = args[0] if args else kwargs["hidden_states"]
            if before and relative_error(state, before["out"]) > FITS[model.dtype]:
                changed.append(layer + 1)

        def keep(module: Any, args: Any, output: Any) -> None:
            before["out"] = output[0] if isinstance(output, tuple) else output

        with ExitStack() as stack:
            for i, layer in enumerate(module_map.module(model, "layers")):
                stack.callback(layer.register_forward_pre_hook(partial(compare, i), with_kwargs=True).remove)
                stack.callback(layer.register_forward_hook(keep).remove)
            forward()
        _ENDS[model] = changed[-1]
    return _ENDS[model]


def relative_error(value: Tensor, reference: Tensor) -> float:
    """Return the difference's length over the reference's; infinite for other shapes or NaN."""
    if value.shape != reference.shape:
        return float("inf")
    value, reference = value.float(), reference.to(value.device).float()
    error = float((value - reference).norm() / reference.norm().clamp(min=1e-12))
    return error if error == error else float("inf")
