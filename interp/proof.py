"""Proves a layout on the loaded model: ``prove(vlm)`` runs a dozen checks and says which tools may be trusted.

Each check compares what a tool rests on with plain forwards of the model: whole logits of the last column, or hidden
states, never margins alone, since the models studied here are those whose margin ignores the picture. The checks form
a graph (``RESTS_ON``): what rests on a failed check would pass without meaning anything, and is *not shown*. So is a
check whose reference effect is under ``TIMES`` its bound. A tool is refused where a check of its own is not passed.

Noise is measured: one prompt against itself twice in a batch, without padding. Noise from other batches would license
wrong positions. The first check's reference is not ours: token ids and greedy answer of the model card's own lines,
``processor.apply_chat_template(tokenize=True)`` and ``model.generate``.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image

from interp.errors import UserError
from interp.prompt import Prompt
from interp.proof_checks import RESTS_ON, Check, Checks

if TYPE_CHECKING:
    from interp.vlm import VLM

CONTRACT = Path(__file__).with_name("contract.json")
QUICK = ("score", "image_tokens", "chain", "lens", "additive")
TOOLS: Mapping[str, tuple[str, ...]] = {
    "baseline": ("card",),
    "score": ("score",),
    "vcd": ("generate", "pixels"),
    "segments": ("image_tokens",),
    "residuals": ("chain",),
    "lens": ("lens",),
    "patch": ("through",),
    "sublayers": ("additive",),
    "heads": ("heads",),
    "direct_attribution": ("lens", "additive", "heads"),
    "record": ("image_tokens", "recorder"),
    "knockout": ("complete",),
    "attribution": ("score", "image_tokens"),
}


@dataclass(frozen=True)
class Proof:
    """``checks`` by name; ``tools`` by name: "" or why it is refused; ``properties`` of the model that limit a tool
    without being faults, by name; ``forwards`` that it took. Prints as a table.
    """

    model: str
    dtype: str
    checks: Mapping[str, Check]
    tools: Mapping[str, str]
    properties: Mapping[str, str] = field(default_factory=dict)
    forwards: int = 0

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [("check", "", "off by", "bound", "")]
        for name, check in self.checks.items():
            numbers = ("" if value is None else f"{value:.1e}" for value in (check.number, check.bound))
            rows.append((name, check.state, *numbers, check.why))
        rows += [("", "", "", "", ""), ("tool", "", "", "", "")]
        rows += [(name, "refused" if why else "works", "", "", why) for name, why in self.tools.items()]
        rows += [("property", name, "", "", text) for name, text in self.properties.items()]
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        lines = ["  ".join([*(row[i].ljust(widths[i]) for i in range(4)), row[4]]).rstrip() for row in rows]
        return "\n".join([f"{self.model} in {self.dtype}, {self.forwards} forwards", "", *lines])


def prove(vlm: "VLM", prompts: Sequence[Prompt] | None = None, *, checks: Sequence[str] = tuple(RESTS_ON)) -> Proof:
    """Checks the layout of ``vlm`` on two prompts with pictures (default: made up); at most 40 forwards of them.

    Of fewer ``checks`` than all, tools that need others are left out. Memory is that of an eager forward of two
    prompts.

    Raises:
        UserError: not two prompts with pictures of one size each and questions of different lengths.
    """
    asked = list(prompts) if prompts is not None else made_up()
    if len(asked) != 2 or any(prompt.image is None for prompt in asked) or asked[0].text == asked[1].text:
        raise UserError("prove takes two prompts with pictures and questions of different lengths; leave them out")
    run = Checks(vlm, asked)
    with run.counted():
        for name in checks:
            run.check(name)
    # In a hybrid nothing can be cut off whole; an edge that is cut is gone all the same, which the recorder shows.
    needs = {**TOOLS, **({"knockout": ("recorder",)} if "hybrid" in run.properties else {})}
    tools = {
        tool: next(
            (f"{name}: {run.done[name].why or run.done[name].state}" for name in needed if run.refuses(name)), ""
        )
        for tool, needed in needs.items()
        if set(needed) <= set(checks)
    }
    dtype = str(vlm.dtype).removeprefix("torch.")
    return Proof(vlm.name, dtype, run.done, tools, run.properties, run.forwards)


def check_unknown(vlm: "VLM") -> None:
    """The quick checks, unless the contract table has a model of these types and this version of transformers.

    Tools that they refuse are named on stderr, and in ``vlm.refused``.
    """
    if is_known(vlm.model):
        return
    proof = prove(vlm, checks=QUICK)
    vlm.refused = {tool: why for tool, why in proof.tools.items() if why}
    for tool, why in vlm.refused.items():
        print(f"warning: {tool} is refused on {vlm.name}: {why}", file=sys.stderr)


def is_known(model: Any) -> bool:
    """Whether ``interp/contract.json`` has a row for the types of ``model``, made with this version of transformers."""
    try:
        table = json.loads(CONTRACT.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    rows = (entry.get("types") for entry in table["families"].values())
    return table["transformers"] == version("transformers") and types_of(model) in rows


def types_of(model: Any) -> dict[str, Any]:
    """What a proof of one model says of another: the types of model, text, vision and layers."""
    config = model.config
    text, vision = config.get_text_config(), getattr(config, "vision_config", None)
    return {
        "model": config.model_type,
        "text": getattr(text, "model_type", ""),
        "vision": getattr(vision, "model_type", ""),
        "layers": sorted(set(getattr(text, "layer_types", None) or ())),
    }


def made_up(side: int = 96) -> list[Prompt]:
    """Two questions of different lengths about noise, in which every part of the picture matters a little."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randint(0, 256, (2, side, side, 3), generator=generator, dtype=torch.uint8)
    texts = ("Is this safe?", "Look at the picture before you answer. Is it safe to do what it shows?")
    return [
        Prompt(text, Image.fromarray(pixels.numpy()), key=str(i))
        for i, (text, pixels) in enumerate(zip(texts, noise, strict=True))
    ]
