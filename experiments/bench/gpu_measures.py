"""Steps of ``task=gpu_report`` that no other benchmark has; each writes its readings to a file.

``python -m experiments.bench.gpu_measures <step> <size> <device> <file>``, in a process that the task starts.
"""

import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from rich.console import Console

from experiments.bench.eval import EvalCases
from experiments.bench.gpu_readings import PLANNED, Reading, planned
from experiments.bench.gpu_steps import PLAN, ROOT
from experiments.bench.harness import meter_for
from experiments.bench.models import model_of
from experiments.types import Loaded
from interp.errors import UserError
from interp.vlm import VLM, AnswerIds, Prompt
from mitigation.method import Baseline
from mitigation.vcd import VCD

SHAPES = {"7b": {"LLaVA-1.5": "7b", "Qwen2.5-VL": "7b_qwen"}, "tiny": {"LLaVA-1.5": "tiny", "Qwen2.5-VL": "small_qwen"}}
GIB = 2**30
NOT_YET = "task=plan is not part of this version, so there is no estimate to hold the peak against"
PLANNED_ROWS = 8


def host_waits(size: str, device: str) -> list[Reading]:
    """Times a token that VCD makes the host wait beyond what plain ``generate`` does, by torch's sync debug mode."""
    if device != "cuda":
        raise UserError("torch.cuda.set_sync_debug_mode counts waits for a CUDA device, and there is none")
    vlm, prompts = _asked(size, "LLaVA-1.5", device, 2)
    found = []
    plain = _waits_a_token(vlm, prompts, Baseline())
    for branch in ("paired", "sequential"):
        more = _waits_a_token(vlm, prompts, VCD(branch=branch)) - plain
        found.append(Reading(f"host waits a token, VCD {branch}, beyond plain", f"{more:g}", "0", more <= 0))
    return [*found, Reading("host waits a token, plain generate", f"{plain:g}")]


def _waits_a_token(vlm: VLM, prompts: Sequence[Prompt], method: Any) -> float:
    short, long = 4, 12
    counts = []
    for tokens in (short, long, short, long):  # the first two warm up
        with warnings.catch_warnings(record=True) as waits:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                method.generate(vlm, prompts, max_new_tokens=tokens)
            finally:
                torch.cuda.set_sync_debug_mode("default")
        counts.append(sum("synchronizing" in str(wait.message) for wait in waits))
    return (counts[3] - counts[2]) / (long - short)


def study_with_attention(size: str, device: str) -> list[Reading]:
    """A whole study of 50 cases under four arms, its report, and the attention of its failures."""
    from experiments.bench.eval import ARMS
    from experiments.evaluation.study import opened
    from experiments.runs import analyses

    vlm, loaded, folder = _model_and_cases(size, "LLaVA-1.5", device, 50 if size == "7b" else 4)
    # Random weights give no Yes and no No: the sign of the margin stands for the verdict.
    run = _run(f"output_root={folder.name}", "protocol=score", "attention=true", "draws=200", "attention_cases=4")
    run = replace(run, arms=ARMS, arm="vcd", name="gpu_study", fresh=True)
    with folder, _measured(device) as taken:
        with opened(run, cases=loaded, vlm=vlm, console=Console(quiet=True)) as study:
            study.answer_all()
            answered = taken()
            study.conclude([] if run.attention_analysis is None else run.attention_analysis(study))
            pages = [study.store.path / "report.html", study.store.path / "attention.json"]
            missing = [path.name for path in pages if not path.exists()]
            failed = analyses.failures(study.store.path, analyses.REPORT)
        total = taken()
    said = "; ".join([*(f"no {name}" for name in missing), *failed]) or "report and attention are there"
    cases = len(loaded.samples)
    return [
        Reading(f"study of {cases} cases with attention", said, "report and attention", not missing and not failed),
        Reading(f"answering {cases} cases under {len(ARMS)} arms", f"{answered.seconds:.1f} s"),
        Reading("the whole study", f"{total.seconds:.1f} s, peak {total.peak / GIB:.1f} GiB above the weights"),
    ]


def mechanism_and_readout(size: str, device: str) -> list[Reading]:
    """The causal tools and the read-out's learning and answering, on both families."""
    found: list[Reading] = []
    for model in SHAPES[size]:
        vlm, loaded, folder = _model_and_cases(size, model, device, 64 if size == "7b" else 16)
        with folder:
            for name, tool in _tools(vlm, loaded, Path(folder.name)).items():
                found.append(_tried(f"{model}: {name}", tool, device))
        del vlm
        if device == "cuda":
            torch.cuda.empty_cache()
    return found


def _tools(vlm: VLM, loaded: Loaded, folder: Path) -> dict[str, Callable[[], object]]:
    from interp.hooks.residual import residuals
    from interp.tools.knockout import knockout_by_window
    from interp.tools.lens import logit_lens
    from interp.tools.patching import patch
    from mitigation.learned.probe_readout import TruthReadout

    safe = [sample.gold == "yes" for sample in loaded.samples]
    prompts = [_prompt(sample) for sample in loaded.samples]
    few, others = prompts[:4], [replace(prompt, image=prompts[-1].image) for prompt in prompts[:4]]
    layers, path = len(vlm.layout.attentions(vlm.model)), folder / "readout.safetensors"

    def answer() -> object:
        return TruthReadout().read(path).generate(vlm, prompts, max_new_tokens=4)

    return {
        "hidden states of verdict and image": partial(residuals, vlm, prompts, places=("verdict", "image")),
        "logit lens": partial(logit_lens, vlm, prompts),
        "knockout by windows, 4 cases": partial(
            knockout_by_window, vlm, few, [("image", "verdict")], width=max(1, layers // 4)
        ),
        "patching at 2 layers, 4 cases": partial(patch, vlm, few, others, layers=[1, layers // 2], least_gap=0.0),
        "read-out, learning": partial(TruthReadout().learn, vlm, prompts, safe, out=path),
        "read-out, answering": answer,
    }


def _tried(what: str, tool: Callable[[], object], device: str) -> Reading:
    """Time and peak of a tool, or what it said when it failed: the others go on."""
    try:
        with _measured(device) as taken:
            tool()
            cost = taken()
    except Exception as error:
        return Reading(what, f"failed: {type(error).__name__}: {error}"[:300], "works", met=False)
    return Reading(what, f"{cost.seconds:.1f} s, {cost.peak / GIB:.1f} GiB above the weights", "works", met=True)


def plan_and_peak(size: str, device: str) -> list[Reading]:
    """``task=plan``'s estimate of the peak of answering, beside the measured one, weights included."""
    if not (ROOT / PLAN).is_file():
        raise UserError(NOT_YET)
    name = "llava_1_5_7b" if size == "7b" else "llava_organism"
    with TemporaryDirectory() as folder:
        gib = torch.cuda.get_device_properties(0).total_memory / GIB if device == "cuda" else 8
        asked = ["task=plan", f"model={name}", "method=vcd", f"batch_size={PLANNED_ROWS}", f"task.gpu_gib={gib:.1f}"]
        command = [sys.executable, "-m", "experiments.run", *asked, f"output_root={folder}"]
        subprocess.run(command, cwd=ROOT, check=True)
        (path,) = Path(folder).rglob("plan.json")
        plan = json.loads(path.read_text(encoding="utf-8"))
    steps = planned(plan)
    if not steps:
        raise UserError("the plan has no step of answering that fits this card")
    from experiments.bench.models import prompt_of, sized

    if size == "7b":
        longest = plan["tokens"] + 64
        vlm = sized("7b", longest=longest, device=torch.device(device), dtype=torch.bfloat16, seed=0)
        vlm.__dict__["answer_ids"] = AnswerIds([10], [11])  # its vocabulary has neither word
        prompt = prompt_of(vlm, plan["tokens"], seed=0)
    else:
        vlm, prompts = _asked(size, "LLaVA-1.5", device, 1)
        prompt = prompts[0]
    weights = sum(weight.nbytes for weight in [*vlm.model.parameters(), *vlm.model.buffers()])
    found = []
    for step in steps:
        method: Any = VCD() if step["step"].endswith("vcd") else Baseline()
        rows = [replace(prompt, key=str(row)) for row in range(step["rows"])]
        method.generate(vlm, rows[:1], max_new_tokens=2)
        with _measured(device) as taken:
            method.generate(vlm, rows, max_new_tokens=16)
            peak = taken().peak + weights
        off = abs(step["peak"] / peak - 1)
        what = f"{step['step']}, {step['rows']} prompts of {plan['tokens']} tokens: planned / measured peak"
        value = f"{step['peak'] / GIB:.2f} / {peak / GIB:.2f} GiB ({off:.0%} off)"
        found.append(Reading(what, value, f"within {PLANNED:.0%}", off <= PLANNED))
    return found


class Cost:
    """Seconds and peak bytes, above what was held before."""

    def __init__(self, seconds: float, peak: int) -> None:
        self.seconds, self.peak = seconds, peak


@contextmanager
def _measured(device: str) -> Iterator[Callable[[], Cost]]:
    meter = meter_for(torch.device(device))
    meter.start()
    meter.synchronise()
    began = time.perf_counter()

    def taken() -> Cost:
        meter.synchronise()
        return Cost(time.perf_counter() - began, meter.peak())

    yield taken


def _model_and_cases(size: str, model: str, device: str, count: int) -> tuple[VLM, Loaded, "TemporaryDirectory[str]"]:
    folder = TemporaryDirectory()
    loaded = EvalCases(count, folder.name).load()
    texts = [sample.prompt for sample in loaded.samples]
    return model_of(SHAPES[size][model], texts, device=device, seed=0), loaded, folder


def _prompt(sample: Any) -> Prompt:
    from experiments.benchmarks.images import open_image

    return Prompt(sample.prompt, open_image(sample.image), key=sample.id)


def _asked(size: str, model: str, device: str, count: int) -> tuple[VLM, list[Prompt]]:
    vlm, loaded, folder = _model_and_cases(size, model, device, count)
    with folder:
        return vlm, [_prompt(sample) for sample in loaded.samples]


def _run(*overrides: str) -> Any:
    """A composed run, as the command line makes it."""
    from hydra import compose, initialize_config_module
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import open_dict

    from experiments.config import build_run, register

    register()
    with initialize_config_module("conf", version_base="1.3"):
        config = compose("config", overrides=list(overrides), return_hydra_config=True)
    HydraConfig.instance().set_config(config)
    with open_dict(config):
        del config["hydra"]
    return build_run(config)


STEPS: dict[str, Callable[[str, str], list[Reading]]] = {
    "host waits": host_waits,
    "study with attention": study_with_attention,
    "mechanism and read-out": mechanism_and_readout,
    "plan and peak": plan_and_peak,
}


def main(name: str, size: str, device: str, out: str) -> None:
    """Measures one step and writes its readings."""
    found = STEPS[name](size, device)
    Path(out).write_text(json.dumps([reading.as_record() for reading in found]), encoding="utf-8")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except UserError as error:
        sys.exit(str(error))
