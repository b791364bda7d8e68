"""Launches of one study, killed and continued: ``python -m tests.experiments.study_job <model> <folder> <plan>``.

A plan is a word a run: sizes of its launches, all but the last killed at a random moment, as ``2,3,1``. What is
imported here is imported once: each process of a launch is a fork. Prints a line of JSON a run: what it left, and how
many records every launch found.
"""

import json
import os
import random
import signal
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path

import experiments.report.build  # noqa: F401
import interp.vlm  # noqa: F401
import mitigation.vcd  # noqa: F401
from experiments.config import Run
from experiments.runs.launch import Launch
from tests.experiments.compose import run_of

SIZES = ("limit=8", "batch_size=2", "draws=20", "max_new_tokens=2", "attention=false")
ARMS = 7
EXPECTED = 8 * (ARMS + 2)  # lines of predictions and of the development split


def process(run: Run, rank: int, size: int, port: int) -> None:
    """The life of one process of a launch."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    Launch.current().join()
    run.task(run)


def launched(run: Run, size: int) -> list[int]:
    """The process ids of a launch."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    found = []
    for rank in range(size):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                process(run, rank, size, port)
                code = 0
            except BaseException as error:
                print(f"process {rank} of {size}: {error!r}", file=sys.stderr, flush=True)
            os._exit(code)
        found.append(child)
    return found


def lines(root: Path) -> int:
    """How many whole lines are in the files of the run so far, parts and all."""
    files = [*root.glob("*/*/predictions*.jsonl"), *root.glob("*/*/development*.jsonl")]
    return sum(path.read_bytes().count(b"\n") for path in files if path.exists())


def killed(run: Run, size: int, rng: random.Random) -> int:
    """Launches the run and kills it at a random moment; how many lines were there."""
    root = Path(run.output_root)
    before = lines(root)
    target = rng.randint(before, max(before, EXPECTED - 2))
    children = launched(run, size)
    while lines(root) < target:
        time.sleep(0.005)
    time.sleep(rng.uniform(0, 0.05))
    rng.shuffle(children)  # one dies first, as where memory runs out; the launcher then ends the others
    for child in children:
        os.kill(child, signal.SIGKILL)
    assert -signal.SIGKILL in [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    return lines(root)


def main(model: str, folder: Path, plans: list[str]) -> None:
    rng = random.Random(0)
    for number, plan in enumerate(plans):
        *broken, last = (int(size) for size in plan.split(","))
        root = folder / str(number)
        run = run_of("+exp=vcd_llava", f"model.path={model}", f"output_root={root}", *SIZES)
        run = replace(run, config=run.config | {"plan": number})
        found = [killed(run, size, rng) for size in broken]
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in launched(run, last)]
        runs = [str(path.parent) for path in root.glob("*/*/metrics.json")]
        print(json.dumps({"plan": plan, "codes": codes, "found": found, "runs": runs}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
