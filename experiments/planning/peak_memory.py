"""Runs an experiment's steps on a pretended device and says what each would hold and take."""

import gc
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from experiments.config import Run
from experiments.planning.memory_trace import Cost, Recorder
from experiments.planning.model_calls import Scene, Step, steps_of
from experiments.planning.models import Asked, Blueprint, blueprint, build
from experiments.shapes.device import NAME, Unsupported, place, world
from experiments.shapes.ledger import Ledger, Rates
from interp.batching import BatchRule, out_of_memory
from interp.checkpoints.config import ModelConfig
from interp.checkpoints.load import dtype_on, resolve_device
from interp.checkpoints.memory import GIB, free_memory
from interp.errors import UserError
from interp.vlm import VLM

PLANNED_TOKENS = 4  # of an answer; the later ones each add as much as the last, as no earlier one does (kept prefills)
CONTEXT_GIB = 0.75  # assumed: CUDA, its libraries and their workspaces
LOST = 0.03  # assumed: the share of a card that is lost between blocks
FOUR_BITS = 0.516  # bytes a weight in NF4 with double quantisation: 4.127 bits (Dettmers et al. 2023)


@dataclass(frozen=True)
class Room:
    """The device that is planned for; ``usable`` bytes of it are for tensors."""

    title: str
    usable: int
    on_gpu: bool


@dataclass(frozen=True)
class Outcome:
    """What came of a step: ``rows`` at which it fits, or 0; ``asked`` rows it was to have; its cost at the former, or
    at one row where it does not fit; or ``error`` where it cannot be planned."""

    step: str
    rows: int
    asked: int
    peak: int = 0
    seconds: float = 0.0  # of the whole study for a case, or for an optimiser step
    trains: bool = False
    error: str = ""
    left_out: str = ""
    cases: int | None = None  # that the study does it with at most; None: all
    shared: float = 0.0  # of ``seconds``, what goes into reading prompts that the first arm has read


@dataclass(frozen=True)
class Measured:
    """A plan's numbers. Sizes are in bytes."""

    room: str
    usable: int
    weights: int
    parameters: int
    dtype: str
    origin: str
    stand_in: bool
    tokens: int
    image_tokens: int
    attention: str
    outcomes: list[Outcome]


def room_of(gpu_gib: float | None, model: ModelConfig) -> Room:
    """The card of ``gpu_gib``, or else what is free now on the device that the model would go to.

    Raises:
        UserError: the device is not there, or its free memory is not known.
    """
    if gpu_gib is not None:
        usable = int(gpu_gib * GIB * (1 - LOST) - CONTEXT_GIB * GIB)
        return Room(f"a GPU of {gpu_gib:g} GiB", max(0, usable), True)
    device = resolve_device(model.device, model.name)
    free = free_memory(device)
    if free is None:
        raise UserError(f"how much memory {device} has is not known here; say it with task.gpu_gib=<GiB>")
    on_gpu = device.type == "cuda"
    return Room(f"{device}, {free / GIB:.1f} GiB of it free now", int(free * (1 - LOST * on_gpu)), on_gpu)


def measured(run: Run, asked: Asked, gpu_gib: float | None, rates: tuple[float, float, float]) -> Measured:
    """All steps of ``run`` on that device, which manages ``rates`` (``experiments.shapes.ledger.Rates``).

    Raises:
        UserError: an unknown model, a task that is not planned, or a torch that cannot pretend a device.
    """
    model = run.weights
    steps = steps_of(run)
    room = room_of(gpu_gib, model)
    plan = blueprint(model)
    if not room.on_gpu:
        dtype = dtype_on(model.dtype, torch.device("cpu"))
    else:
        dtype = torch.bfloat16 if model.dtype == "auto" else getattr(torch, model.dtype)
    try:
        with world() as pretended, tempfile.TemporaryDirectory() as folder:
            pretended.ledger.rates = Rates(*rates)
            stage = Stage(run, asked, room, plan, dtype, pretended.ledger, Path(folder))
            parameters = sum(weight.numel() for weight in stage.vlm.model.parameters())
            weights = pretended.ledger.now
            tokens, image = stage.tokens()
            outcomes = [stage.outcome(step, tokens) for step in steps]
    except Unsupported as error:
        raise UserError(f"task=plan cannot be done here ({error}); use the torch of constraints.txt") from error
    finally:
        gc.unfreeze()
    kernel = "one fused kernel (flash or memory-efficient), as sdpa chooses on CUDA"
    if model.attn_implementation == "eager":
        kernel = "taken apart (attn_implementation=eager), so that queries × keys are held"
    return Measured(
        room=room.title,
        usable=room.usable,
        weights=weights,
        parameters=parameters,
        dtype=str(dtype).removeprefix("torch."),
        origin=plan.origin,
        stand_in=plan.stand_in,
        tokens=tokens,
        image_tokens=image,
        attention=kernel,
        outcomes=outcomes,
    )


@dataclass
class Stage:
    """The pretended device with the model on it, made anew where a step has left something in it."""

    run: Run
    asked: Asked
    room: Room
    plan: Blueprint
    dtype: torch.dtype
    ledger: Ledger
    folder: Path
    _vlm: VLM | None = field(default=None)
    _answered: int | None = None
    _plain: tuple[int, int] | None = None  # rows and columns of the prompts that the first arm reads

    @property
    def vlm(self) -> VLM:
        """The model, placed on the device whether it fits there or not."""
        if self._vlm is None:
            gc.unfreeze()
            gc.collect()
            self._vlm = placed(build(self.plan, self.run.weights, self.dtype))
            gc.freeze()  # what is there now need not be looked through again
        return self._vlm

    def tokens(self) -> tuple[int, int]:
        """Of a prompt, and of its picture among them."""
        layout, ids = self.vlm.layout, self.vlm.encode(self.asked.prompts(1))["input_ids"]
        image = 0 if layout.cross_attended else (ids.cpu() == layout.image_token_id(self.vlm.model.config)).sum()
        return int(ids.shape[1]), int(image)

    def outcome(self, step: Step, tokens: int) -> Outcome:
        """A step at the most rows that fit, halved as a study halves them."""
        budget = self.run.batch_size if self.run.batch_tokens is None else self.run.batch_tokens // tokens
        asked = rows = step.rows or max(1, min(self.run.batch_size, budget))
        if step.generates:  # none is lighter than the plain answer, which is the first
            rows = min(rows, self._answered or rows)
        try:
            while rows:
                if (cost := self.cost(step, rows, self.room.usable)) is not None and cost.peak <= self.room.usable:
                    if step.generates and step.rows is None and self._answered is None:
                        self._answered = rows
                    return self._outcome(step, rows, asked, cost)
                rows //= 2
            cost = self.cost(step, 1, None)
            assert cost is not None
            return self._outcome(step, 0, asked, cost)
        except UserError as error:
            why = str(error)
        except Exception as error:  # the others are still worth knowing
            why = f"on shapes it fails ({type(error).__name__}: {str(error).partition(chr(10))[0]})"
        return Outcome(step.name, 0, asked, trains=step.trains, error=why)

    def _outcome(self, step: Step, fits: int, asked: int, cost: Cost) -> Outcome:
        times = step.times(self.vlm) if callable(step.times) else step.times
        each = 2 if step.trains else max(fits, 1, step.least)
        again = 0.0
        if step.generates and cost.prompts is not None:
            again = times - 1 if self._plain is None else times if cost.prompts == self._plain else 0.0
            self._plain = self._plain or cost.prompts
        return Outcome(
            step.name,
            fits,
            asked,
            cost.peak,
            cost.seconds * times / each,
            step.trains,
            left_out=step.left_out,
            cases=step.cases,
            shared=cost.reading * again / each,
        )

    def cost(self, step: Step, rows: int, capacity: int | None) -> Cost | None:
        """A batch of ``rows``; None where the device of ``capacity`` bytes runs out of memory."""
        vlm = self.vlm
        if step.trains and self.run.task.settings.four_bit:  # type: ignore[attr-defined]
            packed(vlm)
        if capacity is not None and self.ledger.now > capacity:  # the weights alone do not fit
            return None
        long = self.run.max_new_tokens if self.run.protocol == "generate" else 1
        short = min(long, PLANNED_TOKENS + step.settling)
        recorder = Recorder(self.ledger)
        scene = Scene(self.run, vlm, self.asked, self.folder, short, self.room.on_gpu, recorder.begin)
        self.ledger.capacity = capacity
        try:
            with recorder.following(vlm), vlm.batches.by(BatchRule(rows, None), on_lowered=_refuse):
                step.do(scene, rows)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            return None
        except UserError as error:
            if "not enough memory" not in str(error):
                raise
            return None
        finally:
            self.ledger.capacity = None
            recorder.end()
            torch.set_grad_enabled(True)
            if step.alters:
                del scene
                self._vlm = None
        if step.generates and long > short:
            return recorder.longer(short, long)
        return recorder.cost()


def _refuse(rows: int) -> None:
    """Lets a loop that would go on with fewer rows end, so that the plan knows at what batch all of it fits."""
    raise torch.OutOfMemoryError(f"no more than {rows} rows fit")


def placed(vlm: VLM) -> VLM:
    """``vlm`` with its model on ``pretend:0``; call it inside ``experiments.shapes.device.world``."""
    place(vlm.model, {"": torch.device(NAME, 0)})
    return vlm


def packed(vlm: VLM) -> None:
    """Gives the decoder's linear layers the memory that they have in 4 bits; what unpacks them is not counted."""
    for module in vlm.layout.module(vlm.model, "layers").modules():
        if isinstance(module, nn.Linear):
            storage = module.weight.memory  # type: ignore[attr-defined]
            size = int(module.weight.numel() * FOUR_BITS)
            if storage.size > size:
                storage.account.now -= storage.size - size
                storage.size = size
