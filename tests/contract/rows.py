"""The row of one small model in ``interp/contract.json``: its self-check, and more tools against plain forwards.

``python -m tests.contract.rows`` prints a row as JSON for each name that it reads. So families whose image processor
exists with torchvision alone are checked in another process, which has a stand-in for it (``tests/fakes``).
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from interp.errors import UserError
from interp.loading import types_of
from interp.reference import Reference
from interp.scaling import relative_error
from interp.segments import segment
from interp.selfcheck import prove
from interp.tools.knockout import knockout
from interp.tools.logit_attribution import direct_logit_attribution
from interp.vlm import VLM, Prompt
from mitigation.vcd import VCD
from tests.contract.facts import notes
from tests.families import FAMILIES
from tests.read_families import NEEDS_TORCHVISION, build
from tests.tiny import Pieces, picture

BOUND = 1e-5  # of relative errors in float32
ROUNDS = {"qwen3_5_moe": 5e-5}  # the bound of small models that round more: about 1e-6 in float64
PROMPTS = (
    Prompt("Is this safe ?", picture(0, (48, 40)), key="a"),
    Prompt("Is this a big knife in this image ?", picture(1, (48, 40)), key="b"),
)
CUTS = [("image", end) for end in ("verdict", "user", "template", "system", "sink")]
STANDINS = Path(__file__).resolve().parents[1] / "fakes"


def row(name: str) -> dict[str, Any]:
    """Return the row of the small model ``name``: types, tools that work, why others are refused, limits.

    ``wrong`` names what is off by more than its bound, or fails without a sentence; it is not written.
    """
    if name in NEEDS_TORCHVISION and find_spec("torchvision") is None:
        return _elsewhere(name)
    return _row(name, FAMILIES[name]() if name in FAMILIES else build(name))


def _elsewhere(name: str) -> dict[str, Any]:
    process, lines = _process(), []
    print(name, file=process.stdin, flush=True)
    for line in process.stdout or ():
        if line.startswith("{"):
            return dict(json.loads(line))
        lines.append(line)
    _process.cache_clear()
    raise AssertionError("".join(lines)[-3000:])


@cache
def _process() -> "subprocess.Popen[str]":
    """Start the process that serves all of them; it ends with this one, which holds its input open."""
    path = os.pathsep.join([str(STANDINS), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", __name__], env={**os.environ, "PYTHONPATH": path}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def _row(name: str, pieces: Pieces) -> dict[str, Any]:
    vlm, bound = VLM(*pieces, name=name), ROUNDS.get(name, BOUND)
    result = prove(vlm, PROMPTS)
    refused = {tool: why for tool, why in result.tools.items() if why}
    limits = [*notes(name, vlm), *(text for what, text in result.properties.items() if what != "crossing")]
    wrong = {what: check.error for what, check in result.checks.items() if check.state == "passed" and check.error}
    vlm.refused = refused  # as when it is loaded
    laws: dict[str, Callable[[VLM], float]] = {"direct_attribution": _attribution, "knockout": _knockout}
    laws |= {f"vcd {branch}": lambda vlm, branch=branch: _vcd(vlm, branch) for branch in ("sequential", "paired")}
    for law, error in laws.items():
        try:
            wrong[law] = error(vlm)
        except UserError as reason:
            if law == "direct_attribution" and law not in refused:
                refused[law] = str(reason)
            elif law == "vcd paired" and "vcd" not in refused:
                limits.append(str(reason))
        except Exception as fault:
            wrong[law] = f"{type(fault).__name__}: {fault}"
    return {
        "types": types_of(vlm.model),
        "works": " ".join(tool for tool in result.tools if tool not in refused),
        "refused": refused,
        "limits": limits,
        "wrong": {what: error for what, error in wrong.items() if isinstance(error, str) or not error <= bound},
    }


def _vcd(vlm: VLM, branch: str) -> float:
    """Compare VCD's first margins with those of 2 · clean − noised, each prompt by plain forwards."""
    plain, rows = Reference(vlm, list(PROMPTS)), []
    for prompt in PROMPTS:
        clean = vlm.encode([prompt])
        rows.append(2 * plain.logits(clean) - plain.logits(VCD().noised(vlm, [prompt], clean)))
    contrasted = torch.cat(rows)
    margins = VCD(branch=branch).generate(vlm, PROMPTS, max_new_tokens=2).margins
    return float((margins - vlm.margin(contrasted)).abs().max() / contrasted.abs().max())


def _attribution(vlm: VLM) -> float:
    """Compare the sum of all parts with the margin of plain forwards, before a soft cap if there is one."""
    total, heads = direct_logit_attribution(vlm, list(PROMPTS)).total, list[torch.Tensor]()
    head = vlm.module_map.module(vlm.model, "lm_head")
    handle = head.register_forward_hook(lambda module, args, output: heads.append(output[:, -1].float()))
    try:
        logits = Reference(vlm, list(PROMPTS)).single[0]
    finally:
        handle.remove()
    if getattr(vlm.model.config.get_text_config(), "final_logit_softcapping", None) is not None:
        logits = torch.cat(heads[:2])
    return float((total - vlm.margin(logits)).abs().max() / logits.abs().max())


def _knockout(vlm: VLM) -> float:
    """Return how far another picture moves the last state with every edge out of the picture cut, in shares of before.

    0 if layers without attention or cross-attention carry the picture past every edge.
    """
    if vlm.module_map.cross_attended or any(not block.attention for block in vlm.module_map.blocks.values()):
        return 0.0
    plain, last = Reference(vlm, list(PROMPTS)), vlm.module_map.module(vlm.model, "layers")[-1]

    def moved(edges: list[tuple[str, str]]) -> float:
        states = []
        for prompts, encoded in zip((plain.prompts, plain.others), plain.both, strict=True):
            with knockout(vlm, edges, segments=segment(vlm, prompts, encoded)):
                states.append(plain.states(encoded, {0: last})["out", 0][:, -1].float())
        return relative_error(*states)

    free = moved([("generated", "verdict")])
    assert free > 100 * BOUND, "another picture moves nothing"
    return moved(CUTS)


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(row(line.strip())), flush=True)
