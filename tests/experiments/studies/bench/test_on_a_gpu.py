"""What only a GPU can tell, at the shapes of seven billion parameters; on a CPU the same, of a small model.

That layouts hold and every tool works there, how exact margins are, how often the host waits, what arms share.
"""

import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from experiments.benchmarks.images import open_image
from experiments.metrics.bootstrap import auroc
from experiments.studies.bench.eval import SHARED, EvalCases
from experiments.studies.bench.models import model_of
from experiments.types import Loaded
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
from tests.conftest import REPOSITORY
from tests.experiments.compose import run_of

CPU = pytest.param("cpu", "tiny", marks=pytest.mark.long)
LLAVA, QWEN = (pytest.param("cuda", size, marks=pytest.mark.gpu) for size in ("7b", "7b_qwen"))
DEVICES = [pytest.param("cpu", marks=pytest.mark.long), pytest.param("cuda", marks=pytest.mark.gpu)]
FLOAT32_ERROR = 1e-3  # of a margin, in logits
WAITS = 3.0  # of the host, a token: whether all rows have ended, and of padding, once for each branch
OURS = tuple(str(REPOSITORY / package) for package in ("interp", "mitigation"))
OUTSIDE = str(Path(torch.__file__).parent)


def asked(device: str, size: str, count: int, folder: Path | None = None) -> tuple[VLM, list[Prompt], Loaded]:
    """The model, and ``count`` cases for it with their pictures open; with ``folder``, large ones in files."""
    loaded = EvalCases(count, str(folder) if folder and device == "cuda" else None).load()
    vlm = model_of(size, [sample.prompt for sample in loaded.samples], device=device, seed=0)
    return vlm, [Prompt(one.prompt, open_image(one.image), key=one.id) for one in loaded.samples if one.image], loaded


@pytest.mark.parametrize(("device", "size"), [CPU, LLAVA, QWEN])
def test_the_layout_holds_and_every_tool_may_be_trusted(device: str, size: str, tmp_path: Path) -> None:
    vlm = asked(device, size, 1, tmp_path)[0]
    vlm.model.float()  # of 32 layers in bfloat16 another kernel moves the logits by up to a tenth (docs/gpu.md)
    proof = prove(vlm)
    assert proof.tools
    assert {tool: why for tool, why in proof.tools.items() if why} == {}


@pytest.mark.parametrize(("device", "size"), [CPU, LLAVA, QWEN])
def test_every_tool_that_looks_inside_ends(device: str, size: str, tmp_path: Path) -> None:
    vlm, prompts, loaded = asked(device, size, 64 if device == "cuda" else 16, tmp_path)
    safe = [sample.gold == "yes" for sample in loaded.samples]
    few, others = prompts[:4], [replace(prompt, image=prompts[-1].image) for prompt in prompts[:4]]
    layers, path = len(vlm.layout.attentions(vlm.model)), tmp_path / "readout.safetensors"
    states = residuals(vlm, prompts, places=("verdict", "image"))
    assert states.at("verdict", layers).isfinite().all()
    assert logit_lens(vlm, prompts) is not None
    assert knockout_by_window(vlm, few, [("image", "verdict")], width=max(1, layers // 4)) is not None
    assert patch(vlm, few, others, layers=[1, layers // 2], least_gap=0.0) is not None
    TruthReadout().learn(vlm, prompts, safe, out=path)
    answers = TruthReadout().read(path).generate(vlm, prompts, max_new_tokens=4)
    assert answers.margins.isfinite().all()


@pytest.mark.parametrize("method", [Baseline(), VCD()], ids=["baseline", "vcd"])
@pytest.mark.parametrize("device", DEVICES)
def test_margins_are_those_of_float32_on_a_cpu(device: str, method: Any) -> None:
    samples = EvalCases(400 if device == "cuda" else 24).load().samples
    prompts = [Prompt(one.prompt, open_image(one.image), key=one.id) for one in samples if one.image]
    safe = np.array([one.gold == "yes" for one in samples if one.image])

    def margins(dtype: str, device: str, rows: int) -> Any:
        vlm = load("organism:llava", dtype=dtype, device=device)
        parts = [prompts[start : start + rows] for start in range(0, len(prompts), rows)]
        return np.concatenate([method.generate(vlm, part, max_new_tokens=2).margins.numpy() for part in parts])

    wanted = margins("float32", "cpu", 5)
    assert np.abs(margins("float32", device, 50) - wanted).max() <= FLOAT32_ERROR
    assert auroc(margins("bfloat16", device, 50), safe) == pytest.approx(auroc(wanted, safe), abs=0.05)


@pytest.mark.parametrize("method", [Baseline(), VCD(branch="paired"), VCD(branch="sequential")], ids=repr)
@pytest.mark.parametrize(("device", "size"), [CPU, LLAVA])
def test_the_host_waits_for_transformers_alone(
    device: str, size: str, method: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vlm, prompts, _ = asked(device, size, 2, tmp_path)
    mode: Callable[[str], object] = torch.cuda.set_sync_debug_mode if device == "cuda" else str
    seen: list[str] = []

    def note(message: Any, *_: Any, **__: Any) -> None:
        if "synchronizing" in str(message):
            callers = [frame.filename for frame in traceback.extract_stack()[:-1] if OUTSIDE not in frame.filename]
            seen.append(next(name for name in reversed(callers) if name != warnings.__file__))

    def waits(tokens: int) -> Counter[bool]:
        """Waits by whether our own code asked for them."""
        seen.clear()
        mode("warn")
        try:
            method.generate(vlm, prompts, max_new_tokens=tokens)
        finally:
            mode("default")
        return Counter(name.startswith(OURS) for name in seen)

    short, long = 4, 12
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", note)
        waits(short), waits(long)  # to warm up
        few, many = waits(short), waits(long)
    assert many[True] == few[True]
    assert many[False] - few[False] <= WAITS * (long - short)


@pytest.mark.slow  # on a CPU: tests/interp/test_prefills.py
@pytest.mark.parametrize(("device", "size"), [CPU, LLAVA])
def test_arms_read_a_prompt_once_for_all(device: str, size: str, tmp_path: Path) -> None:
    cases = 12 if device == "cuda" else 2
    options = (f"task.size={size}", "task.arms=vcd_llava", f"task.cases={cases}", f"task.device={device}")
    run = run_of("task=bench_eval", f"output_root={tmp_path}", "task.memory=false", "task.repeats=1", *options)
    found = run.task.measure(run, device, lambda what: None).metrics  # type: ignore[attr-defined]
    assert found["prefills"]["prefills_reused"] >= 2 * cases  # a control and VCD ask what the plain model asks
    if device == "cuda":
        assert found["study_over_apart"] >= SHARED
    else:
        assert found["answers_unlike_arms_apart"] == 0
