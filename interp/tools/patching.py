"""Activation patching between the members of a counterfactual pair: same sentence and other picture, or vice versa.

The clean prompt is run with the other prompt's hidden states at one position and layer. How far its margin moves
towards the other's measures how much of the difference passes through there (Vig et al. 2020; Meng et al. 2022,
"Locating and Editing Factual Associations in GPT", section 2). ``interp.hooks.residual`` names the layers and
positions. What an attention, an MLP or a single head computes can be replaced alike (``interp.hooks.residual``).
States are replaced column by column, so a pair must be aligned. To patch in the other direction, swap the two lists;
the results need not agree.

Families that add the picture again behind their first layers (DeepStack: Qwen3-VL) would add the clean prompt's to the
other's: effects of places with image tokens are NaN below (``PatchEffects.picture_ends``). So do those that read it by
cross-attention, in all layers: what is patched there is what words have of it.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.errors import UserError
from interp.hooks.residual import (
    READABLE,
    LayerStates,
    Place,
    at_place,
    cell,
    check_places,
    edit_activations,
    head_count,
    layers_of,
    place_name,
)
from interp.prompt import Prompt, listed
from interp.scaling import picture_ends
from interp.segments import IMAGE, Segments, segment

if TYPE_CHECKING:
    from interp.generation import Metric
    from interp.vlm import VLM

PATCHABLE = (*READABLE, "all")
"""Places that can be patched. ``all`` is the whole prompt."""

SINGLE = ("verdict", "sink", "last_image", "last_user")
PICTURED = (IMAGE, "last_image", "all")
FREE = ("user", "earlier", "system", IMAGE)  # segments in which the two members may differ
LEAST_GAP = 0.1  # logits; margins of bfloat16 hidden states are off by about half of that, whatever the head's type
NO_PLACE = "neither prompt has such a place"
AGAIN = "the picture is added again above this layer"


@dataclass(frozen=True)
class PatchEffects:
    """The effect of patching on each pair's clean prompt. Margins are in logits, float32, on the CPU.

    ``moved`` is the patched margin minus the clean one, NaN if neither prompt has the place; of heads it is
    [place layer head row]. ``reasons[place][row]`` says why an effect is NaN; else it is "". States of image tokens
    below layer ``picture_ends`` have no effect of their own, and are NaN too.
    """

    moved: Float[Tensor, "place layer *head row"]
    clean: Float[Tensor, " row"]
    other: Float[Tensor, " row"]
    places: tuple[Place, ...]
    layers: tuple[int, ...]
    reasons: tuple[tuple[str, ...], ...]
    heads: tuple[int, ...] = ()
    picture_ends: int = 0

    @property
    def values(self) -> Float[Tensor, "place layer *head row"]:
        """``moved`` divided by the gap between the two margins: 0 is no effect, 1 the other prompt's margin, or NaN."""
        unknown = torch.tensor([[bool(reason) for reason in rows] for rows in self.reasons])
        return (self.moved / (self.other - self.clean)).masked_fill(_over(unknown, self.moved), torch.nan)

    def select(self, position: Place, layer: int) -> Float[Tensor, "*head row"]:
        """Return the effects of one place and layer.

        Raises:
            UserError: a place or layer that was not patched.
        """
        return self.values[cell(position, layer, self.places, self.layers, done="patched", do="patch")]

    @property
    def table(self) -> pd.DataFrame:
        """Tidy table with columns place, layer, (of heads) head, row, clean, other, moved, effect, reason."""
        by_head = {"head": self.heads} if self.heads else {}
        axes = {"place": map(place_name, self.places), "layer": self.layers, **by_head, "row": range(len(self.clean))}
        table = pd.DataFrame(itertools.product(*axes.values()), columns=list(axes))
        reasons = [
            self.reasons[i][row] or (AGAIN if place in PICTURED and layer < self.picture_ends else "")
            for i, place in enumerate(self.places)
            for layer in self.layers
            for row in [*range(len(self.clean))] * max(len(self.heads), 1)
        ]
        margins = {name: getattr(self, name).expand_as(self.moved).flatten().numpy() for name in ("clean", "other")}
        effects = {"moved": self.moved.flatten().numpy(), "effect": self.values.flatten().numpy()}
        return table.assign(**margins, **effects, reason=reasons)


def patch(
    vlm: "VLM",
    clean: Prompt | Sequence[Prompt],
    other: Prompt | Sequence[Prompt],
    *,
    what: str = "residual",
    places: Sequence[Place] = ("verdict", "image", "user"),
    layers: Sequence[int] | None = None,
    metric: "Metric | None" = None,
    batch_size: int | None = None,
    least_gap: float = LEAST_GAP,
) -> PatchEffects:
    """Patch ``what`` of ``other`` into ``clean``, pair by pair, at one place and layer (default: all) at a time.

    Heads are patched one at a time. ``metric``, a function of the first answer token's
    logits, takes the margin's place. Costs places · layers (· heads) + 2 forwards per batch, and memory for the other
    prompts' states. ``batch_size`` is the most pairs at once, None for the rule of ``vlm.batches``. Effects are NaN for
    pairs whose margins are less than ``least_gap`` logits apart.

    Raises:
        UserError: empty lists or lists of different lengths, an unknown place or layer, image tokens of a model
            that has none, or a pair that is not aligned at a place (``misaligned``).
    """
    vlm.require("heads" if what == "head" else "patch" if what == "residual" else "sublayers")
    (clean, other), places = paired(clean, other), tuple(places)
    layers = layers_of(vlm, what, layers)
    heads = tuple(range(head_count(vlm, layers))) if what == "head" else ()
    check_places(vlm, places, PATCHABLE)
    pictured = what == "residual" and any(place in PICTURED for place in places)
    ends = picture_ends(vlm.model, vlm.module_map, lambda: vlm.score(clean[:1])) if pictured else 0
    cells = [(place, layer, head) for place in places for layer in layers for head in heads or (None,)]

    def margins(indices: list[int]) -> Float[Tensor, "row margin"]:
        """Clean, other, whether neither has a place, by place, and patched, by place, layer and head."""
        pairs = [[prompts[index] for index in indices] for prompts in (clean, other)]
        inputs = [vlm.encode(prompts) for prompts in pairs]
        sides = [segment(vlm, *side) for side in zip(pairs, inputs, strict=True)]
        columns = {place: _aligned(sides, place, pairs, indices) for place in places}
        before = vlm.score(pairs[0], encoded=inputs[0], metric=metric)
        # By place and layer, of each forward: at the place, and after the prompt (``interp.sequence_metric``).
        states: dict[tuple[Place, int], list[tuple[Tensor, Tensor]]] = {}

        def keep(here: LayerStates) -> None:
            after = here.hidden[:, sides[1].width :]
            for position, (_, there) in columns.items():
                states.setdefault((position, here.layer), []).append((here.hidden[there], after))

        with edit_activations(vlm, keep, what=what, layers=layers):
            scores = [before, vlm.score(pairs[1], encoded=inputs[1], metric=metric)]
        scores += [_absent(columns[place][0], len(indices)).to(before) for place in places]
        for position, layer, head in cells:
            if position in PICTURED and layer < ends:
                scores.append(torch.full_like(before, torch.nan))
                continue
            part, forwards = slice(None) if head is None else head, iter(states[position, layer])

            def exchanged(
                here: LayerStates, position: Place = position, part: Any = part, forwards: Any = forwards
            ) -> Tensor:
                hidden, (there, after) = here.hidden.clone(), next(forwards)
                hidden[(*columns[position][0], part)] = there[:, part]
                if position in ("verdict", "all"):
                    hidden[:, sides[0].width :, part] = after[:, :, part]
                return hidden

            with edit_activations(vlm, exchanged, what=what, layers=[layer]):
                scores.append(vlm.score(pairs[0], encoded=inputs[0], metric=metric))
        return torch.stack(scores, dim=1)

    clean_margins, other_margins, *rest = vlm.batches.measured(clean, margins, batch_size=batch_size).unbind(1)
    missing = torch.stack(rest[: len(places)]).bool()
    shape = (len(places), len(layers), *([len(heads)] if heads else []))
    moved = torch.stack(rest[len(places) :]).unflatten(0, shape) - clean_margins
    gaps = (other_margins - clean_margins).abs().tolist()
    near = [f"margins only {gap:.2g} logits apart" if gap < least_gap or gap == 0 else "" for gap in gaps]
    return PatchEffects(
        moved=moved.masked_fill(_over(missing, moved), torch.nan),
        clean=clean_margins,
        other=other_margins,
        places=places,
        layers=layers,
        reasons=tuple(
            tuple(NO_PLACE if gone else why for gone, why in zip(row, near, strict=True)) for row in missing.tolist()
        ),
        heads=heads,
        picture_ends=ends,
    )


def misaligned(vlm: "VLM", clean: Sequence[Prompt], other: Sequence[Prompt], *, places: Sequence[Place]) -> list[str]:
    """Return why each pair cannot be patched at ``places``, or "" if it can.

    A place is aligned if both prompts have the same number of columns there, at the same positions (or a single one),
    patch grids of the same shape and, outside question, system text and picture, the same tokens.

    Raises:
        UserError: an unknown place, or lists of different lengths.
    """
    check_places(vlm, places, PATCHABLE)
    result = []
    for pair in zip(*paired(clean, other), strict=True):
        sides = [segment(vlm, [prompt], vlm.encode([prompt])) for prompt in pair]
        result.append(next((reason for place in places if (reason := _mismatch(sides, place, 0))), ""))
    return result


def paired(
    clean: Prompt | Sequence[Prompt], other: Prompt | Sequence[Prompt]
) -> tuple[Sequence[Prompt], Sequence[Prompt]]:
    """Both members of the pairs, as lists.

    Raises:
        UserError: no prompts, or not as many on both sides.
    """
    clean, other = listed(clean), listed(other)
    if len(clean) != len(other):
        raise UserError(f"{len(clean)} clean prompts and {len(other)} others; a pair has one of each; check the pairs")
    return clean, other


Columns = tuple[Int[Tensor, " n"], Int[Tensor, " n"]]
"""Rows and columns of a batch."""


def _aligned(
    sides: Sequence[Segments], position: Place, pairs: Sequence[Sequence[Prompt]], indices: Sequence[int]
) -> list[Columns]:
    """Return the columns of a place in the clean and the other batch, in the same order."""
    for row, index in enumerate(indices):
        if reason := _mismatch(sides, position, row):
            names = " and ".join(f"'{prompts[row].key or prompts[row].text}'" for prompts in pairs)
            raise UserError(
                f"pair {index} ({names}) does not align at '{place_name(position)}': {reason}; patching goes column by "
                "column; leave the pair out (misaligned) or choose another place"
            )
    return [_columns(side, position).nonzero(as_tuple=True) for side in sides]  # type: ignore[misc]


def _mismatch(sides: Sequence[Segments], position: Place, row: int) -> str:
    """Return why a pair is not aligned at a place, or ""."""
    columns = [_columns(side, position)[row].nonzero()[:, 0].tolist() for side in sides]
    rows = [side.rows[row] for side in sides]
    if len(columns[0]) != len(columns[1]):
        return f"{len(columns[0])} columns against {len(columns[1])}"
    labels, other_labels = ([each.labels[i] for i in at] for each, at in zip(rows, columns, strict=True))
    tokens, other_tokens = ([each.input_ids[i] for i in at] for each, at in zip(rows, columns, strict=True))
    if labels != other_labels:
        return "segments of other lengths"
    # Positions do not count padding, which may lie between picture and text.
    positions = [
        [sum(label != "padding" for label in each.labels[:i]) for i in at]
        for each, at in zip(rows, columns, strict=True)
    ]
    if not isinstance(position, int) and position not in SINGLE and positions[0] != positions[1]:
        return "its columns stand at other positions"
    shapes = [[tuple(grid.columns.shape) for grid in each.grids] for each in rows]
    if IMAGE in labels and shapes[0] != shapes[1]:
        return f"picture grids of {shapes[0]} against {shapes[1]}"
    fixed = [label not in FREE for label in labels]
    if any(here and a != b for here, a, b in zip(fixed, tokens, other_tokens, strict=True)):
        return "other tokens outside question and picture"
    return ""


def _over(by_place: Tensor, values: Float[Tensor, "place layer *head row"]) -> Tensor:
    """Return a mask [place row], for ``values``."""
    return by_place.reshape(len(by_place), *[1] * (values.ndim - 2), -1)


def _columns(segments: Segments, position: Place) -> Tensor:
    """True at a place, row × column. ``all`` is everything but padding."""
    if position == "all":
        return ~segments.columns_of("padding", segments.width)
    return at_place(segments, position, 0, segments.width)


def _absent(columns: Columns, rows: int) -> Tensor:
    """Which rows have no such column."""
    return torch.bincount(columns[0], minlength=rows) == 0
