"""What works on one small model: its proof (``interp.proof``), and VCD and attribution against plain forwards of it.

``python -m tests.contract.battery`` prints it as JSON for each name that it reads. So it is asked of families whose
image processor exists with torchvision alone: in a process apart, which has a stand-in for it (``tests/standins``).
"""

import copy
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
from interp.measured_numbers import off
from interp.proof import Proof, prove
from interp.proof_checks import LOGITS
from interp.tools.logit_attribution import direct_logit_attribution
from interp.vlm import VLM, Prompt
from mitigation.vcd import VCD
from tests.contract.facts import facts
from tests.families import FAMILIES
from tests.read_families import NEEDS_TORCHVISION, build
from tests.tiny import Pieces, picture

BOUND = 1e-5  # how far numbers may be from a plain forward's, in float32, relative to their length
ROUNDS = ("qwen3_5_moe",)
"""Small models that round more than others: a padded batch is up to 5e-5 off in float32, and about 1e-6 in float64."""
EXACT = 5e-6  # of these in float64, where some of their parts stay in float32
ROUNDED = f"to {LOGITS[torch.float32]:.0e} in float32, which is rounding: to {EXACT:.0e} in float64"
PROMPTS = (
    Prompt("Is this safe ?", picture(0, (48, 40)), key="a"),
    Prompt("Is this a big knife in this image ?", picture(1, (48, 40)), key="b"),
)
SHOWN_BY = {  # capability → the checks behind it, and the properties that limit it
    "baseline": (("card",), ()),
    "generate": (("generate",), ()),
    "score": (("score",), ()),
    "segments": (("image_tokens",), ("still",)),
    "residuals": (("chain",), ()),
    "lens": (("lens",), ()),
    "record": (("recorder",), ()),
    "patch": (("through",), ("deepstack", "crossing")),
    "sublayers": (("additive",), ()),
    "heads": (("heads",), ("gated",)),
    "knockout": (("complete",), ("hybrid", "crossing")),
}
STANDINS = Path(__file__).resolve().parents[1] / "standins"


def shown(name: str) -> dict[str, Any]:
    """By capability ``{"refused": why, "limit": how far, "wrong": what}`` of the small model ``name``, and ``facts``.

    Each is "" where there is nothing to say; a number further off than ``BOUND`` is wrong.
    """
    if name in NEEDS_TORCHVISION and find_spec("torchvision") is None:
        return _elsewhere(name)
    return battery(name, FAMILIES[name]() if name in FAMILIES else build(name))


def _elsewhere(name: str) -> dict[str, Any]:
    process, said = _process(), []
    print(name, file=process.stdin, flush=True)
    for line in process.stdout or ():
        if line.startswith("{"):
            found: dict[str, Any] = json.loads(line)
            return found
        said.append(line)
    _process.cache_clear()
    raise AssertionError("".join(said)[-3000:])


@cache
def _process() -> "subprocess.Popen[str]":
    """One serves all of them; it ends with this process, which holds its input open."""
    path = os.pathsep.join([str(STANDINS), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", __name__], env={**os.environ, "PYTHONPATH": path}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def battery(name: str, pieces: Pieces) -> dict[str, Any]:
    """As ``shown``, of this model."""
    vlm = VLM(*pieces, name=name)
    proof = prove(vlm, PROMPTS)
    vlm.refused = {tool: why for tool, why in proof.tools.items() if why}  # as when it is loaded
    found: dict[str, Any] = {"facts": facts(name, pieces)}
    for capability, (checks, properties) in SHOWN_BY.items():
        found[capability] = _by_proof(vlm, proof, capability, checks, properties)
    found["direct_attribution"] = _tried(lambda: _attribution(vlm))
    if name in ROUNDS and (exact := _off_in_float64(vlm)) > EXACT:
        found["score"] = _cell(wrong=f"a padded batch is off by {exact:.1e} in float64")
    clean, noised = _plain(vlm), _tried(lambda: _plain(vlm, noised=True))
    for branch in ("sequential", "paired"):
        found[f"vcd_{branch}"] = _tried(lambda: _vcd(vlm, branch, clean, noised))  # noqa: B023
    return found


def _by_proof(
    vlm: VLM, proof: Proof, capability: str, checks: tuple[str, ...], properties: tuple[str, ...]
) -> dict[str, str]:
    made = {name: proof.checks[name] for name in checks}
    why = next((f"{name}: {one.why or one.state}" for name, one in made.items() if one.state != "passed"), "")
    limits = [proof.properties[name] for name in properties if name in proof.properties]
    far = [f"{name} is off by {one.number:.1e}" for name, one in made.items() if (one.number or 0.0) > _bound(vlm)]
    limits += [ROUNDED] if vlm.name in ROUNDS and {"score", "generate"} & set(checks) else []
    return _cell(
        refused=proof.tools.get(capability, why),
        limit=next(iter(limits), ""),
        wrong=next(iter(far), "") if not why else "",
    )


def _bound(vlm: VLM) -> float:
    return LOGITS[torch.float32] if vlm.name in ROUNDS else BOUND


def _off_in_float64(vlm: VLM) -> float:
    """How far both prompts in one batch, of which one is padded, are from each alone, where all is float64."""
    model = copy.deepcopy(vlm.model).double()
    for module in model.modules():
        if hasattr(module, "config"):
            module.config._experts_implementation = "eager"  # the grouped kernel knows no float64
    wide = VLM(model, vlm.processor)
    both = wide.encode(PROMPTS)
    with torch.no_grad():
        together = model(**both, **wide.positions(both["attention_mask"]), use_cache=False).logits[:, -1]
    return off(together, _plain(wide))


def _cell(refused: str = "", limit: str = "", wrong: str = "") -> dict[str, str]:
    return {"refused": refused, "limit": limit, "wrong": wrong}


def _tried(what: Callable[[], Any]) -> Any:
    """What it gives, or the library's refusal."""
    try:
        return what()
    except UserError as error:
        return _cell(refused=str(error))
    except Exception as error:
        return _cell(wrong=f"{type(error).__name__}: {error}")


def _plain(vlm: VLM, noised: bool = False) -> torch.Tensor:
    """Each prompt's last logits, by one plain forward of it alone."""
    rows = []
    for prompt in PROMPTS:
        encoded = vlm.encode([prompt])
        if noised:
            encoded = VCD().noised(vlm, [prompt], encoded)
        with torch.no_grad():
            rows.append(vlm.model(**encoded, use_cache=False).logits[:, -1].float())
    return torch.cat(rows)


def _vcd(vlm: VLM, branch: str, clean: torch.Tensor, noised: Any) -> dict[str, str]:
    """VCD's first margins are those of 2 · clean − noised, by hand."""
    if isinstance(noised, dict):
        return noised
    found = VCD(branch=branch).generate(vlm, PROMPTS, max_new_tokens=2).margins
    contrasted = 2 * clean - noised
    return _compared(vlm, found, vlm.margin(contrasted), contrasted)


def _attribution(vlm: VLM) -> dict[str, str]:
    """The parts add up to the margin of a plain forward, before a cap if there is one."""
    found = direct_logit_attribution(vlm, list(PROMPTS))
    logits = _plain(vlm)
    if getattr(vlm.model.config.get_text_config(), "final_logit_softcapping", None) is not None:
        # What the head gives: transformers 5.20 puts no cap on PaliGemma 2, later versions do.
        kept: list[torch.Tensor] = []
        head = vlm.layout.module(vlm.model, "lm_head")
        handle = head.register_forward_hook(lambda module, args, output: kept.append(output[:, -1].float()))
        try:
            _plain(vlm)
        finally:
            handle.remove()
        logits = torch.cat(kept)
    return _compared(vlm, found.total, vlm.margin(logits), logits)


def _compared(vlm: VLM, found: torch.Tensor, reference: torch.Tensor, logits: torch.Tensor) -> dict[str, str]:
    """Margins, relative to the largest logit of a plain forward."""
    off = float((found - reference).abs().max() / logits.abs().max())
    limit = ROUNDED if vlm.name in ROUNDS else ""
    return _cell(limit=limit, wrong="" if off <= _bound(vlm) else f"the margin is off by {off:.1e}")


if __name__ == "__main__":
    for asked in sys.stdin:
        print(json.dumps(shown(asked.strip())), flush=True)
