"""Peak memory of a step done for real on the CPU, beside what the plan says of it; each in a process of its own.

``python -m tests.experiments.planning.truth <step> <rows>`` prints a line of JSON for one step of ``steps``. The model
is ``experiments.bench.models``' of CPU size: 114 million parameters in float32, 576 image tokens.
"""

import json
import sys
import tempfile
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from experiments.planning.model_calls import Scene, Step
from experiments.planning.models import Asked
from interp.batching import BatchRule

SEED = 0
TOKENS = 3
ASKED = Asked(40, 336, 336)
LEARNING = 8  # cases learned from: two batches, and as few as folds of whole questions allow


def steps() -> dict[str, Step]:
    """The steps by name."""
    from experiments.planning import model_calls as planned
    from experiments.studies.mechanism.study import Mechanism
    from mitigation.learned.probe_readout import TruthReadout
    from mitigation.method import Baseline
    from mitigation.vcd import VCD
    from mitigation.vrtuning.settings import Settings

    planned.LEARNING = LEARNING
    run: Any = SimpleNamespace(seed=SEED)
    tools = {step.name.partition(":")[0]: step for step in planned._mechanism(Mechanism(layers=3), run)}

    def trained(checkpointing: str) -> Step:
        settings = Settings(batch_size=4, rank=16, steps=2, checkpointing=checkpointing, bf16="off")
        return Step("lora", partial(_train, settings), trains=True, alters=True)

    return {
        "plain": Step("plain", partial(planned._answer, Baseline(), None, []), generates=True),
        "vcd sequential": Step("vcd", partial(planned._answer, VCD(branch="sequential"), None, []), generates=True),
        "vcd paired": Step("vcd", partial(planned._answer, VCD(branch="paired"), None, []), generates=True),
        "recording": planned._recording("recording"),
        "hidden states": tools["recording"],
        "knockout": tools["knockout"],
        "patching": tools["patching"],
        "read-out": Step("read-out", partial(planned._learn, TruthReadout(), [])),
        "lora": trained("off"),
        "lora checkpointed": trained("on"),
    }


def _train(settings: Any, scene: Scene, rows: int) -> object:
    from experiments.planning.model_calls import training_step

    return training_step(scene, settings, rows)


def model(device: str, step: str) -> Any:
    from dataclasses import replace

    import torch

    from experiments.bench.models import SHAPES, llava, random_model

    # TRL's loss takes memory for 32,768 words whatever the vocabulary; a process is seen to hold what it writes to.
    shape = replace(SHAPES["cpu"], vocabulary=SHAPES["7b"].vocabulary) if step.startswith("lora") else SHAPES["cpu"]
    return random_model(llava(shape), device=torch.device(device), dtype=torch.float32, seed=SEED, words=["word"])


def scene(vlm: Any, folder: str, begin: Any) -> Scene:
    run: Any = SimpleNamespace(feature_cache_mib=64, seed=SEED, max_new_tokens=TOKENS, protocol="generate")
    return Scene(run, vlm, ASKED, Path(folder), TOKENS, on_gpu=False, begin=begin)


def real(name: str, rows: int) -> dict[str, float]:
    """Resident memory above that of the process with everything imported and a small model run."""
    import gc

    import torch

    from experiments.bench.harness import Meter
    from experiments.runs.host_memory import return_freed_blocks

    return_freed_blocks()
    torch.set_num_threads(1)
    step = steps()[name]
    with tempfile.TemporaryDirectory() as folder:
        warm(step, folder)
        gc.collect()
        meter = Meter(torch.device("cpu"))
        vlm = model("cpu", name)
        weights = sum(weight.numel() * weight.element_size() for weight in vlm.model.parameters())
        meter.start()
        with vlm.batches.by(BatchRule(rows, None), on_lowered=print):
            step.do(scene(vlm, folder, lambda: None), rows)
        return {"peak": meter.peak(), "weights": weights}


def warm(step: Step, folder: str) -> None:
    """The same on the bundled organism: imports, threads and caches are then there."""
    from interp.loading import load

    step.do(scene(load("organism:llava", device="cpu"), folder, lambda: None), 2)


def planned(name: str, rows: int) -> dict[str, float]:
    """What the plan's recorder says of the same step."""
    from experiments.planning.memory_trace import Recorder
    from experiments.planning.peak_memory import placed
    from experiments.shapes.device import world

    step = steps()[name]
    with world() as pretended, tempfile.TemporaryDirectory() as folder:
        vlm = placed(model("meta", name))
        recorder = Recorder(pretended.ledger)
        with recorder.following(vlm), vlm.batches.by(BatchRule(rows, None), on_lowered=print):
            step.do(scene(vlm, folder, lambda: None), rows)
        recorder.end()
        return {"planned": recorder.cost().peak}


if __name__ == "__main__":
    which, name, rows = sys.argv[1], sys.argv[2], int(sys.argv[3])
    print(json.dumps({"step": name, "rows": rows} | {"real": real, "plan": planned}[which](name, rows)))
