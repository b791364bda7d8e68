"""The steps of ``task=gpu_report`` in their order: each one's command, its share of the time, and who reads its result.

Imports neither torch nor transformers.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.bench.gpu_readings import (
    Reading,
    read_attention,
    read_eval,
    read_kernels,
    read_measured,
    read_tests,
    read_vcd,
)

ROOT = Path(__file__).resolve().parents[2]
PLAN = "conf/task/plan.yaml"
SIZES = {  # by bench and model
    "7b": {"attention": ("7b", "7b_qwen"), "vcd": ("7b", "7b_qwen"), "eval": ("7b", "7b_qwen")},
    "tiny": {"attention": ("tiny", "small_qwen"), "vcd": ("tiny", "small_qwen"), "eval": ("tiny", "small_qwen")},
}
MODELS = ("LLaVA-1.5", "Qwen2.5-VL")
LENGTHS = {"7b": "[640,3072]", "tiny": "[400]"}


@dataclass(frozen=True)
class Step:
    """One process: ``share`` of the time that is left, its command, and how its result is read from its log."""

    name: str
    share: float
    command: Sequence[str]
    read: Callable[[Path], list[Reading]]


def steps_of(size: str, device: str, scratch: Path) -> list[Step]:
    """All steps; ``scratch`` is where their processes write."""
    steps = [_tests(scratch), _kernels(size, device, scratch)]
    for bench, read in (("attention", read_attention), ("vcd", read_vcd), ("eval", read_eval)):
        for model, shape in zip(MODELS, SIZES[size][bench], strict=True):
            steps.append(_bench(bench, model, shape, size, device, scratch, read))
    steps += [
        _measure("host waits", 25, size, device, scratch),
        _measure("study with attention", 60, size, device, scratch),
        _measure("mechanism and read-out", 70, size, device, scratch),
        _measure("plan and peak", 50, size, device, scratch),
    ]
    return steps


def _tests(scratch: Path) -> Step:
    marked = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if "mark.gpu" in path.read_text(encoding="utf-8")
    ]
    report = scratch / "tests.xml"
    options = ["-q", "-p", "no:cacheprovider", "-m", "gpu", f"--junitxml={report}"]
    return Step("tests", 60, [sys.executable, "-m", "pytest", *options, *marked], read_tests(report))


def _task(scratch: Path, folder: str, *overrides: str) -> list[str]:
    return [sys.executable, "-m", "experiments.run", *overrides, f"output_root={scratch / folder}"]


def _kernels(size: str, device: str, scratch: Path) -> Step:
    few = ("task.rows=[1,8]", "task.rounds=5") if size == "7b" else ("task.rows=[1]", "task.rounds=1")
    command = _task(scratch, "kernels", "task=bench_kernels", f"task.device={device}", *few)
    return Step("kernels", 50, command, read_kernels(scratch / "kernels"))


def _bench(
    bench: str,
    model: str,
    shape: str,
    size: str,
    device: str,
    scratch: Path,
    read: Callable[[Path], Callable[[Path], list[Reading]]],
) -> Step:
    share = {"attention": 35, "vcd": 45, "eval": 55}[bench]
    settings = {
        "attention": (f"task.size={shape}", f"task.lengths={LENGTHS[size]}", "task.repeats=5"),
        "vcd": (f"task.sizes=[{shape}]", "task.items=[1,8]", "task.memory=false", "task.repeats=5"),
        "eval": (f"task.size={shape}", f"task.cases={50 if size == '7b' else 2}", "task.repeats=1", "draws=200"),
    }[bench]
    folder = f"{bench}_{shape}"
    # Repeats stop at half of the share: the rest is for imports, the model and one round of everything.
    command = _task(
        scratch, folder, f"task=bench_{bench}", f"task.device={device}", f"task.seconds={share / 2:.0f}", *settings
    )
    return Step(f"bench_{bench} {model}", share, command, read(scratch / folder))


def _measure(name: str, share: float, size: str, device: str, scratch: Path) -> Step:
    out = scratch / f"{name.replace(' ', '_')}.json"
    command = [sys.executable, "-m", "experiments.bench.gpu_measures", name, size, device, str(out)]
    return Step(name, share, command, read_measured(out))
