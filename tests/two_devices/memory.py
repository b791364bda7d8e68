"""What tools hold at most on a pretended device in the shape of LLaVA-1.5-7B, and in which type its logits are.

``python -m tests.two_devices.memory`` prints lines of JSON, in a process of its own as ``job``. Memory is above the
weights, in states: one is the batch's hidden states after one layer.
"""

import gc
import json
from collections.abc import Callable
from typing import Any

import torch

from experiments.studies.mechanism.examination import EDGES, ablated_margins, cut_margins, prior_margins_of
from interp.batching import BatchRule
from interp.hooks.residual import last_layer, residuals
from interp.tools.knockout import knockout_by_window, windows
from interp.tools.patching import patch
from interp.vlm import VLM, Prompt
from mitigation.attention_edit import steer_attention
from mitigation.learned.ridge_probe import margin_gradient
from mitigation.method import Baseline
from mitigation.prior_correction import PriorCorrection
from mitigation.vcd import VCD
from tests.two_devices.cells import swapped
from tests.two_devices.device import Unsupported, World, world
from tests.two_devices.models import TEXTS, asked, on_one_device, seven_billion

SHALLOW, DEEP = 2, 4  # decoder layers
ROWS = 8
PROMPTS = asked(336, TEXTS * (ROWS // len(TEXTS)))
Run = Callable[[VLM, list[Prompt]], object]


def steered(vlm: VLM, prompts: list[Prompt]) -> object:
    with steer_attention(vlm, 0.5, relative=True):
        return vlm.score(prompts)


MEASURED: dict[str, Run] = {
    "score": VLM.score,
    "gradient_at_last": lambda vlm, prompts: margin_gradient(vlm, prompts, layer=last_layer(vlm)),
    "gradient_at_first": lambda vlm, prompts: margin_gradient(vlm, prompts, layer=1),
    "steered": steered,
}
ALIGNED = asked(336, TEXTS[:1] * 4)
LOOPS: dict[str, Run] = {
    "scores": lambda vlm, prompts: vlm.batches.scores(prompts),
    "states": lambda vlm, prompts: residuals(vlm, prompts, places=("verdict",)),
    "gradients": lambda vlm, prompts: margin_gradient(vlm, prompts, layer=1),
    "knockout": lambda vlm, prompts: knockout_by_window(vlm, prompts, [("user", "verdict")], width=2),
    "patching": lambda vlm, prompts: patch(vlm, prompts, swapped(prompts), places=("verdict",), layers=(0,)),
    "mechanism_knockout": lambda vlm, prompts: cut_margins(vlm, prompts, windows=windows(vlm, 2), edges=EDGES[:1]),
    "mechanism_prior": lambda vlm, prompts: prior_margins_of(vlm, prompts, "blank", seed=0),
    "mechanism_ablation": lambda vlm, prompts: ablated_margins(vlm, prompts, torch.ones(4096), 0.0, layer=1),
}
LOGITS: dict[str, Run] = {
    "score": VLM.score,
    **{
        name: lambda vlm, prompts, method=method: method.generate(vlm, prompts, max_new_tokens=1)
        for name, method in {
            "plain": Baseline(),
            "vcd_sequential": VCD(branch="sequential"),
            "vcd_paired": VCD(branch="paired"),
            "prior_correction": PriorCorrection(),
        }.items()
    },
}


def most(here: World, run: Run, vlm: VLM, prompts: list[Prompt]) -> int:
    """Bytes above the weights, at most."""
    gc.collect()
    here.ledger.restart()
    before = here.ledger.now
    run(vlm, prompts)
    return here.ledger.most - before


def told(**said: Any) -> None:
    print(json.dumps(said), flush=True)


def memory(here: World, vlm: VLM, layers: int) -> None:
    """The most that each tool holds."""
    columns = vlm.encode(PROMPTS)["input_ids"].shape[1]
    text = vlm.model.config.get_text_config()
    state = ROWS * columns * text.hidden_size * 2
    every = ROWS * text.num_attention_heads * columns**2 * 4 / state
    with vlm.batches.by(BatchRule(ROWS, None), on_lowered=print):
        held = {name: most(here, run, vlm, PROMPTS) / state for name, run in MEASURED.items()}
    told(kind="memory", layers=layers, every_query=every, **held)


def halving(here: World, vlm: VLM) -> None:
    """To how many rows each loop goes down where four thirds of what half the batch takes are free."""
    for name, run in LOOPS.items():
        lowered: list[int] = []
        with vlm.batches.by(BatchRule(2, None), on_lowered=print):
            half = most(here, run, vlm, ALIGNED[:2])
        here.ledger.capacity = here.ledger.now + half * 4 // 3
        try:
            with vlm.batches.by(BatchRule(4, None), on_lowered=lowered.append):
                run(vlm, ALIGNED)
            told(kind="halving", loop=name, lowered=lowered)
        except Exception as error:
            told(kind="halving", loop=name, lowered=[f"{type(error).__name__}: {error}"])
        finally:
            here.ledger.capacity = None


def logits(vlm: VLM) -> None:
    """The types of what the head gives."""
    kinds: set[str] = set()
    for name, run in LOGITS.items():
        kinds.clear()
        hook = vlm.speaker.register_forward_hook(lambda *given: kinds.add(str(given[-1].logits.dtype)))
        try:
            run(vlm, PROMPTS[:2])
        finally:
            hook.remove()
        told(kind="logits", by=name, types=sorted(kinds))


def main() -> None:
    for layers in (SHALLOW, DEEP):
        with world() as here:
            vlm = on_one_device(seven_billion("llava", layers))
            vlm.score(PROMPTS[:1])  # what is made once
            memory(here, vlm, layers)
            if layers == SHALLOW:
                halving(here, vlm)
                logits(vlm)


if __name__ == "__main__":
    try:
        main()
    except Unsupported as error:
        told(unsupported=str(error))
