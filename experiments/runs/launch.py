"""The processes of one ``accelerate launch`` or ``torchrun``: this one's rank, its share of the work, and barriers.

Accelerate starts the process group. torch is imported only if there is more than one process. They communicate over
gloo on any device.
"""

import atexit
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import Console

from interp.errors import UserError

if TYPE_CHECKING:
    from interp.checkpoints.config import ModelConfig

T = TypeVar("T")
MEETING = timedelta(minutes=5)  # within which all processes must have started
PATIENCE = timedelta(days=30)  # longest wait at a barrier: for the slowest share, or for rank 0's own work


@dataclass(frozen=True)
class Launch:
    """This process (``rank``, from 0) among ``size``. With a single process no method waits."""

    rank: int = 0
    size: int = 1

    @classmethod
    def current(cls) -> "Launch":
        """Return the launch described by RANK and WORLD_SIZE.

        Raises:
            UserError: it sets one without the other, or a rank outside the size.
        """
        size = os.environ.get("WORLD_SIZE", "1")
        if size == "1":
            return cls()
        rank = os.environ.get("RANK", "")
        if not (size.isdigit() and rank.isdigit() and int(rank) < int(size)):
            raise UserError(
                f"WORLD_SIZE={size} with RANK={rank or 'nothing'}: not the environment of a launcher; start the "
                "processes with accelerate launch or torchrun, or unset WORLD_SIZE"
            )
        return cls(int(rank), int(size))

    @property
    def first(self) -> bool:
        """True on rank 0, which decides, writes and prints for all."""
        return self.rank == 0

    def console(self) -> Console:
        """Return a console that prints on rank 0 and is quiet elsewhere."""
        return Console(quiet=not self.first)

    def share(self, items: Sequence[T]) -> list[T]:
        """Return this process's items: every ``size``-th, so that expensive and cheap ones are spread evenly."""
        return list(items[self.rank :: self.size])

    def join(self) -> None:
        """Wait until all processes have started; show other libraries' progress bars on rank 0 only.

        Raises:
            UserError: not all of them came, or they are on several machines.
        """
        if self.size == 1:
            return
        if not self.first:
            os.environ.setdefault("TQDM_DISABLE", "1")
        address = f"{os.environ.get('MASTER_ADDR', 'no MASTER_ADDR')}:{os.environ.get('MASTER_PORT', 'no MASTER_PORT')}"
        meeting = f"WORLD_SIZE={self.size}: {self.size} processes of one launch meet at {address}"
        if self.first:
            words = "waiting for the others, 5 minutes at most (only one process? unset WORLD_SIZE and RANK)"
            print(f"{meeting}; {words}", file=sys.stderr, flush=True)
        try:
            _group()
        except (RuntimeError, ValueError, OSError) as error:
            raise UserError(
                f"{meeting}, but not all processes came ({str(error).splitlines()[0][:120]}); start all of them with "
                "accelerate launch or torchrun, or unset WORLD_SIZE and RANK for a single process"
            ) from error
        if len(machines := set(self.everyones(platform.node()))) > 1:
            raise UserError(
                f"WORLD_SIZE={self.size}: the processes are on {len(machines)} machines, and a run's files are on "
                "one; start all processes on one machine"
            )

    def wait(self) -> None:
        """Wait until all processes have reached this point."""
        self.everyones(None)

    def everyones(self, value: Any) -> list[Any]:
        """Return the values of all processes, by rank; wait until all have given theirs.

        Raises:
            UserError: another process has ended.
        """
        values = [value] * self.size
        if self.size > 1:
            import torch.distributed as dist

            try:
                dist.all_gather_object(values, value, group=_group())
            except (RuntimeError, ValueError, OSError) as error:  # gloo's messages are about addresses and sockets
                raise UserError(
                    "another process of this launch has ended or never started; run the same command again to continue "
                    f"({str(error).splitlines()[0][:120]})"
                ) from error
        return values

    def placed(self, model: "ModelConfig") -> "ModelConfig":
        """Return the model placed on this process's GPU, round robin if there are fewer GPUs; unchanged on a CPU.

        Raises:
            UserError: ``model.device_map`` would spread every process over all cards.
        """
        if self.size == 1:
            return model
        if model.device_map is not None:
            raise UserError(
                f"WORLD_SIZE={self.size} and model.device_map={model.device_map}: each process would spread "
                f"{model.name} over all cards; start one process, or remove device_map"
            )
        import torch

        from interp.checkpoints.load import resolve_device

        device = resolve_device(model.device)
        if device.type != "cuda" or device.index is not None:
            return model
        local = int(os.environ.get("LOCAL_RANK", self.rank))
        return replace(model, device=f"cuda:{local % torch.cuda.device_count()}")


@contextmanager
def whole_weights() -> Iterator[None]:
    """Let every process load the model's weights in full while the block is open.

    Under a launch for FSDP or ZeRO-3, transformers gives all but one process of a machine empty weights or a shard.
    That is right for training and useless for answering.
    """
    name = "ACCELERATE_USE_FSDP"
    before = os.environ.get(name)
    if before is not None:
        os.environ[name] = "false"
    if (zero := sys.modules.get("transformers.integrations.deepspeed")) is not None:
        zero.unset_hf_deepspeed_config()  # of a training that is over
    try:
        yield
    finally:
        if before is not None:
            os.environ[name] = before


def sharded(task: T) -> T:
    """Mark a task (a function or a class) that shares its cases out among the processes of a launch."""
    task.sharded = True  # type: ignore[attr-defined]
    return task


def check_task(task: Any, launch: Launch) -> None:
    """Refuse a task that every process would do in full.

    Raises:
        UserError: the launch has several processes and the task is not ``sharded``.
    """
    function = getattr(task, "func", task)  # of a partial
    if launch.size > 1 and not getattr(function, "sharded", False):
        name = getattr(function, "__name__", type(function).__name__)
        raise UserError(
            f"WORLD_SIZE={launch.size}: {name} works in one process; start it with python -m experiments.run; only "
            "task=study, and tasks that run it, divide cases among processes"
        )


@cache
def _group() -> Any:
    """Return a gloo group of the launch, which waits as long as ``PATIENCE``.

    Training in the same processes later finds the default group of ``PartialState`` there.
    """
    import torch.distributed as dist
    from accelerate import PartialState

    PartialState(timeout=MEETING)
    atexit.register(_leave)
    return dist.new_group(backend="gloo", timeout=PATIENCE)


def _leave() -> None:
    """End the threads of the groups; otherwise they may abort a process that ends."""
    import torch.distributed as dist

    _group.cache_clear()
    if dist.is_initialized():
        dist.destroy_process_group()
