"""What keeps a training sound when it is interrupted: complete resume points, a stop at NaN, a model put back."""

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

COMPLETE = "complete"  # a file in a resume point that was written to its end


class Marker(TrainerCallback):
    """Marks a resume point once every process has written its part of it, and passes losses on."""

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
    """The newest resume point that was written to its end; with ``clean`` those that were not are removed."""
    points = sorted(folder.glob("checkpoint-*"), key=lambda point: int(point.name.rpartition("-")[2]))
    complete = [point for point in points if (point / COMPLETE).exists()]
    if clean:
        for point in set(points) - set(complete):
            shutil.rmtree(point)
    return complete[-1] if complete else None


def refuse_nan(trainer: Any, learning_rate: float) -> None:
    """Makes ``trainer`` stop with one UserError at the first loss that is not finite, before that step is taken."""
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
    """Puts the model back as it was: trainers wrap its forward, freeze its weights and put adapters into it.

    Meanwhile its own dropout is off (InstructBLIP's Q-Former has some): the frozen base is trained on as it answers.
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
    """Modules with the attribute that says how much they drop: torch's own layers, and transformers' attentions."""
    found = [(module, "p", module.p) for module in model.modules() if isinstance(module, nn.Dropout)]
    named = [(module, "attention_dropout", getattr(module, "attention_dropout", None)) for module in model.modules()]
    return found + [(module, name, share) for module, name, share in named if isinstance(share, float)]


def _without_checkpointing(model: Any) -> None:
    if any(getattr(module, "gradient_checkpointing", False) for module in model.modules()):
        model.gradient_checkpointing_disable()
    # Both TRL and the Trainer put these hooks in, and transformers remembers, and would take out, the second set alone.
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
