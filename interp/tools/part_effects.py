"""Part effects: how far each single head and MLP moves the margin at the verdict, exactly.

A pair is one sentence with two pictures, or one picture with two sentences. A *part* is one attention head or one MLP.
Its output at the verdict, the last column, is replaced by its output in the other run of the pair (activation patching,
Vig et al. 2020; Meng et al. 2022). The columns before the verdict do not change, so in causal families their keys and
values are reused and one column is run again.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from interp.errors import UserError
from interp.generation import cache_in, with_cache
from interp.hooks.forward import paused
from interp.hooks.residual import LayerStates, edit_activations, layers_of
from interp.prompt import Prompt
from interp.tools.patching import paired

if TYPE_CHECKING:
    from interp.vlm import VLM

Kind = Literal["head", "mlp"]
KINDS: tuple[Kind, ...] = ("head", "mlp")  # in the order in which a layer computes them
Key = tuple[Kind, int]
States = dict[Key, Tensor]
"""Kind and layer → the outputs of the layer's parts at the verdict: [row head dim] of heads, [row width] of an MLP."""

CAUSAL = ("llava", "llava_next", "idefics3", "smolvlm")  # no column sees a later column; positions count columns


class Part(NamedTuple):
    """One head or one MLP of a decoder layer, numbered from 0."""

    kind: Kind
    layer: int
    head: int | None = None

    @property
    def key(self) -> Key:
        """Where its output is read and replaced."""
        return self.kind, self.layer

    def __str__(self) -> str:
        return f"L{self.layer}H{self.head}" if self.kind == "head" else f"L{self.layer} MLP"


@dataclass(frozen=True)
class PartEffects:
    """Effects of ``parts``, replaced one at a time, on the margin of each pair, in logits; float32, on the CPU.

    ``moved`` is the margin with the part replaced minus the margin without, in the clean prompt (direction 0) and in
    the other prompt (direction 1).
    """

    moved: Float[Tensor, "direction part row"]
    clean: Float[Tensor, " row"]
    other: Float[Tensor, " row"]
    parts: tuple[Part, ...]

    @property
    def gap(self) -> Float[Tensor, "direction row"]:
        """How far the margin would move if everything were replaced: other − clean, and clean − other."""
        return torch.stack([self.other - self.clean, self.clean - self.other])

    @property
    def slope(self) -> Float[Tensor, " part"]:
        """The share of the pairs' difference that goes through a part: Σ moved·gap / Σ gap², 1 if all of it does.

        It is no mean of ratios, in which the pairs with the smallest gaps would dominate.
        """
        return (self.moved * self.gap[:, None]).sum((0, 2)) / self.gap.square().sum()

    @property
    def table(self) -> pd.DataFrame:
        """Tidy table with columns part, kind, layer, head, slope and moved (the mean towards the other prompt)."""
        table = pd.DataFrame(list(self.parts), columns=["kind", "layer", "head"]).astype({"head": "Int64"})
        table.insert(0, "part", [str(part) for part in self.parts])
        towards = ((self.moved[0] - self.moved[1]) / 2).mean(1)
        return table.assign(slope=self.slope.numpy(), moved=towards.numpy())

    def top(self, count: int) -> list[Part]:
        """Return the ``count`` parts with the largest slope, the largest first. Confirm them on other pairs."""
        order = torch.argsort(self.slope, descending=True, stable=True)
        return [self.parts[index] for index in order[:count].tolist()]


def part_effects(
    vlm: "VLM",
    clean: Prompt | Sequence[Prompt],
    other: Prompt | Sequence[Prompt],
    *,
    parts: Sequence[Part] | None = None,
    hold_later: bool = False,
    batch_size: int | None = None,
) -> PartEffects:
    """Replace each of ``parts`` (default: every head and MLP) at the verdict, in both directions of each pair.

    With ``hold_later`` all parts that come after the replaced one put out what they do without it. The effect that is
    left goes straight to the final norm and the output head (path patching, Wang et al. 2022). Costs a forward a part
    and direction: of the last column in the families ``CAUSAL``, of all columns in others.

    Raises:
        UserError: the model is in 16 bits, lists of different lengths, or an unknown part.
    """
    vlm.require("sublayers")
    vlm.require("heads")
    clean, other = paired(clean, other)
    check_precise(vlm)
    every = parts_of(vlm)
    chosen = tuple(every if parts is None else parts)
    if unknown := set(chosen) - set(every):
        raise UserError(
            f"{vlm.name} has no part {min(map(str, unknown))}; there are {every[0]} to {every[-1]}; choose one"
        )
    if not chosen:
        raise UserError("parts=[]; name one or more, or leave parts out for all of them")
    keys = {part.key for part in (every if hold_later else chosen)}

    def margins(indices: list[int]) -> Float[Tensor, "row value"]:
        """Return the clean margins, the other margins, and both directions of every part."""
        members = [[prompts[index] for index in indices] for prompts in (clean, other)]
        inputs = [vlm.encode(prompts) for prompts in members]
        outputs = [_outputs(vlm, *member, keys) for member in zip(members, inputs, strict=True)]
        before, moved = list[Tensor](), list[Tensor]()
        for receiver, giver in ((0, 1), (1, 0)):
            run = _verdicts(vlm, members[receiver], inputs[receiver])
            before.append(run())
            for part in chosen:
                later = {key: outputs[receiver][key] for key in keys if hold_later and _order(key) > _order(part.key)}
                with _replaced(vlm, part, outputs[giver][part.key], later):
                    moved.append(run() - before[-1])
        return torch.stack([*before, *moved], dim=1)

    before, after, *moved = vlm.batches.measured(clean, margins, batch_size=batch_size).unbind(1)
    return PartEffects(torch.stack(moved).unflatten(0, (2, len(chosen))), before, after, chosen)


def parts_of(vlm: "VLM") -> list[Part]:
    """Return all heads of the layers that have self-attention, and all MLPs, by layer."""
    heads = [
        Part("head", layer, head) for layer in layers_of(vlm, "head") for head in range(vlm.module_map.heads(layer))
    ]
    return sorted([*heads, *(Part("mlp", layer) for layer in layers_of(vlm, "mlp"))], key=lambda part: part.layer)


def absent_parts(vlm: "VLM") -> tuple[str, ...]:
    """Return what is no part here, and why, in a sentence each."""
    crossing = sorted(vlm.module_map.crossings(vlm.model))
    if not crossing:
        return ()
    return (f"layers {', '.join(map(str, crossing))}: the blocks that read the picture by cross-attention have a gate "
            "for the whole block, and are left out",)  # fmt: skip


def check_precise(vlm: "VLM") -> None:
    """Check that effects of single parts are larger than what rounding does.

    Raises:
        UserError: the model is in 16 bits.
    """
    if vlm.dtype in (torch.bfloat16, torch.float16):
        raise UserError(
            f"{vlm.name} is in {str(vlm.dtype).removeprefix('torch.')}, where rounding is nearly as large as the "
            "effects of single parts; load it with dtype=float32"
        )


def _order(key: Key) -> tuple[int, int]:
    return key[1], KINDS.index(key[0])


def _opened(vlm: "VLM", edit: Callable[..., Tensor | None], keys: set[Key]) -> ExitStack:
    """Open ``edit`` (of states and kind) at each of ``keys``, for as long as the result is open."""
    stack = ExitStack()
    for kind in KINDS:
        if layers := sorted(layer for each, layer in keys if each == kind):
            stack.enter_context(edit_activations(vlm, partial(edit, kind=kind), what=kind, layers=layers))
    return stack


def _outputs(vlm: "VLM", prompts: Sequence[Prompt], encoded: Mapping[str, Any], keys: set[Key]) -> States:
    """Return the outputs of a batch's parts at the verdict."""
    result: States = {}

    def keep(here: LayerStates, kind: Kind) -> None:
        result[kind, here.layer] = here.hidden[:, -1]

    with _opened(vlm, keep, keys):
        vlm.score(prompts, encoded=encoded)
    return result


def _replaced(vlm: "VLM", part: Part, output: Tensor, later: States) -> ExitStack:
    """While open, ``part`` puts out its share of ``output`` at the verdict, and those in ``later`` put out theirs."""

    def replacement(here: LayerStates, kind: Kind) -> Tensor:
        hidden, key = here.hidden.clone(), (kind, here.layer)
        if key in later:
            hidden[:, -1] = later[key].to(hidden)
        elif part.head is None:
            hidden[:, -1] = output.to(hidden)
        else:
            hidden[:, -1, part.head] = output[:, part.head].to(hidden)
        return hidden

    return _opened(vlm, replacement, {part.key, *later})


def _verdicts(vlm: "VLM", prompts: Sequence[Prompt], encoded: Mapping[str, Any]) -> Callable[[], Float[Tensor, " row"]]:
    """Return a function that gives the margins of a left-padded batch again and again.

    In families known to be causal it runs the last column only, with keys and values of the columns before it. In
    PaliGemma, for example, a prompt is seen in both directions.
    """
    sliding = getattr(vlm.model.config.get_text_config(), "sliding_window", None)
    if vlm.module_map.model_type not in CAUSAL or sliding is not None:
        return partial(vlm.score, prompts, encoded=encoded)
    ids, mask = encoded["input_ids"], encoded["attention_mask"]
    positions = vlm.positions(mask)["position_ids"]
    before = {**encoded, "input_ids": ids[:, :-1], "attention_mask": mask[:, :-1], "position_ids": positions[:, :-1]}
    with torch.no_grad(), paused():
        cache: Any = cache_in(vlm.model(**before, use_cache=True, logits_to_keep=1))
    last = {"input_ids": ids[:, -1:], "attention_mask": mask, "position_ids": positions[:, -1:]}

    def run() -> Float[Tensor, " row"]:
        with torch.no_grad(), vlm.float32_logits():
            logits = vlm.model(**last, **with_cache(cache), use_cache=True, logits_to_keep=1).logits
        for layer in cache.layers:
            layer.crop(-1)
        return vlm.margin(logits[:, -1]).float().cpu()

    return run
