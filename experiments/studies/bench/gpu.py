"""``python -m experiments.studies.bench.gpu``: the tests marked ``gpu``, the three benches, and one table.

On a GPU at the shapes of LLaVA-1.5-7B and Qwen2.5-VL-7B. The argument ``cpu`` rehearses this with small models. Every
step is a process, so that a failed step is a row of the table and frees its memory.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from experiments.studies.bench.harness import Row, table
from interp.errors import UserError

ROOT = Path(__file__).resolve().parents[3]
TESTS = "tests marked gpu"
SIZES = {"cuda": ("7b", "7b_qwen"), "cpu": ("organism",)}
STEPS = {
    "cuda": {"attention": "task.lengths=[700,3000]", "vcd": "task.items=[1,8]", "eval": "task.cases=[32]"},
    "cpu": {"attention": "task.lengths=[100]", "vcd": "task.items=[1]", "eval": "task.cases=[2]"},
}


def steps(device: str) -> dict[str, list[str]]:
    """Return the arguments of Python for each step."""
    tests = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu", "--continue-on-collection-errors", "tests"]
    command = ["-m", "experiments.run", f"task.device={device}", "task.repeats=5", "batch_tokens=32768"]
    return {TESTS: tests} | {
        f"{bench}, {size}": [*command, f"task=bench_{bench}", f"task.sizes=[{size}]", option]
        for bench, option in STEPS[device].items()
        for size in SIZES[device]
    }


def rows(name: str, arguments: list[str], out: Path) -> Iterator[Row]:
    """Run a step. Yield a row for each limit of a bench, for the tests, and for a failed step."""
    wanted = [] if name == TESTS else [f"output_root={out}"]
    code = subprocess.run([sys.executable, *arguments, *wanted], cwd=ROOT).returncode
    row = {"step": name, "variant": "", "times plain": "", "at most": ""}
    if code or name == TESTS:
        yield row | {"met": f"failed ({code})" if code else "yes"}
        return
    (path,) = out.glob("*/*/metrics.json")
    for line in json.loads(path.read_text(encoding="utf-8"))["rows"]:
        if line["at most"] is not None:
            met = "yes" if line["times plain"] <= line["at most"] else "no"
            yield {"step": line["what"], **{key: line[key] for key in [*row][1:]}, "met": met}


def main(device: str = "cuda") -> int:
    """Run all steps and print the table. Return 1 if a step failed or a limit is not met.

    Raises:
        UserError: there is no GPU, or the device is unknown.
    """
    import torch

    if device not in SIZES:
        raise UserError(f"unknown device {device!r}; say nothing for a GPU, or cpu to rehearse with small models")
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError(f"torch {torch.__version__} sees no GPU here; run it where there is one (docs/gpu.md says how)")
    out = ROOT / "outputs" / "gpu" / datetime.now(UTC).strftime("%Y-%m-%d_%H-%M-%S")
    work = enumerate(steps(device).items())
    lines = [row for number, (name, arguments) in work for row in rows(name, arguments, out / str(number))]
    Console(highlight=False).print(table(f"On {device}", lines), f"runs: {out}", sep="\n")
    return int(any(row["met"] != "yes" for row in lines))


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:2]))
    except UserError as error:
        sys.exit(str(error))
