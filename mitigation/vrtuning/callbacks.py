"""Robust training: markers of complete resume points, a stop at NaN, and restoring the model afterwards."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import TrainerCallback

from interp.errors import UserError
from interp.vlm import VLM

COMPLETE = "complete"  # marker file in a completely written resume point


class Marker(TrainerCallback):
    """Marks a resume point once every process has written its part, and reports losses."""

    def __init__(self, report: Callable[[int, int, float], None] | None = None) -> None:
        self.report = report

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        args.distributed_state.wait_for_everyone()
        if state.is_world_process_zero:
            (Path(args.output_dir) / f"checkpoint-{state.global_step}" / COMPLETE).touch()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        if self.report and state.is_world_process_zero and logs and "loss" in logs:
            self.report(state.global_step, state.max_steps, float(logs["loss"]))


def last_complete(folder: Path, *, clean: bool) -> Path | None:
    """The newest complete resume point, or None. ``clean`` removes incomplete ones."""
    points = sorted(folder.glob("checkpoint-*"), key=lambda point: int(point.name.rpartition("-")[2]))
    complete = [point for point in points if (point / COMPLETE).exists()]
    if clean:
        for point in set(points) - set(complete):
            shutil.rmtree(point)
    return complete[-1] if complete else None


def refuse_nan(trainer: Any, learning_rate: float) -> None:
    """Makes ``trainer`` raise a UserError at the first loss that is not finite, before the optimiser step."""
    step = trainer.training_step

    def checked(*arguments: Any, **named: Any) -> torch.Tensor:
        loss = step(*arguments, **named)
        if not torch.isfinite(loss).all():
            raise UserError(
                f"the training loss is {float(loss)} at step {trainer.state.global_step + 1}; it must be a finite "
                f"number; lower learning_rate ({learning_rate:g}), or look at the data and the base's dtype"
            )
        return loss

    trainer.training_step = checked


@contextmanager
def untouched(vlm: VLM) -> Iterator[None]:
    """Restores the model afterwards: trainers wrap its forward, freeze its weights and insert adapters.

    While open, the base model's dropout is off (InstructBLIP's Q-Former has some), as when it answers.
    """
    model, side = vlm.model, vlm.tokenizer.padding_side
    attributes = dict(model.__dict__)
    trainable = {weight: weight.requires_grad for weight in model.parameters()}
    cache = model.config.get_text_config().use_cache
    dropouts = _dropouts(model)
    for module, name, _ in dropouts:
        setattr(module, name, 0.0)
    try:
        yield
    finally:
        _without_adapters(model)
        _without_checkpointing(model)
        for name in set(model.__dict__) - set(attributes):
            del model.__dict__[name]
        model.__dict__.update(attributes)
        for module, name, share in dropouts:
            setattr(module, name, share)
        for weight, flag in trainable.items():
            weight.requires_grad_(flag)
            weight.grad = None
        model.config.get_text_config().use_cache = cache
        vlm.tokenizer.padding_side = side
        model.train(attributes["training"])


def _dropouts(model: nn.Module) -> list[tuple[nn.Module, str, float]]:
    """Modules with dropout, with the attribute and its rate: torch's layers and transformers' attentions."""
    found = [(module, "p", module.p) for module in model.modules() if isinstance(module, nn.Dropout)]
    named = [(module, "attention_dropout", getattr(module, "attention_dropout", None)) for module in model.modules()]
    return found + [(module, name, share) for module, name, share in named if isinstance(share, float)]


def _without_checkpointing(model: Any) -> None:
    if any(getattr(module, "gradient_checkpointing", False) for module in model.modules()):
        model.gradient_checkpointing_disable()
    # TRL and the Trainer both add these hooks, and transformers only remembers and removes the second set.
    for module in model.modules():
        for key, hook in list(module._forward_hooks.items()):
            if "make_inputs_require_grads" in getattr(hook, "__qualname__", ""):
                del module._forward_hooks[key]


def _without_adapters(model: nn.Module) -> None:
    from peft.tuners.tuners_utils import BaseTunerLayer

    for name, module in list(model.named_modules()):
        if isinstance(module, BaseTunerLayer):
            parent, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(parent), leaf, module.get_base_layer())
