"""An experiment as the Python that gives the page's number, and as a command where there is one. Imports no torch."""

from collections.abc import Mapping
from dataclasses import fields
from textwrap import indent
from typing import Any

from experiments.serving.exploring.arms import Offered
from experiments.serving.exploring.experiment import Change, Experiment
from experiments.serving.exploring.pictures import scene_of
from interp.checkpoints.config import ModelConfig

OWN = "picture-{}.png"  # what "save" calls a picture of one's own
LOAD = ("dtype", "device", "revision", "attn_implementation", "trust_remote_code", "chat_template", "template")
WHAT: Mapping[str, tuple[str, str]] = {
    "lens": ("logit_lens", "found = logit_lens(vlm, prompt, top=5)\nprint(found.margins[0, :, 0].tolist())"),
    "attribution": (
        "integrated_gradients, pixel_map",
        "found = integrated_gradients(vlm, prompt)\nheat = pixel_map(vlm, found)\nprint([found.image, found.text])",
    ),
    "occlude": (
        "occlude_image, occlude_words",
        "words = occlude_words(vlm, prompt)\nprint(occlude_image(vlm, prompt).tolist())",
    ),
    "heads": (
        "direct_logit_attribution, head_patterns",
        "direct = direct_logit_attribution(vlm, prompt)\npatterns = head_patterns(vlm, prompt, direct.top(5))\n"
        "print([direct.heads[direct.layers.index(layer), head, 0].item() for layer, head in direct.top(5)])",
    ),
    "windows": (
        "knockout_by_window",
        'found = knockout_by_window(vlm, prompt, [("image", "verdict")], width={width})\n'
        "print(found.moved[:, 0].tolist())",
    ),
    "patch": (
        "patch",
        'found = patch(vlm, prompt, other, places=("image", "user", "verdict"))\nprint(found.moved[:, :, 0].tolist())',
    ),
    "look": (
        "Queries, image_share, record_attention",
        "with record_attention(vlm, queries=Queries.VERDICT) as record:\n"
        "    {method}.generate(vlm, [prompt], max_new_tokens=1)\n"
        'print(image_share(record.masses)["share"].tolist())',
    ),
}


def code(experiment: Experiment, arms: Mapping[str, Offered], model: Any, benchmark: Any, text: str) -> str:
    """The Python of an experiment; its last line prints the page's number or numbers. ``text`` is the whole prompt."""
    lines: dict[str, None] = {}
    names = {"Prompt", "load"}
    body = [f"vlm = {_load(model)}"]
    named = [("prompt", experiment.picture)]
    change = experiment.change if experiment.action == "ask" else Change()
    if experiment.action == "patch" or change.steer:
        named.append(("other", experiment.other))
    for name, picture in named:
        imports, made = _picture(picture, benchmark, name)
        lines |= dict.fromkeys(imports)
        body += made
        key = experiment.picture.removeprefix("case:")
        shows = (
            ", shows=case.described"
            if experiment.framed and experiment.picture.startswith("case:") and name == "prompt"
            else ""
        )
        request = f", request={experiment.text!r}" if experiment.framed else ""
        body.append(f"{name} = Prompt(\n    {text!r},\n    {name}_picture, key={key!r}{request}{shows},\n)")
    arm = experiment.looked_at
    offered = arms[arm.name]
    method = offered.code(arm.settings)
    if experiment.action in ("ask", "look"):
        lines |= dict.fromkeys(offered.imports)
        if method.startswith("replace("):
            lines["from dataclasses import replace"] = None
    if experiment.action != "ask":
        tools, written = WHAT[experiment.action]
        names |= set(tools.split(", "))
        body.append(written.replace("{width}", str(experiment.width)).replace("{method}", method))
    else:
        blocks = _changes(change, names, lines, body)
        asking = f"answer = {method}.generate(vlm, [prompt], max_new_tokens={experiment.tokens})"
        body.append(f"with {', '.join(blocks)}:\n{indent(asking, '    ')}" if blocks else asking)
        body.append("print(answer.texts[0])\nprint(answer.margins[0].item())")
    lines[f"from interp import {', '.join(sorted(names))}"] = None
    plain, others = ([line for line in sorted(lines) if line.startswith(start) == wanted] for start, wanted in
                     (("from dataclasses", True), ("from dataclasses", False)))  # fmt: skip
    return "\n".join([*plain, *others, "", *body]) + "\n"


def command(experiment: Experiment, arms: Mapping[str, Offered]) -> str:
    """The command that shows the same case, where there is one; "" elsewhere."""
    arm = experiment.looked_at
    changes = experiment.change.any or not experiment.framed or not experiment.picture.startswith("case:")
    if (
        changes
        or experiment.action not in ("ask", "look")
        or arm.name not in ("baseline", "vcd", "prior_correction", "verbalise")
    ):
        return ""
    settings = "".join(f" method.{name}={value}" for name, value in arm.settings.items())
    return f"forestlens +exp=heatmap_llava method={arm.name}{settings} case={experiment.picture.removeprefix('case:')}"


def _changes(change: Change, names: set[str], lines: dict[str, None], body: list[str]) -> list[str]:
    """What is opened around the call, by the changes; their preparations go to ``body``."""
    blocks = []
    if change.grey:
        names.add("grey_out")
        body.append(f"prompt = grey_out(vlm, prompt, {change.boxes!r})")
    if change.steer:
        names |= {"edit_residual", "residuals"}
        body.append(
            f'here, there = (residuals(vlm, [one], layers=[{change.layer}]).at("verdict", {change.layer})[0] '
            f"for one in (prompt, other))\nadded = {change.steer!r} * (there - here)\n\n\n"
            "def steer(here):\n    states = here.hidden.clone()\n"
            '    states[here.at("verdict", "generated")] += added.to(states)\n    return states\n\n'
        )
        blocks.append(f"edit_residual(vlm, steer, layers=[{change.layer}])")
    if change.cut is not None:
        names.add("knockout")
        blocks.append(f'knockout(vlm, [("image", "verdict")], layers={_run(change.cut)})')
    if change.attention:
        lines["from mitigation.attention_edit import steer_attention"] = None
        layers = "" if change.attended is None else f", layers={_run(change.attended)}"
        blocks.append(f"steer_attention(vlm, {change.attention!r}{layers})")
    if change.off:
        names.add("edit_activations")
        off = {layer: [head for at, head in change.off if at == layer] for layer, _ in change.off}
        body.append(
            f"off = {off!r}  # heads by decoder layer\n\n\ndef silence(here):\n    states = here.hidden.clone()\n"
            "    states[:, :, off[here.layer]] = 0\n    return states\n\n"
        )
        blocks.append('edit_activations(vlm, silence, what="head", layers=list(off))')
    return blocks


def _run(ends: tuple[int, int]) -> str:
    return f"range({min(ends)}, {max(ends) + 1})"


def _load(model: Any) -> str:
    """The call of ``load`` for a model's configuration."""
    if not isinstance(model, ModelConfig):
        return "…  # the model of your notebook"
    default = ModelConfig(model.name, model.path)
    given = [f"{name}={getattr(model, name)!r}" for name in LOAD if getattr(model, name) != getattr(default, name)]
    return f"load({', '.join([repr(model.path), *given])})"


def _picture(picture: str, benchmark: Any, name: str) -> tuple[list[str], list[str]]:
    """Imports, and the lines that make ``<name>_picture``."""
    if picture.startswith("case:"):
        kind = type(benchmark)
        module = kind.__module__.removesuffix(".benchmark")
        given = ", ".join(
            f"{each.name}={getattr(benchmark, each.name)!r}"
            for each in fields(benchmark)
            if each.init and getattr(benchmark, each.name) != each.default
        )
        variable = "case" if name == "prompt" else "other_case"
        listed = (
            f"{variable} = next(one for one in {kind.__name__}({given}).load().samples if one.id == {picture[5:]!r})"
        )
        imports = [f"from {module} import {kind.__name__}", "from experiments.benchmarks.images import open_image"]
        return imports, [listed, f"{name}_picture = open_image({variable}.image)"]
    if scene := scene_of(picture):
        made = f"Scene(Thing({scene.thing.concept!r}, {scene.thing.signed}), {scene.seed!r}).render()"
        imports = ["from experiments.benchmarks.iconworld.concepts import Thing"]
        return [*imports, "from experiments.benchmarks.iconworld.scene import Scene"], [f"{name}_picture = {made}"]
    if not picture:
        return [], [f"{name}_picture = None"]
    file = OWN.format(picture.removeprefix("own:")[:12])
    return ["from PIL import Image"], [
        f'{name}_picture = Image.open("{file}").convert("RGB")  # "save" writes this file'
    ]
