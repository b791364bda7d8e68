"""``python -m experiments.studies.bench.gpu``: the tests marked ``gpu``, both benches, and one table.

On a GPU at the shapes of LLaVA-1.5-7B and Qwen2.5-VL-7B. The argument ``cpu`` rehearses this with small models. Every
step is a process, so that a failed step is a row of the table and frees its memory.
"""

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from experiments.studies.bench.harness import Row, table
from interp.errors import UserError

ROOT = Path(__file__).resolve().parents[3]
TESTS = "tests marked gpu"
BENCHES = {  # device → bench → models, and what it measures
    "cuda": {"attention": "task.lengths=[700,3000]", "vcd": "task.items=[1,8]"},
    "cpu": {"attention": "task.lengths=[100]", "vcd": "task.items=[1]"},
}
SIZES = {"cuda": "7b,7b_qwen", "cpu": "organism"}


def steps(device: str) -> dict[str, list[str]]:
    """Return the arguments of Python for each step."""
    tests = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu", "--continue-on-collection-errors", "tests"]
    command = ["-m", "experiments.run", f"task.device={device}", f"task.sizes=[{SIZES[device]}]"]
    return {TESTS: tests, **{name: [*command, f"task=bench_{name}", more] for name, more in BENCHES[device].items()}}


def rows(name: str, arguments: list[str], out: Path) -> list[Row]:
    """Run a step. Return a row for each limit of a bench, or a row for the tests or a failed step."""
    into = [] if name == TESTS else [f"output_root={out}"]
    code = subprocess.run([sys.executable, *arguments, *into], cwd=ROOT).returncode
    step = {"what": name, "variant": "", "times plain": "", "at most": "", "met": f"failed ({code})" if code else "yes"}
    if code or name == TESTS:
        return [step]
    (path,) = out.glob("*/*/metrics.json")
    lines = [line for line in json.loads(path.read_text(encoding="utf-8"))["rows"] if line["at most"] is not None]
    met = [{"met": "yes" if line["times plain"] <= line["at most"] else "no"} for line in lines]
    return [{key: line[key] for key in [*step][:-1]} | verdict for line, verdict in zip(lines, met, strict=True)]


def main(device: str = "cuda") -> int:
    """Run all steps and print the table. Return 1 if a step failed or a limit is not met.

    Raises:
        UserError: there is no GPU.
    """
    import torch

    if device != "cpu" and not torch.cuda.is_available():
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
