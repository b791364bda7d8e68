"""A training of the tiny LLaVA as a process of its own: ``... out [--batch-size N] [--die-at STEP STEP ...]``.

With ``--die-at`` it starts the training once a step, each time in a fork of itself that is killed at that step.
"""

import argparse
import os
import signal
from dataclasses import replace
from pathlib import Path

from interp.vlm import VLM
from mitigation.vrtuning.data import Data, Row, from_rows
from mitigation.vrtuning.settings import Settings
from mitigation.vrtuning.train import Trained, train
from tests.tiny import picture, tiny_llava

STEPS = 5
SETTINGS = Settings(rank=4, steps=STEPS, batch_size=2, learning_rate=1e-2, save_steps=2, warmup=0.0)
VERDICTS = ("No", "Yes")


def tiny() -> VLM:
    """The base model, the same in every process."""
    return VLM(*tiny_llava(), name="tiny")


def data(count: int = 12, **options: bool) -> Data:
    """Verdicts about random pictures, No and Yes by turns, after a sentence of reasoning."""
    rows = [
        Row(picture(i), "Is this safe?", "the knife is red", VERDICTS[i % 2], rejected=VERDICTS[(i + 1) % 2])
        for i in range(count)
    ]
    return from_rows(rows, **options)  # type: ignore[arg-type]


def run(out: Path, *, batch_size: int = SETTINGS.batch_size, die_at: int | None = None) -> Trained:
    """Trains into ``out``; ends by SIGKILL once the loss of step ``die_at`` is known, before its resume point."""

    def report(step: int, steps: int, loss: float) -> None:
        if step == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    return train(tiny(), data().dataset, replace(SETTINGS, batch_size=batch_size), out, report=report)


def killed(out: Path, step: int) -> None:
    """Trains in a fork (everything is imported already) and makes sure that it was killed."""
    child = os.fork()
    if child == 0:
        run(out, die_at=step)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--batch-size", type=int, default=SETTINGS.batch_size)
    parser.add_argument("--die-at", type=int, nargs="+", default=[])
    given = parser.parse_args()
    for step in given.die_at:
        killed(given.out, step)
    if not given.die_at:
        done = run(given.out, batch_size=given.batch_size)
        # One write a line: two processes share this output.
        print(f"rank {os.environ.get('RANK', '0')}: {done.steps} steps\n", end="")


if __name__ == "__main__":
    main()
