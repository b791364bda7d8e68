"""Part effects: what replacing the output of one head or MLP does to the margin, exactly and to first order.

A pair is one sentence with two pictures, or one picture with two sentences. A *part* is one attention head or one MLP.
Its output at a place of one run is replaced by what it is in the other run of the pair (activation patching, Vig et al.
2020; Meng et al. 2022), by its mean, or by zero. ``part_effects`` runs the model for every part. At the verdict, the
last column, this is cheap: the columns before it do not change, so their keys and values are reused, and one column is
run again.

``part_attribution`` estimates the same effects of all parts at once from gradients: (a − u) · ∂margin/∂output, with the
gradient averaged over both runs (attribution patching, Syed et al. 2023, arXiv 2310.10348), or over points between them
(integrated gradients, Hanna et al. 2024, arXiv 2403.17806). Print ``agreement`` next to an exact sample.

Two questions have two estimates, and neither is a mean of ratios (``PartEffects.picture``, ``PartEffects.truth``).
"""

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from scipy.stats import t as student
from torch import Tensor

from interp.errors import UserError
from interp.hooks.residual import READABLE, LayerStates, Place, check_places, edit_residual
from interp.hooks.sublayers import activations, edit_activations, layers_of
from interp.prompt import Prompt
from interp.tools.gradients import frozen_weights
from interp.tools.patching import PATCHABLE, PairBatch, paired
from interp.tools.prefix import Prefix

if TYPE_CHECKING:
    from interp.vlm import VLM

Kind = Literal["head", "mlp"]
States = dict[tuple[str, int], Tensor]
"""Kind and layer → what the layer's parts put out: of heads [… head dim], of an MLP [… width]."""

ONE_COLUMN = "exact: one column run again, with the keys and values of all others"
WHOLE_RUNS = "exact: whole runs from the layer of the part on"
LEVEL = 0.95


class Part(NamedTuple):
    """One head or one MLP of a decoder layer, numbered from 0."""

    kind: Kind
    layer: int
    head: int | None = None

    def __str__(self) -> str:
        return f"L{self.layer}H{self.head}" if self.kind == "head" else f"L{self.layer} MLP"


@dataclass(frozen=True)
class SetEffects:
    """Effects of ``sets`` of parts, replaced together, on the margin of each pair, in logits; float32, on the CPU.

    ``moved`` is the margin with the parts replaced minus the margin without, in the clean prompt (direction 0) and in
    the other one (direction 1). ``how`` says how it was found.
    """

    moved: Float[Tensor, "direction set row"]
    clean: Float[Tensor, " row"]
    other: Float[Tensor, " row"]
    sets: tuple[tuple[Part, ...], ...]
    place: Place
    how: str

    @property
    def gap(self) -> Float[Tensor, "direction row"]:
        """How far the margin would move if everything were replaced: other − clean, and clean − other."""
        return torch.stack([self.other - self.clean, self.clean - self.other])

    @property
    def picture(self) -> Float[Tensor, " set"]:
        """What carries the difference, of either sign: the slope Σ moved·gap / Σ gap², 1 if all goes through it.

        Over pairs of pictures it says which part carries the picture; over pairs of sentences, the sentence. A part
        that is replaced by its mean moves half as far as one that is replaced by the other run's, and by 0 anywhere.
        """
        return (self.moved * self.gap[:, None]).sum((0, 2)) / self.gap.square().sum()

    def truth(self, groups: Sequence[Hashable] | None = None) -> Float[Tensor, " set"]:
        """What carries the truth: Σ moved / Σ gap, with the safe member of each pair as ``other``.

        ``groups`` name what the pairs were drawn from (templates); by default every pair is its own.

        Raises:
            UserError: the 95% interval of Σ gap, over groups, contains 0: the model does not tell the members apart on
                average, so there is no truth to carry.
        """
        gap = self.gap[0].double().numpy()
        labels = np.unique(np.arange(len(gap)) if groups is None else _codes(groups, len(gap)), return_inverse=True)[1]
        sums = np.bincount(labels, weights=gap)
        half = np.inf
        if len(sums) > 1:
            half = float(student.ppf((1 + LEVEL) / 2, len(sums) - 1) * sums.std(ddof=1) * len(sums) ** 0.5)
        if abs(sums.sum()) <= half:
            raise UserError(
                f"Σ gap is {sums.sum():.3g} ± {half:.3g} logits over {len(sums)} groups: the model does not tell the "
                "members of these pairs apart on average, and a share of nothing has no meaning; ask .picture instead"
            )
        return (self.moved[0] - self.moved[1]).sum(1) / (2 * self.gap[0].sum())


@dataclass(frozen=True)
class PartEffects(SetEffects):
    """The effects of single parts, each a set of its own.

    ``absent`` says of what the layout lacks why it is not among the parts.
    """

    absent: tuple[str, ...] = ()

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts, in the order of ``moved``."""
        return tuple(part for (part,) in self.sets)

    @property
    def table(self) -> pd.DataFrame:
        """Tidy table with columns part, kind, layer, head, picture (the slope) and moved (the mean towards other)."""
        towards = ((self.moved[0] - self.moved[1]) / 2).mean(1)
        rows = [
            (str(part), *part, float(slope), float(moved))
            for part, slope, moved in zip(self.parts, self.picture, towards, strict=True)
        ]
        table = pd.DataFrame(rows, columns=["part", "kind", "layer", "head", "picture", "moved"])
        return table.astype({"head": "Int64"})

    def top(self, count: int) -> list[Part]:
        """The ``count`` parts with the largest slope, first the largest; what they do is to be confirmed elsewhere."""
        order = torch.argsort(self.picture, descending=True, stable=True)
        return [self.parts[index] for index in order[:count].tolist()]


def part_effects(
    vlm: "VLM",
    clean: Prompt | Sequence[Prompt],
    other: Prompt | Sequence[Prompt],
    *,
    position: Place = "verdict",
    parts: Sequence[Part] | None = None,
    replace: str = "counterfactual",
    reference: Sequence[Prompt] | None = None,
    batch_size: int | None = None,
) -> PartEffects:
    """Exact effects of ``parts`` (default: every head and MLP) at ``position``, in both directions of each pair.

    ``replace`` says by what a part's output is replaced: the other run's ("counterfactual"), its mean at the place over
    ``reference`` (default: all prompts given), or 0. Costs a forward a part and direction: at the verdict one of a
    single column in families without attention to later columns (``interp.tools.prefix``), elsewhere one of all.

    Raises:
        UserError: the model is in 16 bits, lists of different lengths, an unknown part or place, or pairs that do not
            align at the place (``misaligned``).
    """
    earlier = parts_of(vlm)
    result = part_set_effects(
        vlm, clean, other, [(part,) for part in (earlier if parts is None else parts)], position=position,
        replace=replace,
        reference=reference, batch_size=batch_size,
    )  # fmt: skip
    return PartEffects(**vars(result), absent=absent_parts(vlm))


def part_set_effects(
    vlm: "VLM",
    clean: Prompt | Sequence[Prompt],
    other: Prompt | Sequence[Prompt],
    sets: Sequence[Sequence[Part]],
    *,
    position: Place = "verdict",
    replace: str = "counterfactual",
    reference: Sequence[Prompt] | None = None,
    hold_later: bool = False,
    batch_size: int | None = None,
) -> SetEffects:
    """Exact effects of ``sets`` of parts, the parts of each replaced together; all else as in ``part_effects``.

    The k best parts as a set say how faithful they are (``picture`` near 1), all parts but these how complete (near 0
    if they alone keep the prompt's own answer). With ``hold_later`` all parts that come after the first of a set, and
    are not in it, put out what they do without it: the effect that is left goes straight to the final norm and the
    output head (path patching, Wang et al. 2022).

    Raises:
        UserError: as ``part_effects``, or a set without parts.
    """
    vlm.require("sublayers")
    vlm.require("heads")
    clean, other = paired(clean, other)
    check_precise(vlm)
    if replace not in _NAMED:
        raise UserError(f"replace={replace!r}; known: {', '.join(_NAMED)}; choose among these")
    check_places(vlm, [position], PATCHABLE if replace == "counterfactual" else READABLE)
    earlier, questions = parts_of(vlm), tuple(tuple(parts) for parts in sets)
    if not questions or not all(questions):
        raise UserError("no parts to replace; name one or more in each set")
    if unknown := {part for parts in questions for part in parts} - set(earlier):
        raise UserError(
            f"{vlm.name} has no part {min(map(str, unknown))}; there are {earlier[0]} to {earlier[-1]}; choose one"
        )
    every = [part for part in earlier if any(part in parts for parts in questions)]
    fixed = _fixed(vlm, every, position, replace, [*clean, *other] if reference is None else list(reference))

    def held(batch: PairBatch, part: list[int]) -> States:
        """What the receiving prompts' own parts put out."""
        turned = PairBatch.of(vlm, batch.other, batch.clean, part)
        current = turned.aligned(position)[1] if replace == "counterfactual" else batch.columns(position)
        return _states(vlm, turned, earlier, current)

    def margins(part: list[int]) -> Float[Tensor, "row value"]:
        """Whether whole runs were needed, clean and other margins, then both directions of every set."""
        members = [clean[index] for index in part], [other[index] for index in part]
        result, full = [], False
        for receiver, giver in (members, members[::-1]):
            batch = PairBatch.of(vlm, receiver, giver, part)
            receiving, giving = (
                batch.aligned(position) if replace == "counterfactual" else (batch.columns(position), None)
            )
            states = fixed if giving is None else _states(vlm, batch, every, giving)
            alone = _only_last(vlm, batch, receiving)
            later = held(batch, part) if hold_later else {}
            result.append(_replaced(vlm, batch, questions, receiving, states, later, alone))
            full |= not alone
        (before, moved), (after, moved_back) = result
        return torch.stack([torch.full_like(before, float(full)), before, after, *moved, *moved_back], dim=1)

    full, before, after, *moved = vlm.batches.measured(clean, margins, batch_size=batch_size).unbind(1)
    how = f"{WHOLE_RUNS if bool(full.any()) else ONE_COLUMN}; replaced by {_NAMED[replace]}"
    return SetEffects(torch.stack(moved).unflatten(0, (2, len(questions))), before, after, questions, position, how)


_NAMED = {"counterfactual": "the other run's output", "mean": "the mean output", "zero": "0"}


def part_attribution(
    vlm: "VLM",
    clean: Prompt | Sequence[Prompt],
    other: Prompt | Sequence[Prompt],
    *,
    position: Place = "all",
    steps: int = 0,
    batch_size: int | None = None,
) -> PartEffects:
    """First-order estimates of what ``part_effects`` finds, of all heads and MLPs, from a few forwards and backwards.

    ``steps=0`` averages the gradients of both runs; ``steps=m`` those at m midpoints between the two runs' inputs of
    the first layer. Direction 1 is minus direction 0. Memory grows with the prompts at once (``batch_size``).

    Raises:
        UserError: as ``part_effects``, or fewer than 0 steps.
    """
    vlm.require("sublayers")
    vlm.require("heads")
    clean, other = paired(clean, other)
    check_places(vlm, [position], PATCHABLE)
    if steps < 0:
        raise UserError(f"steps={steps}; 0 for the average of both runs, or a number of points between them")
    parts = parts_of(vlm)

    def estimates(chosen: list[int]) -> Float[Tensor, "row value"]:
        batch = PairBatch.of(vlm, [clean[i] for i in chosen], [other[i] for i in chosen], chosen)
        current, its = batch.aligned(position)
        before, at_clean, values, entering = _gradients(vlm, batch.clean_inputs, current)
        after, at_other, others, entering_other = _gradients(vlm, batch.other_inputs, its)
        if steps:
            whole_own, whole_its = batch.aligned("all")
            way = torch.zeros_like(entering)
            way[whole_own] = entering_other[whole_its] - entering[whole_own]
            points = [
                _gradients(vlm, batch.clean_inputs, current, way * ((at + 0.5) / steps))[1] for at in range(steps)
            ]
            slopes = {key: torch.stack([point[key] for point in points]).mean(0) for key in values}
        else:
            slopes = {key: (at_clean[key] + at_other[key]) / 2 for key in values}
        result = [_share(part, slopes, values, others, current[0], len(chosen)) for part in parts]
        return torch.stack([before, after, *result], dim=1).cpu()

    before, after, *result = vlm.batches.measured(clean, estimates, batch_size=batch_size).unbind(1)
    estimated = torch.stack(result)
    how = f"integrated gradients at {steps} points" if steps else "gradients averaged over both runs"
    both, sets = torch.stack([estimated, -estimated]), tuple((part,) for part in parts)
    return PartEffects(both, before, after, sets, position, how, absent_parts(vlm))


def agreement(estimate: PartEffects, exact: PartEffects) -> pd.DataFrame:
    """Spearman correlation of the slopes of the parts that both have: over all (layer missing), and within each layer.

    Columns layer, n (parts), correlation; NaN for fewer than three parts, or where all do the same.
    """
    both = pd.merge(estimate.table, exact.table, on=["kind", "layer", "part"], suffixes=("", "_exact"))
    groups = [(None, both), *((int(layer), own) for layer, own in both.groupby("layer"))]
    rows = [
        (layer, len(own), own["picture"].corr(own["picture_exact"], "spearman") if len(own) > 2 else np.nan)
        for layer, own in groups
    ]
    return pd.DataFrame(rows, columns=["layer", "n", "correlation"]).astype({"layer": "Int64"})


def parts_of(vlm: "VLM") -> list[Part]:
    """All heads of the layers that have self-attention, and all MLPs, by layer."""
    heads = [
        Part("head", layer, head) for layer in layers_of(vlm, "head") for head in range(vlm.module_map.heads(layer))
    ]
    return sorted([*heads, *(Part("mlp", layer) for layer in layers_of(vlm, "mlp"))], key=lambda part: part.layer)


def random_alike(parts: Sequence[Part], best: Sequence[int], rng: np.random.Generator) -> list[int]:
    """Places in ``parts`` of as many others: of kind and layer of each of ``best`` if one is left, else of its kind.

    Where none of its kind is left either, any other; none of ``best`` is among them, so these are at most half.
    """
    free = set(range(len(parts))) - set(best)
    chosen: list[int] = []
    for like in (parts[place] for place in best):
        of_kind = [at for at in free if parts[at].kind == like.kind]
        nearest = [at for at in of_kind if parts[at].layer == like.layer] or of_kind or list(free)
        chosen.append(int(rng.choice(sorted(nearest))))
        free.remove(chosen[-1])
    return chosen


def absent_parts(vlm: "VLM") -> tuple[str, ...]:
    """What is no part here, and why, in a sentence each."""
    crossing = sorted(vlm.module_map.crossings(vlm.model))
    if not crossing:
        return ()
    return (f"layers {', '.join(map(str, crossing))}: the blocks that read the picture by cross-attention have a gate "
            "for the whole block, and are left out",)  # fmt: skip


def check_precise(vlm: "VLM") -> None:
    """Checks that effects of single parts are larger than what rounding does.

    Raises:
        UserError: the model is in 16 bits.
    """
    if vlm.dtype in (torch.bfloat16, torch.float16):
        raise UserError(
            f"{vlm.name} is in {str(vlm.dtype).removeprefix('torch.')}, where rounding is nearly as large as the "
            "effects of single parts; load it with dtype=float32, or estimate with part_attribution"
        )


def _codes(groups: Sequence[Hashable], rows: int) -> np.ndarray:
    if len(groups) != rows:
        raise UserError(f"{len(groups)} groups for {rows} pairs; name one for each")
    return pd.factorize(pd.Series(list(groups), dtype=object))[0]


def _by_kind(parts: Sequence[Part]) -> dict[Kind, list[int]]:
    """The layers of the parts of each kind."""
    return _layers_by_kind({(part.kind, part.layer) for part in parts})


def _layers_by_kind(keys: Collection[tuple[str, int]]) -> dict[Kind, list[int]]:
    return {
        kind: layers for kind in get_args(Kind) if (layers := sorted({layer for one, layer in keys if one == kind}))
    }


def _fixed(vlm: "VLM", parts: Sequence[Part], position: Place, replace: str, reference: Sequence[Prompt]) -> States:
    """The mean output, or 0, of each kind and layer."""
    if replace == "counterfactual":
        return {}
    result: States = {}
    for kind, layers in _by_kind(parts).items():
        prompts = reference if replace == "mean" else reference[:1]
        values = activations(vlm, prompts, what=kind, places=(position,), layers=layers).values[0]
        for layer, states in zip(layers, values, strict=True):
            mean = states.nanmean(0)
            result[kind, layer] = mean if replace == "mean" else torch.zeros_like(mean)
    return result


def _states(vlm: "VLM", batch: PairBatch, parts: Sequence[Part], where: tuple[Tensor, Tensor]) -> States:
    """What the parts of the batch's other prompts put out at ``where``, rows and columns."""
    result: States = {}

    def keep(here: LayerStates, kind: str) -> None:
        result[kind, here.layer] = here.hidden[where]

    with ExitStack() as stack:
        for kind, layers in _by_kind(parts).items():
            stack.enter_context(edit_activations(vlm, partial(keep, kind=kind), what=kind, layers=layers))
        vlm.score(batch.other, encoded=batch.other_inputs)
    return result


def _only_last(vlm: "VLM", batch: PairBatch, where: tuple[Tensor, Tensor]) -> bool:
    """Return whether only the last column changes and can be run again."""
    last = batch.clean_segments.width - 1
    return bool((where[1] == last).all()) and Prefix.fits(vlm, batch.clean_segments, last)


def _replaced(
    vlm: "VLM",
    batch: PairBatch,
    sets: Sequence[Sequence[Part]],
    where: tuple[Tensor, Tensor],
    states: States,
    later: States,
    alone: bool,
) -> tuple[Float[Tensor, " row"], list[Float[Tensor, " row"]]]:
    """The receiving prompts' margins, and by how much each set moves them."""
    last = batch.clean_segments.width - 1
    full = partial(vlm.score, batch.clean, encoded=batch.clean_inputs)
    run = Prefix.of(vlm, batch.clean_inputs, columns=last).score if alone else full
    rows, columns = where[0], torch.full_like(where[1], -1) if alone else where[1]
    before = run()
    return before, [_run_with(vlm, run, parts, (rows, columns), states, later) - before for parts in sets]


def _run_with(
    vlm: "VLM",
    run: Callable[[], Float[Tensor, " row"]],
    parts: Sequence[Part],
    where: tuple[Tensor, Tensor],
    states: States,
    later: States,
) -> Float[Tensor, " row"]:
    first = min((part.layer, part.kind == "mlp") for part in parts)
    held = {(kind, layer): own for (kind, layer), own in later.items() if (layer, kind == "mlp") > first}

    def replacement(here: LayerStates, kind: str) -> Tensor:
        hidden, key = here.hidden.clone(), (kind, here.layer)
        if key in held:
            hidden[where] = held[key].to(hidden)
        for head in (part.head for part in parts if (part.kind, part.layer) == key):
            new = states[key].to(hidden)
            if head is None:
                hidden[where] = new
            else:
                hidden[(*where, head)] = new[..., head, :]
        return hidden

    edited = {(part.kind, part.layer) for part in parts} | held.keys()
    with ExitStack() as stack:
        for kind, layers in _layers_by_kind(edited).items():
            stack.enter_context(edit_activations(vlm, partial(replacement, kind=kind), what=kind, layers=layers))
        return run()


def _gradients(
    vlm: "VLM", inputs: Mapping[str, Any], where: tuple[Tensor, Tensor], towards: Tensor | None = None
) -> tuple[Float[Tensor, " row"], States, States, Tensor]:
    """One run with gradients of the summed margins by what every part puts out at ``where``.

    Margins, gradients, these outputs, and what enters the first layer, to which ``towards`` is added.
    """
    shifts: States = {}
    values: States = {}
    entering: list[Tensor] = []

    def adding(here: LayerStates, kind: str) -> Tensor:
        values[kind, here.layer] = here.hidden[where].detach()
        shifts[kind, here.layer] = torch.zeros_like(values[kind, here.layer], requires_grad=True)
        return here.hidden.index_put(where, shifts[kind, here.layer], accumulate=True)

    def enter(here: LayerStates) -> Tensor | None:
        entering.append(here.hidden.detach())
        return None if towards is None else here.hidden + towards

    batch = {**inputs, **vlm.positions(inputs["attention_mask"])}
    with ExitStack() as stack:
        stack.enter_context(frozen_weights(vlm.model))
        stack.enter_context(edit_residual(vlm, enter, layers=[0]))
        for kind in get_args(Kind):
            stack.enter_context(edit_activations(vlm, partial(adding, kind=kind), what=kind))
        margins = vlm.margin(vlm.model(**batch, logits_to_keep=1, use_cache=False).logits[:, -1])
        result = torch.autograd.grad(margins.sum(), list(shifts.values()))
    return margins.detach().float(), dict(zip(shifts, result, strict=True)), values, entering[-1]


def _share(
    part: Part, slopes: States, values: States, others: States, rows: Tensor, count: int
) -> Float[Tensor, " row"]:
    """(a − u) · gradient of one part, summed over the columns of each row."""
    key = part.kind, part.layer
    product = ((others[key] - values[key]) * slopes[key]).float()
    current = (product if part.head is None else product[..., part.head, :]).sum(-1)
    return torch.zeros(count, device=current.device).index_add(0, rows.to(current.device), current)
