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
    "vcd": ("generate", "pixels", "score"),
    "segments": ("image_tokens",),
    "residuals": ("chain",),
    "lens": ("lens",),
    "patch": ("through",),
    "sublayers": ("additive",),
    "heads": ("heads",),
    "direct_attribution": ("score", "lens", "additive", "heads"),
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
    prompts that gives its attention weights.

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
    needs = {**TOOLS, **_where_the_picture_passes(vlm, run.properties)}
    tools = {}
    for tool, needed in needs.items():
        if failed := [name for name in _with_what_they_rest_on(needed) if name in run.done and run.refuses(name)]:
            tools[tool] = f"{failed[0]}: {run.why(failed[0])}"
        elif set(needed) <= set(checks):
            tools[tool] = ""
    if vlm.thinks:
        run.properties["thinks"], tools["thought"] = _thought(vlm, asked[0])
    dtype = str(vlm.dtype).removeprefix("torch.")
    return Proof(vlm.name, dtype, run.done, tools, run.properties, run.forwards)


def _thought(vlm: "VLM", prompt: Prompt) -> tuple[str, str]:
    """How a model marks its thoughts, and "" or why a thought so marked is not told from its answer."""

    def ids(text: str) -> list[int]:
        return list(vlm.tokenizer(text, add_special_tokens=False)["input_ids"])

    thoughts, rendered = vlm.thoughts, vlm.render(prompt)
    opening, closing = thoughts.tokens(rendered)
    before = [*opening, *ids("It is a bug."), *closing]
    found = thoughts.apart([[*before, *ids("Yes.")]], opened=thoughts.opened(rendered))
    marks = [vlm.tokenizer.decode(list(mark)) for mark in (opening, closing)]
    how = "one token" if thoughts.by_token else "text, not one token"
    opened = f"{marks[0]} is written by the model" if opening else "the template opens it"
    off = (
        "; enable_thinking=false is a keyword of the template"
        if "enable_thinking" in str(vlm.processor.chat_template)
        else ""
    )
    told = found["texts"][0] == "Yes." and found["thought_tokens"][0] == len(before)
    why = f"behind {marks[1]!r} the answer 'Yes.' is read as {found['texts'][0]!r}; name the marks: model.thinking"
    return f"{opened}, {marks[1]} ({how}) closes it{off}", "" if told else why


def _where_the_picture_passes(vlm: "VLM", properties: dict[str, str]) -> dict[str, tuple[str, ...]]:
    """What patching and knockout need where nothing can cut the picture off whole.

    A cut edge is gone all the same, which the recorder shows, and a patched state is the other prompt's, which the
    chain shows.
    """
    if vlm.layout.cross_attended:
        properties["crossing"] = (
            "pictures are read by cross-attention, which patched states and cut edges of self-attention leave open"
        )
        free = {"record": ("recorder",), "knockout": ("recorder",), "patch": ("chain", "score")}
        return {**free, "attribution": ("score",)}
    return {"knockout": ("recorder",)} if "hybrid" in properties else {}


def _with_what_they_rest_on(checks: Sequence[str]) -> list[str]:
    below = [other for name in checks for other in RESTS_ON[name]]
    return [*checks, *_with_what_they_rest_on(below)] if below else list(checks)


def check_unknown(vlm: "VLM") -> None:
    """Notes in ``vlm.refused`` which tools may not be trusted on it, and names them on stderr.

    Known from the contract table, if that has a model of these types and this version of transformers, else from the
    quick checks.
    """
    row = row_of(vlm.model)
    if row is None:
        vlm.refused = {tool: why for tool, why in prove(vlm, checks=QUICK).tools.items() if why}
    else:
        found = row["capabilities"]
        cells = {tool: found[tool] for tool in TOOLS if tool in found} | {
            "vcd": found.get("vcd_sequential", {"works": True})
        }
        vlm.refused = {tool: cell["reason"] for tool, cell in cells.items() if not cell["works"]}
    for tool, why in vlm.refused.items():
        print(f"warning: {tool} is refused on {vlm.name}: {why}", file=sys.stderr)


def row_of(model: Any) -> dict[str, Any] | None:
    """The row of ``interp/contract.json`` for the types of ``model``, if made with this version of transformers."""
    try:
        table = json.loads(CONTRACT.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if table["transformers"] != version("transformers"):
        return None
    types = types_of(model)
    return next((row for row in table["families"].values() if row.get("types") == types), None)


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
