"""Trains one adapter with TRL and peft, from a dataset to a checkpoint, and resumes interrupted runs.

While training, ``out/`` has the resume points in ``trainer/``. They are the only pickles, are read only from this run's
folder, and are deleted at the end. Afterwards ``out/`` has ``adapter/``, ``training.json`` (losses) and, optionally,
``tensorboard/``. ``adapter/`` is renamed into place last: if it exists, the run is finished. The same call under
``accelerate launch`` trains on several processes; only rank 0 writes. ``trainer=sft`` is supervised fine-tuning;
``trainer=dpo`` is TRL's DPO for vision, which prefers the grounded verdict over the one that the text suggests.
"""

import copy
import dataclasses
import functools
import json
import math
import os
import random
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import MethodType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import pad
from transformers import PrinterCallback, Trainer, TrainerCallback

from interp.atomic import atomic_write
from interp.checkpoints.config import ModelConfig, is_other
from interp.checkpoints.load import resolve_device
from interp.errors import UserError
from interp.loading import load
from interp.tensor_file import TrainingRows
from interp.vlm import VLM
from mitigation.vrtuning import checkpoint
from mitigation.vrtuning.collator import IGNORED, Collator
from mitigation.vrtuning.data import check_dataset, data_digest, rows_of
from mitigation.vrtuning.model import load_four_bit, lora_config
from mitigation.vrtuning.settings import Settings, total_steps

if TYPE_CHECKING:
    from datasets import Dataset

Report = Callable[[int, int, float], None]  # step, steps, loss
COMPLETE = "complete"  # marker file in a completely written resume point
PROJECT = "forestlens"  # in trackio
LOGGED = 500  # losses of a run, at most
PER_TOKEN = ("log_probs", "entropy", "log_sum_sq_probs", "mean_logits", "is_top1")  # of TRL's fused head
VERSIONS = ("torch", "transformers", "trl", "peft")


@dataclass(frozen=True)
class Trained:
    """A finished training.

    ``losses`` are (optimiser step, mean training loss since the previous entry). ``resumed_at`` is the step that this
    call continued from: 0 for a new run, ``steps`` for a finished one.
    """

    adapter: Path
    steps: int
    resumed_at: int
    losses: list[tuple[int, float]]
    seconds: float


def train(
    model: VLM | ModelConfig,
    dataset: "Dataset",
    settings: Settings,
    out: Path,
    *,
    data: str = "",
    report: Report | None = None,
) -> Trained:
    """Train an adapter for ``model`` on ``dataset`` (see ``data.py``) into ``out``. A ``VLM`` is copied first.

    If ``out`` is unfinished, training resumes from the last resume point; if finished, its result is returned. ``data``
    describes the examples in the model card; ``report`` is called with every logged loss.

    Raises:
        UserError: the dataset is empty, or lacks pictures or the trainer's columns. ``out`` has another training. A
            loss is not finite. 4-bit weights are not supported here.
    """
    check_dataset(dataset, settings.trainer)
    out = Path(out)
    if settings.four_bit and isinstance(model, VLM):
        raise UserError(
            f"four_bit=true for {model.name}, which is in memory already; give the ModelConfig to load it by"
        )
    vlm = model if isinstance(model, VLM) else _load(model, settings)
    steps = total_steps(settings, len(dataset), processes())
    origin = _origin(model, vlm, dataset, settings, steps, data)
    if (done := _finished(out, origin)) is not None:
        return done
    _claim(out, origin)
    if isinstance(model, VLM):  # a copy, since trainers wrap forwards, freeze weights and insert adapters
        vlm = VLM(copy.deepcopy(vlm.model), copy.deepcopy(vlm.processor), name=vlm.name, revision=vlm.revision)
    _without_dropout(vlm.model)
    with _generators_kept(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*gradient_checkpointing.* is deprecated", FutureWarning)  # by TRL
        return _run(vlm, dataset, settings, out, origin, report)


@contextmanager
def _generators_kept() -> Iterator[None]:
    """Restore the random generators afterwards, so that a study's draws do not depend on training."""
    python, numbers = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numbers)


class Marker(TrainerCallback):
    """Marks a resume point once every process has written its part, and reports losses."""

    def __init__(self, report: Report | None = None) -> None:
        self.report = report

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        args.distributed_state.wait_for_everyone()
        if state.is_world_process_zero:
            (Path(args.output_dir) / f"checkpoint-{state.global_step}" / COMPLETE).touch()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        if self.report and state.is_world_process_zero and logs and "loss" in logs:
            self.report(state.global_step, state.max_steps, float(logs["loss"]))


def _run(
    vlm: VLM,
    dataset: "Dataset",
    settings: Settings,
    out: Path,
    origin: checkpoint.Origin,
    report: Report | None,
) -> Trained:
    started = time.monotonic()
    trainer = _trainer(vlm, dataset, settings, out, origin.steps)
    trainer.add_callback(Marker(report))
    _refuse_nan(trainer, settings.learning_rate)
    point = _last_complete(out / "trainer", clean=trainer.is_world_process_zero())
    trainer.accelerator.wait_for_everyone()
    trainer.train(resume_from_checkpoint=str(point) if point else None)
    losses = [(int(entry["step"]), float(entry["loss"])) for entry in trainer.state.log_history if "loss" in entry]
    seconds = time.monotonic() - started
    if trainer.is_world_process_zero():
        adapted = trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=False)
        done = dataclasses.replace(origin, final_loss=losses[-1][1])
        _publish(adapted, out, done, rows_of(dataset), losses, seconds)
    trainer.accelerator.wait_for_everyone()
    resumed_at = int(point.name.rpartition("-")[2]) if point else 0
    return Trained(out / "adapter", trainer.state.global_step, resumed_at, losses, seconds)


def _last_complete(folder: Path, *, clean: bool) -> Path | None:
    """Return the newest complete resume point, or None. ``clean`` removes incomplete ones."""
    points = sorted(folder.glob("checkpoint-*"), key=lambda point: int(point.name.rpartition("-")[2]))
    complete = [point for point in points if (point / COMPLETE).exists()]
    if clean:
        for point in set(points) - set(complete):
            shutil.rmtree(point)
    return complete[-1] if complete else None


def _refuse_nan(trainer: Any, learning_rate: float) -> None:
    """Make ``trainer`` raise a UserError at the first loss that is not finite, before the optimiser step."""
    step = trainer.training_step

    def checked(*arguments: Any, **named: Any) -> torch.Tensor:
        loss = step(*arguments, **named)
        if not torch.isfinite(loss).all():
            raise UserError(
                f"the training loss is {float(loss)} at step {trainer.state.global_step + 1}; it must be a finite "
                f"number; lower learning_rate ({learning_rate:g}), or check the data and the base's dtype"
            )
        return loss

    trainer.training_step = checked


def _without_dropout(model: nn.Module) -> None:
    """Switch the base model's dropout off, as in evaluation: torch's layers and transformers' attentions."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = 0.0  # type: ignore[assignment]


def processes() -> int:
    """Return how many processes train together, under a launcher."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def _load(config: ModelConfig, settings: Settings) -> VLM:
    device = resolve_device(config.device)
    if device.type == "cuda" and "LOCAL_RANK" in os.environ:
        config = dataclasses.replace(config, device=f"cuda:{os.environ['LOCAL_RANK']}")
    return load_four_bit(config) if settings.four_bit else load(config)


def _origin(
    model: VLM | ModelConfig, vlm: VLM, dataset: "Dataset", settings: Settings, steps: int, data: str
) -> checkpoint.Origin:
    return checkpoint.Origin(
        base=vlm.name,
        base_path=model.path if isinstance(model, ModelConfig) else "",
        base_revision=vlm.revision,
        base_preprocessing=vlm.preprocessing,
        data=data,
        data_digest=data_digest(dataset),
        examples=len(dataset),
        steps=steps,
        processes=processes(),
        settings=json.loads(json.dumps(dataclasses.asdict(settings))),
        final_loss=math.nan,
        versions={name: version(name) for name in VERSIONS},
    )


def _identity(origin: checkpoint.Origin) -> dict[str, Any]:
    """Return the fields that must be equal to resume a run."""
    identity = dataclasses.asdict(dataclasses.replace(origin, data="", base_path="", final_loss=0.0, versions={}))
    identity["settings"].pop("report_to", None)
    return identity


def _is_another(there: dict[str, Any], here: dict[str, Any]) -> bool:
    """Return whether two identities belong to different trainings."""
    name = "base_preprocessing"
    return there | {name: here[name]} != here or is_other(there.get(name), here[name])


def _finished(out: Path, origin: checkpoint.Origin) -> Trained | None:
    folder = out / "adapter"
    if not folder.exists():
        return None
    there = checkpoint.read_origin(folder)
    if there is None or _is_another(_identity(there), _identity(origin)):
        raise UserError(f"{out} has the adapter of another training; name a new folder, or remove this one")
    shutil.rmtree(out / "trainer", ignore_errors=True)  # left over if the run was killed just after finishing
    saved = json.loads((out / "training.json").read_text(encoding="utf-8"))
    losses = [(int(step), float(loss)) for step, loss in saved["losses"]]
    return Trained(folder, there.steps, there.steps, losses, float(saved["seconds"]))


def _claim(out: Path, origin: checkpoint.Origin) -> None:
    """Record the training's identity in ``out``, or check that existing resume points belong to it."""
    path = out / "trainer" / "run.json"
    text = json.dumps(_identity(origin), sort_keys=True)
    if path.is_file():
        if _is_another(json.loads(path.read_text(encoding="utf-8")), json.loads(text)):
            raise UserError(
                f"{out} has an unfinished training with other settings, data or base; name a new folder, or remove it"
            )
        return
    with atomic_write(path) as draft:  # every process writes the same
        draft.write_text(text, encoding="utf-8")


def _arguments(vlm: VLM, settings: Settings, out: Path, steps: int) -> dict[str, Any]:
    """Return the arguments common to TRL's two trainers."""
    gpu = vlm.device.type == "cuda"
    switched = {"auto": gpu, "on": True, "off": False}
    return {
        "output_dir": str(out / "trainer"),
        "max_steps": steps,
        "per_device_train_batch_size": settings.batch_size,
        "gradient_accumulation_steps": settings.accumulation,
        "learning_rate": settings.learning_rate,
        "lr_scheduler_type": "cosine",
        "warmup_steps": round(settings.warmup * steps),
        "weight_decay": settings.weight_decay,
        "max_grad_norm": settings.max_grad_norm,
        "bf16": switched[settings.bf16],
        "gradient_checkpointing": switched[settings.checkpointing],
        "max_length": None,  # TRL's default of 1024 would truncate image tokens
        "seed": settings.seed,
        "data_seed": settings.seed,
        "save_strategy": "steps",
        "save_steps": settings.save_steps,
        "save_total_limit": 2,
        "logging_steps": max(1, steps // LOGGED),
        "logging_nan_inf_filter": False,
        "report_to": settings.report_to,
        "project": PROJECT,
        "run_name": out.name,
        "trackio_static_space_id": False,  # a public page of the run is nobody's default
        "disable_tqdm": True,
        "use_cpu": vlm.device.type == "cpu",
        "dataloader_pin_memory": False,  # the collator's tensors are on the model's device already
        "remove_unused_columns": True,
        "ddp_find_unused_parameters": False,  # every example uses all trained weights
    }


def _trainer(vlm: VLM, dataset: "Dataset", settings: Settings, out: Path, steps: int) -> Any:
    from transformers.integrations import TensorBoardCallback
    from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

    nested = (
        "." in vlm.module_map.lm_head
    )  # TRL looks for head and decoder directly under the model; not so InstructBLIP
    if nested and settings.trainer == "dpo":
        raise UserError(
            f"trainer=dpo with {vlm.module_map.model_type}; TRL reads log-probabilities from a head directly under the "
            f"model, this family's is {vlm.module_map.lm_head}; choose trainer=sft"
        )
    arguments = _arguments(vlm, settings, out, steps)
    given: dict[str, Any] = {
        "model": vlm.model,
        "train_dataset": dataset,
        "processing_class": vlm.processor,
        "peft_config": lora_config(vlm.model, vlm.module_map, settings),
        "data_collator": Collator(vlm, settings.max_pixels),
    }
    trainer: Any
    if settings.trainer == "dpo":  # the reference is the same model with the adapter off: no second copy
        trainer = DPOTrainer(args=DPOConfig(**arguments, beta=settings.beta), **given)
    else:
        trainer = SFTTrainer(args=SFTConfig(**arguments, completion_only_loss=True), **given)
    if vlm.device.type == "cpu":
        _score_only_answers(vlm.model)
    if nested:
        trainer.compute_loss = MethodType(Trainer.compute_loss, trainer)
    trainer.remove_callback(PrinterCallback)
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, TensorBoardCallback) and callback.logging_dir is None:
            callback.logging_dir = str(out / "tensorboard")  # its default goes with the resume points
    trainer.processing_class = None  # the collator has its own; here it would be saved with every resume point
    return trainer


def _score_only_answers(model: Any) -> None:
    """Make TRL's fused head project only the answers' positions, as it does with its Triton kernel.

    Without the kernel it projects every position of the prompt on the vocabulary and ignores the result. This keeps the
    shapes of compiled kernels, and is nearly half of an update of a small decoder with a large vocabulary.
    """
    scored = model.forward

    def forward(*arguments: Any, **named: Any) -> Any:
        if not named.get("fused_lm_head") or named.get("labels") is None:
            return scored(*arguments, **named)
        labels = named.pop("labels")[:, 1:]
        answer = labels != IGNORED

        def drop_prompt(_: nn.Module, __: Any, output: Any) -> Any:
            states = output.last_hidden_state[:, :-1][answer]
            output.last_hidden_state = pad(states, (0, 0, 0, 1))[None]  # the head drops the last, as of a sequence
            return output

        hook = model.base_model.register_forward_hook(drop_prompt)
        try:
            output = scored(*arguments, labels=pad(labels[answer], (1, 0), value=IGNORED)[None], **named)
        finally:
            hook.remove()
        for name in PER_TOKEN:
            if (values := getattr(output, name, None)) is not None:
                setattr(output, name, values.new_zeros(answer.shape).masked_scatter(answer, values))
        output.label_mask = answer
        return output

    model.forward = functools.wraps(scored)(forward)


def _publish(
    adapted: Any,
    out: Path,
    origin: checkpoint.Origin,
    rows: TrainingRows,
    losses: list[tuple[int, float]],
    seconds: float,
) -> None:
    with atomic_write(out / "adapter") as draft:
        checkpoint.save(adapted, draft, origin, rows)
        (out / "training.json").write_text(json.dumps({"losses": losses, "seconds": seconds}) + "\n", encoding="utf-8")
    shutil.rmtree(out / "trainer")
