"""Runs an experiment's steps on a pretended device and says what each would hold and take.

Importing this module loads no torch.
"""

import gc
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.config import Run
from experiments.planning.memory_trace import Cost, Recorder
from experiments.planning.models import Asked, Blueprint, blueprint, build
from interp.checkpoints.config import ModelConfig
from interp.checkpoints.memory import GIB, free_memory
from interp.errors import UserError

if TYPE_CHECKING:
    import torch

    from experiments.planning.model_calls import Step
    from experiments.shapes.ledger import Ledger
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
    from interp.checkpoints.load import resolve_device

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
    from experiments.planning.model_calls import steps_of
    from experiments.shapes.device import Unsupported, world
    from experiments.shapes.ledger import Rates
    from interp.checkpoints.load import dtype_on

    model = run.weights
    steps = steps_of(run)
    room = room_of(gpu_gib, model)
    plan = blueprint(model)
    import torch

    dtype = dtype_on(model.dtype, torch.device("cpu")) if not room.on_gpu else _on_gpu(model.dtype)
    try:
        with world(fused=True) as pretended, tempfile.TemporaryDirectory() as folder:
            pretended.ledger.rates = Rates(*rates)
            stage = Stage(run, asked, room, plan, dtype, pretended.ledger, Path(folder), four_bit=_four_bit(run))
            vlm = stage.vlm
            weights = pretended.ledger.now
            encoded = vlm.encode(asked.prompts(1))
            tokens = int(encoded["input_ids"].shape[1])
            image = 0
            if not vlm.layout.cross_attended:
                image = int((encoded["input_ids"].cpu() == vlm.layout.image_token_id(vlm.model.config)).sum())
            parameters = sum(weight.numel() for weight in vlm.model.parameters())
            del encoded, vlm
            outcomes = [stage.outcome(step, tokens) for step in steps]
    except Unsupported as error:
        raise UserError(f"task=plan cannot be done here ({error}); use the torch of constraints.txt") from error
    finally:
        gc.unfreeze()
    kernel = "one fused kernel (flash or memory-efficient), as sdpa chooses on CUDA"
    if model.attn_implementation == "eager":
        kernel = "taken apart (attn_implementation=eager), so that queries × keys are held"
    return Measured(
        room.title,
        room.usable,
        weights,
        parameters,
        str(dtype).removeprefix("torch."),
        plan.origin,
        plan.stand_in,
        tokens,
        image,
        kernel,
        outcomes,
    )


def _on_gpu(name: str) -> "torch.dtype":
    import torch

    found = torch.bfloat16 if name == "auto" else getattr(torch, name)
    assert isinstance(found, torch.dtype)
    return found


def _four_bit(run: Run) -> bool:
    return bool(getattr(getattr(run.task, "settings", None), "four_bit", False))


@dataclass
class Stage:
    """The pretended device with the model on it, made anew where a step has left something in it."""

    run: Run
    asked: Asked
    room: Room
    plan: Blueprint
    dtype: "torch.dtype"
    ledger: "Ledger"
    folder: Path
    four_bit: bool = False
    _vlm: "VLM | None" = field(default=None)
    _answered: int | None = None
    _plain: tuple[int, int] | None = None  # rows and columns of the prompts that the first arm reads

    @property
    def vlm(self) -> "VLM":
        """The model, placed on the device whether it fits there or not."""
        if self._vlm is None:
            gc.unfreeze()
            gc.collect()
            self._vlm = placed(build(self.plan, self.run.weights, self.dtype))
            gc.freeze()  # what is there now need not be looked through again
        return self._vlm

    def outcome(self, step: "Step", tokens: int) -> Outcome:
        """A step at the most rows that fit, halved as a study halves them."""
        budget = self.run.batch_size if self.run.batch_tokens is None else self.run.batch_tokens // tokens
        rows = step.rows or max(1, min(self.run.batch_size, budget))
        asked = rows
        if step.generates:  # none is lighter than the plain answer, which is the first
            rows = min(rows, self._answered or rows)
        try:
            while rows:
                if (cost := self.cost(step, rows, self.room.usable)) is not None and cost.peak <= self.room.usable:
                    if step.generates and step.rows is None and self._answered is None:
                        self._answered = rows
                    return self._outcome(step, rows, asked, rows, cost)
                rows //= 2
            cost = self.cost(step, 1, None)
            assert cost is not None
            return self._outcome(step, 0, asked, 1, cost)
        except UserError as error:
            return Outcome(step.name, 0, asked, trains=step.trains, error=str(error))
        except Exception as error:  # the others are still worth knowing
            reason = f"on shapes it fails ({type(error).__name__}: {str(error).partition(chr(10))[0]})"
            return Outcome(step.name, 0, asked, trains=step.trains, error=reason)

    def _outcome(self, step: "Step", fits: int, asked: int, rows: int, cost: Cost) -> Outcome:
        times = step.times(self.vlm) if callable(step.times) else step.times
        each = 2 if step.trains else max(rows, step.least)
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

    def holds_weights(self, step: "Step", capacity: int | None) -> bool:
        """Whether the weights alone fit, which a step that trains on them in 4 bits packs first."""
        vlm = self.vlm
        if step.trains and self.four_bit:
            _packed(vlm)
        return capacity is None or self.ledger.now <= capacity

    def cost(self, step: "Step", rows: int, capacity: int | None) -> Cost | None:
        """A batch of ``rows``; None where the device of ``capacity`` bytes runs out of memory."""
        import torch

        from experiments.planning.model_calls import Scene
        from interp.batching import BatchRule, out_of_memory

        if not self.holds_weights(step, capacity):
            return None
        short = min(self.run.max_new_tokens, PLANNED_TOKENS + step.settling)
        long = self.run.max_new_tokens if self.run.protocol == "generate" else 1
        short = min(short, long)
        recorder = Recorder(self.ledger)
        scene = Scene(self.run, self.vlm, self.asked, self.folder, short, self.room.on_gpu, recorder.begin)
        self.ledger.capacity = capacity
        try:
            with recorder.following(self.vlm), self.vlm.batches.by(BatchRule(rows, None), on_lowered=_refuse):
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
    import torch

    raise torch.OutOfMemoryError(f"no more than {rows} rows fit")


def placed(vlm: "VLM") -> "VLM":
    """``vlm`` with its model on ``pretend:0``; call it inside ``experiments.shapes.device.world``."""
    import torch

    from experiments.shapes.device import NAME, place

    place(vlm.model, {"": torch.device(NAME, 0)})
    return vlm


def _packed(vlm: "VLM") -> None:
    """Gives the decoder's linear layers the memory that they have in 4 bits; what unpacks them is not counted."""
    from torch import nn

    for module in vlm.layout.module(vlm.model, "layers").modules():
        if isinstance(module, nn.Linear):
            storage = module.weight.memory  # type: ignore[attr-defined]
            size = int(module.weight.numel() * FOUR_BITS)
            if storage.size > size:
                storage.account.now -= storage.size - size
                storage.size = size
