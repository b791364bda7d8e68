"""Gradients of activations in the memory of one layer: no weight needs any, and each layer runs again for its own.

Gradient checkpointing (Chen et al. 2016, arXiv 1604.06174) keeps a layer's input alone and computes the rest once more
in the backward pass.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

if TYPE_CHECKING:
    from interp.vlm import VLM

STATE = ("training", "gradient_checkpointing", "_gradient_checkpointing_func")  # what checkpointing sets in a module


@contextmanager
def frozen_weights(model: Any) -> Iterator[None]:
    """While open, operations on tensors that need a gradient are followed, and no weight of ``model`` needs one."""
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    for weight in trained:
        weight.requires_grad_(False)
    try:
        with torch.enable_grad():
            yield
    finally:
        for weight in trained:
            weight.requires_grad_(True)


@contextmanager
def activation_gradients(vlm: "VLM") -> Iterator[None]:
    """While open, operations on tensors that need a gradient are followed, and checkpointed layer by layer.

    Call backward (``torch.autograd.grad``) inside. Weights need no gradient meanwhile and get none, and the model stays
    in evaluation mode. A family or device that cannot be checkpointed keeps its activations. Flags are restored when
    the block ends, also on an exception.
    """
    model = vlm.model
    before = [(module, {name: module.__dict__[name] for name in STATE if name in module.__dict__})
              for module in model.modules()]  # fmt: skip
    try:
        if model.supports_gradient_checkpointing:
            # Without hooks on the embeddings, which ``activation_checkpointing_enable`` adds for training.
            model._set_gradient_checkpointing(
                enable=True,
                gradient_checkpointing_func=partial(
                    checkpoint, use_reentrant=False, preserve_rng_state=False, context_fn=same_functions
                ),
            )
            for module in model.modules():
                if isinstance(module, GradientCheckpointingLayer):
                    current = getattr(module, "_gradient_checkpointing_func")  # noqa: B009  set above
                    setattr(module, "_gradient_checkpointing_func", partial(_in_evaluation, module, current))  # noqa: B010
                    module.training = True  # of the layer alone, which checkpoints only then
        with frozen_weights(model):
            yield
    finally:
        for module, state in before:
            for name in STATE:
                if name in state:
                    setattr(module, name, state[name])
                elif name in module.__dict__:
                    delattr(module, name)


def same_functions() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """For ``checkpoint(context_fn=...)``: a layer runs again under the function modes that it ran under.

    Torch sets these aside in a backward pass, so that what they replace would be computed in another way than before.
    """
    return nullcontext(), _Opened(_get_current_function_mode_stack())


class _Opened(AbstractContextManager[None]):
    """Those of ``modes`` that are not open already; a graph that is kept runs its layers again more than once."""

    def __init__(self, modes: Sequence[TorchFunctionMode]) -> None:
        self.modes, self.stack = modes, ExitStack()

    def __enter__(self) -> None:
        there = _get_current_function_mode_stack()
        for mode in self.modes:
            if mode not in there:
                self.stack.enter_context(mode)

    def __exit__(self, *caught: object) -> None:
        self.stack.close()


def _in_evaluation(layer: Any, checkpointed: Callable[..., Any], run: Callable[..., Any], *args: Any) -> Any:
    """The checkpointed run of a layer with its own dropout off.

    transformers 5.20 hands over the whole call of the layer, with the hooks of whoever follows or edits its states. A
    backward pass would run these again, so the forward alone is checkpointed there, as later versions do.
    """

    def quiet(run: Callable[..., Any], *args: Any) -> Any:
        was, layer.training = layer.training, False
        try:
            return run(*args)
        finally:
            layer.training = was

    whole_call = getattr(getattr(run, "func", None), "__self__", None) is layer
    if not whole_call:
        return checkpointed(partial(quiet, run), *args)
    forward, current = layer.forward, layer.__dict__.get("forward")
    layer.forward = lambda *args, **kwargs: checkpointed(partial(quiet, partial(forward, **kwargs)), *args)
    try:
        return run(*args)
    finally:
        del layer.forward
        if current is not None:
            layer.forward = current
