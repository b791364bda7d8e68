"""``python -m experiments.studies.bench.gpu``: the tests marked ``gpu``, the three benches, and one table of bounds.

On a GPU at the shapes of LLaVA-1.5-7B and Qwen2.5-VL-7B. ``cpu`` behind it rehearses the same with small models. Every
step is a process of its own, so that one that fails is a row of the table and frees its memory for the next.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from experiments.studies.bench.harness import Bound, table
from interp.errors import UserError

ROOT = Path(__file__).resolve().parents[3]
SIZES = {"cuda": ("7b", "7b_qwen"), "cpu": ("tiny", "small_qwen")}
STUDY = ("task=bench_eval", "task.repeats=1", "draws=200")
LARGE = "batch_tokens=32768"  # 32 prompts of 700 tokens at once; the default is for smaller cards
TESTS = "tests marked gpu"


def steps(device: str) -> dict[str, list[str]]:
    """What is run, by its name: arguments of Python."""
    sizes = SIZES[device]
    lengths, cases, few = ("[700,3000]", 32, 12) if device == "cuda" else ("[400]", 2, 2)
    attention, vcd = ("task=bench_attention", f"task.lengths={lengths}", "task.repeats=5"), "task=bench_vcd"
    only_times = ("task.items=[1,8]", "task.repeats=5", "task.memory=false", "task.answers=0")
    benches = {
        **{f"attention, {size}": [*attention, f"task.size={size}"] for size in sizes},
        **{f"vcd, {size}": [vcd, *only_times, f"task.sizes=[{size}]"] for size in sizes},
        **{f"eval, {size}": [*STUDY, f"task.size={size}", f"task.cases={cases}", LARGE] for size in sizes},
        "arms that share prompts": [
            *STUDY, f"task.size={sizes[0]}", "task.arms=vcd_llava", f"task.cases={few}", "task.memory=false"
        ],
    }  # fmt: skip
    tests = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu", "--continue-on-collection-errors", "tests"]
    command = ["-m", "experiments.run", f"task.device={device}"]
    return {TESTS: tests, **{name: [*command, *options] for name, options in benches.items()}}


def rows(name: str, arguments: list[str], out: Path) -> Iterator[dict[str, str]]:
    """Runs a step; a row for each bound of a bench, one for the tests, and one for a step that failed."""
    tests = name == TESTS
    code = subprocess.run([sys.executable, *arguments, *([] if tests else [f"output_root={out}"])], cwd=ROOT).returncode
    if code or tests:
        yield {
            "step": name,
            "what": "–",
            "measured": f"failed ({code})" if code else "passed",
            "wanted": "–",
            "met": "–",
        }
        return
    (path,) = out.glob("*/*/metrics.json")
    for told in json.loads(path.read_text(encoding="utf-8"))["bounds"]:
        met, bound = told.pop("met"), Bound(**told)
        found = {"measured": f"{bound.value:.2f}", "wanted": bound.wanted, "met": "yes" if met else "no"}
        yield {"step": name, "what": bound.what, **found}


def main(device: str = "cuda") -> int:
    """Runs all steps and prints the table; 1 if one failed or a bound is not met.

    Raises:
        UserError: there is no GPU, or the device is unknown.
    """
    import torch

    if device not in SIZES:
        raise UserError(f"unknown device {device!r}; say nothing for a GPU, or cpu to rehearse with small models")
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError(
            f"torch {torch.__version__} sees no GPU here; run it where there is one (docs/gpu.md says how), or "
            "rehearse with: python -m experiments.studies.bench.gpu cpu"
        )
    out = ROOT / "outputs" / "gpu" / datetime.now(UTC).strftime("%Y-%m-%d_%H-%M-%S")
    found = [
        row
        for number, (name, arguments) in enumerate(steps(device).items())
        for row in rows(name, arguments, out / str(number))
    ]
    where = torch.cuda.get_device_name() if device == "cuda" else "a CPU, with small models: no number means anything"
    Console(highlight=False).print(table(f"On {where}", found), f"runs: {out}", sep="\n")
    return int(any(row["met"] == "no" or row["measured"].startswith("failed") for row in found))


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:2]))
    except UserError as error:
        sys.exit(str(error))
