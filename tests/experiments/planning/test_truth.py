"""A plan's peak memory against that of a process that does the same: within 15%, weights included."""

import json
import os
import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY

ROWS = 4
WITHIN = 0.15
CHEAP = ("plain",)
OTHERS = (
    "vcd sequential",
    "vcd paired",
    "recording",
    "hidden states",
    "knockout",
    "patching",
    "read-out",
    "lora",
    "lora checkpointed",
)


def said(which: str, step: str) -> dict[str, float]:
    command = [sys.executable, "-W", "ignore", "-m", "tests.experiments.planning.truth", which, step, str(ROWS)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=1200)
    assert ended.returncode == 0, ended.stderr[-3000:]
    found: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return found


@pytest.mark.long
@pytest.mark.parametrize(
    "step", [*CHEAP, *(pytest.param(step, marks=pytest.mark.slow) for step in OTHERS)], ids=lambda step: step
)
def test_peak_memory_is_that_of_a_process_that_does_it(step: str) -> None:
    planned, real = said("plan", step), said("real", step)
    assert abs(planned["planned"] / real["peak"] - 1) < WITHIN, (planned, real)
    assert real["peak"] > 1.2 * real["weights"]  # else the weights alone would make it right
