"""What each step of ``task=gpu_report`` measures, and the bounds that its numbers are held to.

``python -m experiments.bench.gpu_steps <part> <shape> <device> <seconds> <file>``, in a process that the task starts.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from experiments.bench.eval import LEAST, MOST_HELD, EvalCases
from experiments.bench.gpu_report import ROOT, Reading
from experiments.bench.harness import Meter, timed
from experiments.bench.models import model_of
from experiments.bench.vcd import BOUNDS
from experiments.benchmarks.images import open_image
from experiments.config import build_run, composed
from experiments.metrics.bootstrap import auroc
from experiments.types import Loaded
from interp.errors import UserError
from interp.hooks.residual import residuals
from interp.loading import load
from interp.proof import prove
from interp.tools.knockout import knockout_by_window
from interp.tools.lens import logit_lens
from interp.tools.patching import patch
from interp.vlm import VLM, Prompt
from mitigation.learned.probe_readout import TruthReadout
from mitigation.method import Baseline
from mitigation.vcd import VCD

GIB = 2**30
VERDICT, MASSES = 1.10, 1.25  # of a recorded forward, times a plain one, at each length
FLOAT32_ERROR = 1e-3  # of a margin in float32 on a GPU from that on a CPU, in logits
SHARED = 1.8  # times arms apart, at least
WAITS = 1.0  # of the host, a token


@dataclass(frozen=True)
class Place:
    """The shape to measure, on which device, in how many seconds, and a folder for files."""

    shape: str
    device: str
    seconds: float
    folder: Path

    @property
    def large(self) -> bool:
        """Whether it is a shape of seven billion parameters."""
        return self.shape.startswith("7b")


def at_most(what: str, value: float, limit: float, unit: str = " ×") -> Reading:
    """A number that must not be above ``limit``."""
    return Reading(what, f"{value:.2f}{unit}", f"≤ {limit:.2f}{unit}", value <= limit)


def bench(place: Place, name: str, *settings: str) -> dict[str, Any]:
    """What a bench measures. Half of the time is for rounds: the rest is for the model and one round of everything."""
    options = (f"task.device={place.device}", f"task.seconds={place.seconds / 2}")
    run = build_run(composed([f"task=bench_{name}", f"output_root={place.folder}", *options, *settings]))
    return run.task.measure(run, place.device, print).metrics  # type: ignore[attr-defined, no-any-return]


def tests(place: Place) -> list[Reading]:
    """Every test marked ``gpu``; where all of them skipped, nothing is shown and the step fails, but on a CPU."""
    if find_spec("pytest") is None:
        raise UserError("the tests need pytest, beartype, hypothesis and peft; bring them, or leave the part tests out")
    marked = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if "mark.gpu" in path.read_text(encoding="utf-8")
    ]
    report = place.folder / "tests.xml"
    options = ["-q", "-p", "no:cacheprovider", "-m", "gpu", f"--junitxml={report}", "--continue-on-collection-errors"]
    subprocess.run([sys.executable, "-m", "pytest", *options, *marked], cwd=ROOT, check=False)
    return counted(report, place.device)


def counted(report: Path, device: str = "cuda") -> list[Reading]:
    """From pytest's XML.

    Raises:
        UserError: pytest ended without a report, or all tests skipped, as they do on a CPU.
    """
    if not report.exists():
        raise UserError("pytest wrote no report")
    (suite,) = ElementTree.parse(report).getroot().iter("testsuite")  # written by our own pytest
    total, skipped, failed, wrong = (int(suite.get(name, 0)) for name in ("tests", "skipped", "failures", "errors"))
    if total == skipped and device == "cuda":
        raise UserError(f"all of {total} tests skipped")
    failures = [case for case in suite.iter("testcase") if {"failure", "error"} & {one.tag for one in case}]
    names = [case.get("name", "") for case in failures]
    what = f"tests marked gpu, {skipped} skipped{'; failed: ' if names else ''}{', '.join(names)}"
    passed = total - skipped - failed - wrong
    return [Reading(what, f"{passed} of {total - skipped} pass", "all", not failed + wrong)]


def attention(place: Place) -> list[Reading]:
    """Recording against a plain forward, at each length."""
    lengths = "[700,3000]" if place.large else "[400]"
    found = []
    options = (f"task.size={place.shape}", f"task.lengths={lengths}", "task.repeats=5")
    for row in bench(place, "attention", *options)["rows"]:
        case = f"{row['tokens']} tokens"
        found += [
            at_most(f"recording the verdict's masses over plain, {case}", row["verdict_over_native"], VERDICT),
            at_most(f"recording all masses over plain, {case}", row["mass_over_native"], MASSES),
            Reading(f"with maps of 8 queries, {case}", f"{row['maps_over_native']:.2f} ×"),
            Reading(f"eager attention over recording, {case}", f"{row['eager_over_mass']:.1f} ×"),
        ]
    return found


def vcd(place: Place) -> list[Reading]:
    """Contrastive decoding over plain decoding: a token, the first token, and whole answers."""
    options = ("task.items=[1,8]", "task.repeats=5", "task.memory=false", "task.answers=0")
    metrics = bench(place, "vcd", f"task.sizes=[{place.shape}]", *options)
    found = []
    limits = {bound.items: bound.limit for bound in BOUNDS if (bound.size, bound.ratio) == ("7b", "paired_over_plain")}
    for row, details in zip(metrics["rows"], metrics["details"], strict=True):
        case, limit = f"{row['items']} item{'s' * (row['items'] > 1)}", limits[row["items"]]
        whole, first = details["whole_answer_over_plain"], details["first_token_over_plain"]
        found.append(at_most(f"paired over plain, a token, {case}", row["paired_over_plain"], limit))
        found.append(at_most(f"paired over plain, whole answers, {case}", whole["paired"], limit))
        token = {name: row[f"{name}_over_plain"] for name in first if name != "plain"}
        for what, ratios in {"a token": token, "the first token": first, "whole answers": whole}.items():
            each = [f"{name.replace('_', '-')} {ratios[name]:.2f}" for name in token]
            found.append(Reading(f"over plain, {what}, {case}", f"{', '.join(each)} ×"))
    return found


def evaluation(place: Place) -> list[Reading]:
    """Cases a second of a study over those of a loop that asks one at a time; then the study's report is made."""
    metrics = study_bench(place, 50 if place.large else 2)
    times, least, peaks = metrics["rows"]["study"]["times"], LEAST["cuda"], metrics["peak_mib"]
    study, alone = peaks["study"], max(peak for name, peak in peaks.items() if name != "study")
    return [
        Reading("evaluation over the batch-of-one loop", f"{times:.1f} ×", f"≥ {least:.0f} ×", times >= least),
        Reading("cases a second", f"{metrics['rows']['study']['cases_per_second']:.1f}"),
        Reading("answers unlike the loop's", f"{metrics['answers_unlike_the_loop']}"),
        Reading("peak memory of the study", f"{study / 1024:.1f} GiB"),
        at_most("over the largest arm's alone", study / alone, MOST_HELD),
    ]


def sharing(place: Place) -> list[Reading]:
    """The arms of ``+exp=vcd_llava`` by a study, which reads once what they ask alike, over each arm by itself."""
    metrics = study_bench(place, 12 if place.large else 2, "task.arms=vcd_llava", "task.memory=false")
    times, read = metrics["study_over_apart"], metrics["prefills"]
    return [
        Reading("arms that share prompts over arms apart", f"{times:.2f} ×", f"≥ {SHARED:.1f} ×", times >= SHARED),
        Reading("prompts read, and taken over", f"{read['prefills']}, {read['prefills_reused']}"),
        Reading("answers unlike those of arms apart", f"{metrics['answers_unlike_arms_apart']}"),
    ]


def study_bench(place: Place, cases: int, *settings: str) -> dict[str, Any]:
    """``bench_eval``'s result, each way of asking once."""
    shape = (f"task.size={place.shape}", f"task.cases={cases}", "task.repeats=1", "draws=200")
    return bench(place, "eval", *shape, *settings)


def proved(place: Place) -> list[Reading]:
    """Whether the model's layout holds, and each tool that looks inside it, by ``interp.proof``."""
    vlm, _, _ = asked(place, 1)
    proof = prove(vlm)
    return [Reading(f"proof of {tool}", why or "works", "works", not why) for tool, why in proof.tools.items()]


def precision(place: Place) -> list[Reading]:
    """The bundled organism on the device, in float32 and bfloat16, against float32 on the CPU."""
    samples = EvalCases(400 if place.device == "cuda" else 8).load().samples
    prompts = [Prompt(one.prompt, open_image(one.image), key=one.id) for one in samples if one.image]
    safe = np.array([one.gold == "yes" for one in samples if one.image])
    methods: dict[str, Any] = {"baseline": Baseline(), "vcd": VCD()}

    def margins(dtype: str, device: str, method: Any) -> Any:
        vlm = load("organism:llava", dtype=dtype, device=device)
        parts = [prompts[start : start + 50] for start in range(0, len(prompts), 50)]
        return np.concatenate([method.generate(vlm, part, max_new_tokens=2).margins.numpy() for part in parts])

    found = []
    for name, method in methods.items():
        wanted = margins("float32", "cpu", method)
        for dtype in ("float32", "bfloat16"):
            here = margins(dtype, place.device, method)
            off, turned = np.abs(here - wanted).max(), int(((here > 0) != (wanted > 0)).sum())
            what, least = f"{name} in {dtype}, largest margin's error from float32 on a CPU", FLOAT32_ERROR
            exact = dtype == "float32"
            found.append(Reading(what, f"{off:.1e}", *((f"≤ {least:.0e}", bool(off <= least)) if exact else ())))
            found.append(Reading(f"{name} in {dtype}, verdicts turned", f"{turned} of {len(prompts)}"))
            ranked = [auroc(one, safe) for one in (wanted, here)]
            found.append(Reading(f"{name} in {dtype}, AUROC there / here", " / ".join(f"{one:.3f}" for one in ranked)))
    return found


def waits(place: Place) -> list[Reading]:
    """Times a token that the host waits for the device, by torch's sync debug mode; none are counted on a CPU."""
    vlm, prompts, _ = asked(place, 2)
    methods: dict[str, Any] = {"plain generate": Baseline()}
    methods |= {f"VCD {branch}": VCD(branch=branch) for branch in ("paired", "sequential")}
    found = {f"host waits a token, {name}": _waits_a_token(vlm, prompts, method) for name, method in methods.items()}
    if place.device == "cpu":
        return [Reading(what, "not counted on a CPU") for what in found]
    return [at_most(what, count, WAITS, "") for what, count in found.items()]


def _waits_a_token(vlm: VLM, prompts: Sequence[Prompt], method: Any) -> float:
    short, long = 4, 12
    mode: Callable[[str], object] = torch.cuda.set_sync_debug_mode if vlm.device.type == "cuda" else str
    counts = []
    for tokens in (short, long, short, long):  # the first two warm up
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            mode("warn")
            try:
                method.generate(vlm, prompts, max_new_tokens=tokens)
            finally:
                mode("default")
        counts.append(sum("synchronizing" in str(one.message) for one in caught))
    return (counts[3] - counts[2]) / (long - short)


def tools(place: Place) -> list[Reading]:
    """The causal tools, and the read-out's learning and answering: whether each works, its time and its peak."""
    vlm, prompts, loaded = asked(place, 64 if place.large else 16)
    safe = [sample.gold == "yes" for sample in loaded.samples]
    few, others = prompts[:4], [replace(prompt, image=prompts[-1].image) for prompt in prompts[:4]]
    layers, path = len(vlm.layout.attentions(vlm.model)), place.folder / "readout.safetensors"
    windows, width = [("image", "verdict")], max(1, layers // 4)
    work: dict[str, Callable[[], object]] = {
        "hidden states of verdict and image": partial(residuals, vlm, prompts, places=("verdict", "image")),
        "logit lens": partial(logit_lens, vlm, prompts),
        "knockout by windows, 4 cases": partial(knockout_by_window, vlm, few, windows, width=width),
        "patching at 2 layers, 4 cases": partial(patch, vlm, few, others, layers=[1, layers // 2], least_gap=0.0),
        "read-out, learning": partial(TruthReadout().learn, vlm, prompts, safe, out=path),
        "read-out, answering": lambda: TruthReadout().read(path).generate(vlm, prompts, max_new_tokens=4),
    }
    return [tried(name, tool, place.device) for name, tool in work.items()]


def tried(what: str, tool: Callable[[], object], device: str) -> Reading:
    """Time and peak of a tool, or what it said when it failed: the others go on."""
    try:
        seconds, peak = measured(tool, device)
    except Exception as error:
        return Reading(what, f"failed: {type(error).__name__}: {error}"[:300], "works", met=False)
    return Reading(what, f"{seconds:.1f} s, {peak / GIB:.1f} GiB above the weights", "works", met=True)


def measured(work: Callable[[], object], device: str) -> tuple[float, int]:
    """Seconds, and peak bytes above what was held before."""
    meter = Meter(torch.device(device))
    meter.start()
    return timed(work, torch.device(device))(), meter.peak()


def asked(place: Place, count: int) -> tuple[VLM, list[Prompt], Loaded]:
    """The model, and ``count`` cases for it with their pictures open."""
    loaded = EvalCases(count, str(place.folder)).load()
    texts = [sample.prompt for sample in loaded.samples]
    vlm = model_of(place.shape, texts, device=place.device, seed=0)
    return vlm, [Prompt(one.prompt, open_image(one.image), key=one.id) for one in loaded.samples if one.image], loaded


MEASURES: dict[str, Callable[[Place], list[Reading]]] = {
    "tests": tests,
    "attention": attention,
    "vcd": vcd,
    "eval": evaluation,
    "sharing": sharing,
    "prove": proved,
    "precision": precision,
    "waits": waits,
    "tools": tools,
}


def main(part: str, shape: str, device: str, seconds: str, out: str) -> None:
    """Measures one step and writes its readings."""
    with TemporaryDirectory() as folder:
        found = MEASURES[part](Place(shape, device, float(seconds), Path(folder)))
    Path(out).write_text(json.dumps(found), encoding="utf-8")


def end_with(parent: int) -> None:
    """Kills this process and all it started once ``parent`` is gone: a killed call would leave the card in use."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    if os.getpgrp() == os.getpid():  # the task makes each step the head of a group
        threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    try:
        main(*sys.argv[1:])
    except UserError as error:
        sys.exit(str(error))
