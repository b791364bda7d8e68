"""What only a GPU can tell, at the shapes of seven billion parameters; on a CPU the same, of a small model.

That layouts hold and every tool works there, how exact margins are, how often the host waits.
"""

import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from experiments.benchmarks.iconworld import IconWorld
from experiments.benchmarks.images import open_image
from experiments.evaluation.cases import limited
from experiments.metrics.bootstrap import auroc
from experiments.studies.bench.models import model_of
from experiments.types import Sample
from interp.hooks.residual import residuals
from interp.loading import load
from interp.selfcheck import prove
from interp.tools.knockout import knockout_effect
from interp.tools.lens import logit_lens
from interp.tools.patching import patch
from interp.vlm import VLM, Prompt
from mitigation.learned.probe_readout import TruthReadout
from mitigation.method import Baseline
from mitigation.vcd import VCD
from tests.conftest import REPOSITORY

CPU = pytest.param("cpu", "organism", marks=pytest.mark.long)
LLAVA, QWEN = (pytest.param("cuda", size, marks=pytest.mark.gpu) for size in ("7b", "7b_qwen"))
DEVICES = [pytest.param("cpu", marks=pytest.mark.long), pytest.param("cuda", marks=pytest.mark.gpu)]
SIDE = 672  # pixels of a picture for a large model, as photographs of a benchmark have or more
FLOAT32_ERROR = 1e-3  # of a margin, in logits
WAITS = 3.0  # of the host, a token: whether all rows have ended, and of padding, once for each branch
OURS = tuple(str(REPOSITORY / package) for package in ("interp", "mitigation"))
OUTSIDE = str(Path(torch.__file__).parent)


@lru_cache(maxsize=1)
def prompted(device: str, size: str, count: int) -> tuple[VLM, list[Prompt], list[Sample]]:
    """Return the model, and cases of IconWorld with their pictures open; for a large model with large pictures."""
    samples = limited((IconWorld(size=SIDE) if size.startswith("7b") else IconWorld()).load().samples, count)
    vlm = model_of(size, device, 0, [sample.prompt for sample in samples])
    return vlm, [Prompt(case.prompt, open_image(case.image), key=case.id) for case in samples if case.image], samples


@pytest.mark.parametrize(("device", "size"), [CPU, LLAVA, QWEN])
def test_the_layout_holds_and_every_tool_may_be_trusted(device: str, size: str) -> None:
    vlm = prompted(device, size, 1)[0]
    vlm.model.float()  # of 32 layers in bfloat16 another kernel moves the logits by up to a tenth (docs/gpu.md)
    proof = prove(vlm)
    assert proof.tools
    assert {tool: why for tool, why in proof.tools.items() if why} == {}


@pytest.mark.parametrize(("device", "size"), [CPU, LLAVA, QWEN])
def test_every_tool_that_looks_inside_ends(device: str, size: str, tmp_path: Path) -> None:
    vlm, prompts, samples = prompted(device, size, 64 if device == "cuda" else 16)
    safe = [sample.gold == "yes" for sample in samples]
    few, others = prompts[:4], [replace(prompt, image=prompts[-1].image) for prompt in prompts[:4]]
    layers, path = len(vlm.module_map.attentions(vlm.model)), tmp_path / "readout.safetensors"
    states = residuals(vlm, prompts, places=("verdict", "image"))
    assert states.select("verdict", layers).isfinite().all()
    assert logit_lens(vlm, prompts) is not None
    assert knockout_effect(vlm, few, [("image", "verdict")], width=max(1, layers // 4)) is not None
    assert patch(vlm, few, others, layers=[1, layers // 2], least_gap=0.0) is not None
    TruthReadout().learn(vlm, prompts, safe, out=path)
    answers = TruthReadout().read(path).generate(vlm, prompts, max_new_tokens=4)
    assert answers.margins.isfinite().all()


@pytest.mark.parametrize("method", [Baseline(), VCD()], ids=["baseline", "vcd"])
@pytest.mark.parametrize("device", DEVICES)
def test_margins_are_those_of_float32_on_a_cpu(device: str, method: Any) -> None:
    _, prompts, samples = prompted("cpu", "organism", 400 if device == "cuda" else 24)
    safe = np.array([case.gold == "yes" for case in samples])

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
    device: str, size: str, method: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    vlm, prompts, _ = prompted(device, size, 2)
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
