"""Activation patching between the members of a counterfactual pair: same sentence and other picture, or vice versa.

The clean prompt is run with the other prompt's hidden states at one position and layer. How far its margin moves
towards the other's measures how much of the difference passes through there (Vig et al. 2020; Meng et al. 2022,
"Locating and Editing Factual Associations in GPT", section 2). ``interp.hooks.residual`` names the layers and
positions. What an attention, an MLP or a single head computes can be replaced alike (``interp.hooks.sublayers``).
States are replaced column by column, so a pair must be aligned. To patch in the other direction, swap the two lists;
the results need not agree.

Families that add the picture again behind their first layers (DeepStack: Qwen3-VL) would add the clean prompt's to the
other's: effects of places with image tokens are NaN below (``PatchEffects.picture_ends``). So do those that read it by
cross-attention, in all layers: what is patched there is what words have of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.errors import UserError
from interp.hooks.residual import READABLE, LayerStates, Place, at_place, cell, check_places, place_name
from interp.hooks.sublayers import chosen_heads, edit_activations, layers_of
from interp.prompt import Prompt, listed
from interp.scaling import picture_ends
from interp.segments import IMAGE, Segments, segment

if TYPE_CHECKING:
    from interp.figures.glyphs import Figure
    from interp.margin import Metric
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
    """The effect of patching ``what`` on each pair's clean prompt. Margins are in logits, float32, on the CPU.

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
    what: str = "residual"
    heads: tuple[int, ...] = ()
    picture_ends: int = 0

    @property
    def values(self) -> Float[Tensor, "place layer *head row"]:
        """``moved`` divided by the gap between the two margins: 0 is no effect, 1 the other prompt's margin, or NaN."""
        unknown = torch.tensor([[bool(reason) for reason in rows] for rows in self.reasons])
        return (self.moved / (self.other - self.clean)).masked_fill(_over(unknown, self.moved), torch.nan)

    def at(self, position: Place, layer: int) -> Float[Tensor, "*head row"]:
        """The effects of one place and layer.

        Raises:
            UserError: a place or layer that was not patched.
        """
        return self.values[cell(position, layer, self.places, self.layers, done="patched", do="patch")]

    @property
    def table(self) -> pd.DataFrame:
        """Tidy table with columns place, layer, (of heads) head, row, clean, other, moved, effect, reason."""
        moved, values = (some if self.heads else some[:, :, None] for some in (self.moved, self.values))
        return pd.DataFrame(
            {
                "place": place_name(place),
                "layer": layer,
                **({"head": head} if self.heads else {}),
                "row": row,
                "clean": float(self.clean[row]),
                "other": float(self.other[row]),
                "moved": float(moved[i, j, k, row]),
                "effect": float(values[i, j, k, row]),
                "reason": self.reasons[i][row] or (AGAIN if place in PICTURED and layer < self.picture_ends else ""),
            }
            for i, place in enumerate(self.places)
            for j, layer in enumerate(self.layers)
            for k, head in enumerate(self.heads or (None,))
            for row in range(len(self.clean))
        )

    def plot(self, title: str = "") -> "Figure":
        """The mean effect by place and layer; of heads by layer and head, a panel for each place.

        Raises:
            UserError: no effect is known.
        """
        from interp.figures.effects import patch_figure

        values = self.values.numpy()
        earlier = ~np.isnan(values)
        if not earlier.any():
            reason = next((reason for rows in self.reasons for reason in rows if reason), "no pair")
            raise UserError(f"no effect of patching to draw ({reason}); each is a share of a gap; patch other pairs")
        means = np.where(earlier, values, 0).sum(-1) / np.maximum(earlier.sum(-1), 1)
        means[~earlier.any(-1)] = np.nan
        return patch_figure(means, self.places, self.layers, what=self.what, title=title)


def patch(
    vlm: "VLM",
    clean: Prompt | Sequence[Prompt],
    other: Prompt | Sequence[Prompt],
    *,
    what: str = "residual",
    places: Sequence[Place] = ("verdict", "image", "user"),
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    metric: "Metric | None" = None,
    batch_size: int | None = None,
    least_gap: float = LEAST_GAP,
) -> PatchEffects:
    """Patches ``what`` of ``other`` into ``clean``, pair by pair, at one place and layer (default: all) at a time.

    Heads are patched one at a time (default: all of a layer). ``metric``, a function of the first answer token's
    logits, takes the margin's place. Costs places · layers (· heads) + 2 forwards per batch, and memory for the other
    prompts' states. ``batch_size`` is the most pairs at once, None for the rule of ``vlm.batches``. Effects are NaN for
    pairs whose margins are less than ``least_gap`` logits apart.

    Raises:
        UserError: empty lists or lists of different lengths, an unknown place, layer or head, image tokens of a model
            that has none, or a pair that is not aligned at a place (``misaligned``).
    """
    vlm.require("heads" if what == "head" else "patch" if what == "residual" else "sublayers")
    (clean, other), places = paired(clean, other), tuple(places)
    layers = layers_of(vlm, what, layers)
    if what != "head" and heads is not None:
        raise UserError(f"heads={list(heads)} to patch in {what} outputs; only what='head' has some; leave heads out")
    chosen = tuple(chosen_heads(vlm, heads, layers)) if what == "head" else ()
    check_places(vlm, places, PATCHABLE)
    pictured = what == "residual" and any(place in PICTURED for place in places)
    cells = [(place, layer, head) for place in places for layer in layers for head in chosen or (None,)]

    def margins(part: list[int]) -> Float[Tensor, "row margin"]:
        """Clean, other, whether neither has a place, by place, and patched, by place, layer and head."""
        batch = PairBatch.of(
            vlm, [clean[index] for index in part], [other[index] for index in part], part, what, metric
        )
        columns = {place: batch.aligned(place) for place in places}
        scores: list[Tensor] = []

        def score() -> None:
            scores.append(vlm.score(batch.clean, encoded=batch.clean_inputs, metric=metric))

        ends = picture_ends(vlm.model, vlm.module_map, score) if pictured else 0
        if not scores:
            score()
        (before,) = scores
        after = batch.read(vlm, columns, layers)
        absent = [_absent(columns[place][0], len(part)).to(before) for place in places]
        patched = [
            torch.full_like(before, torch.nan)
            if place in PICTURED and layer < ends
            else batch.patched(vlm, columns[place], place, layer, head)
            for place, layer, head in cells
        ]
        return torch.stack([before, after, *absent, *patched], dim=1)

    clean_margins, other_margins, *rest = vlm.batches.measured(clean, margins, batch_size=batch_size).unbind(1)
    missing = torch.stack(rest[: len(places)]).bool()
    shape = (len(places), len(layers), *([len(chosen)] if chosen else []))
    moved = torch.stack(rest[len(places) :]).unflatten(0, shape) - clean_margins
    return PatchEffects(
        moved=moved.masked_fill(_over(missing, moved), torch.nan),
        clean=clean_margins,
        other=other_margins,
        places=places,
        layers=layers,
        reasons=_reasons(missing.tolist(), (other_margins - clean_margins).abs().tolist(), least_gap),
        what=what,
        heads=chosen,
        picture_ends=picture_ends(vlm.model, vlm.module_map, lambda: vlm.score(clean[:1])) if pictured else 0,
    )


def misaligned(vlm: "VLM", clean: Sequence[Prompt], other: Sequence[Prompt], *, places: Sequence[Place]) -> list[str]:
    """Why each pair cannot be patched at ``places``, or "" if it can.

    A place is aligned if both prompts have the same number of columns there, at the same positions (or a single one),
    patch grids of the same shape and, outside question, system text and picture, the same tokens.

    Raises:
        UserError: an unknown place, or lists of different lengths.
    """
    check_places(vlm, places, PATCHABLE)
    result = []
    for i, (first, another) in enumerate(zip(*paired(clean, other), strict=True)):
        batch = PairBatch.of(vlm, [first], [another], [i])
        result.append(next((reason for place in places if (reason := batch.mismatch(place, 0))), ""))
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


@dataclass(frozen=True)
class PairBatch:
    """A batch of pairs, encoded and segmented.

    ``states`` are those of the other prompts by place and layer: of each forward, at the place, and of what is forced
    behind the prompt (``interp.sequence_metric``).
    """

    clean: Sequence[Prompt]
    other: Sequence[Prompt]
    indices: Sequence[int]  # of the batch's pairs among all pairs
    clean_inputs: Any
    other_inputs: Any
    clean_segments: Segments
    other_segments: Segments
    states: dict[tuple[Place, int], list[tuple[Tensor, Tensor]]]
    what: str
    metric: "Metric | None"

    @classmethod
    def of(
        cls,
        vlm: "VLM",
        clean: Sequence[Prompt],
        other: Sequence[Prompt],
        indices: Sequence[int],
        what: str = "residual",
        metric: "Metric | None" = None,
    ) -> "PairBatch":
        a, b = vlm.encode(clean), vlm.encode(other)
        return cls(clean, other, indices, a, b, segment(vlm, clean, a), segment(vlm, other, b), {}, what, metric)

    def aligned(self, position: Place) -> tuple[Columns, Columns]:
        """The columns of a place in the clean and the other batch, in the same order."""
        for row in range(len(self.clean)):
            reason = self.mismatch(position, row)
            if reason:
                raise UserError(
                    f"pair {self.indices[row]} ({_name(self.clean[row])} and {_name(self.other[row])}) does not align "
                    f"at '{place_name(position)}': {reason}; patching goes column by column; leave the pair out "
                    "(misaligned) or choose another place"
                )
        result = (
            _columns(some, position).nonzero(as_tuple=True) for some in (self.clean_segments, self.other_segments)
        )
        a, b = result
        return (a[0], a[1]), (b[0], b[1])

    def columns(self, position: Place) -> Columns:
        """The rows and columns of a place in the clean batch."""
        rows, there = _columns(self.clean_segments, position).nonzero(as_tuple=True)
        return rows, there

    def mismatch(self, position: Place, row: int) -> str:
        """Why a pair is not aligned at a place, or ""."""
        sides = (self.clean_segments, self.other_segments)
        first, another = (_columns(some, position)[row].nonzero()[:, 0].tolist() for some in sides)
        a, b = (some.rows[row] for some in sides)
        if len(first) != len(another):
            return f"{len(first)} columns against {len(another)}"
        labels = [(a.labels[i], b.labels[j]) for i, j in zip(first, another, strict=True)]
        tokens = [(a.input_ids[i], b.input_ids[j]) for i, j in zip(first, another, strict=True)]
        if any(left != right for left, right in labels):
            return "segments of other lengths"
        if (
            not isinstance(position, int)
            and position not in SINGLE
            and _positions(a.labels, first) != _positions(b.labels, another)
        ):
            return "its columns stand at other positions"
        shapes = [[tuple(grid.columns.shape) for grid in side.grids] for side in (a, b)]
        if any(left == IMAGE for left, _ in labels) and shapes[0] != shapes[1]:
            return f"picture grids of {shapes[0]} against {shapes[1]}"
        if any(left != right for (left, right), (name, _) in zip(tokens, labels, strict=True) if name not in FREE):
            return "other tokens outside question and picture"
        return ""

    def read(
        self, vlm: "VLM", columns: dict[Place, tuple[Columns, Columns]], layers: Sequence[int]
    ) -> Float[Tensor, " row"]:
        """The other prompts' margins. Stores their states at these columns."""

        def keep(here: LayerStates) -> None:
            behind = here.hidden[:, self.other_segments.width :]
            for position, (_, (rows, there)) in columns.items():
                self.states.setdefault((position, here.layer), []).append((here.hidden[rows, there], behind))

        with edit_activations(vlm, keep, what=self.what, layers=layers):
            return vlm.score(self.other, encoded=self.other_inputs, metric=self.metric)

    def patched(
        self,
        vlm: "VLM",
        columns: tuple[Columns, Columns],
        position: Place,
        layer: int,
        head: int | None,
    ) -> Float[Tensor, " row"]:
        """The clean prompts' margins with one place at one layer (of one head) replaced."""
        rows, there = columns[0]
        forwards = iter(self.states[position, layer])

        def replacement(here: LayerStates) -> Tensor:
            hidden, (states, behind) = here.hidden.clone(), next(forwards)
            part = slice(None) if head is None else head
            hidden[rows, there, part] = states[:, part]
            if position in ("verdict", "all"):
                hidden[:, self.clean_segments.width :, part] = behind[:, :, part]
            return hidden

        with edit_activations(vlm, replacement, what=self.what, layers=[layer]):
            return vlm.score(self.clean, encoded=self.clean_inputs, metric=self.metric)


def _over(by_place: Tensor, values: Float[Tensor, "place layer *head row"]) -> Tensor:
    """A mask [place row], for ``values``."""
    return by_place.reshape(len(by_place), *[1] * (values.ndim - 2), -1)


def _columns(segments: Segments, position: Place) -> Tensor:
    """True at a place, row × column. ``all`` is everything but padding."""
    if position == "all":
        return torch.tensor([[label != "padding" for label in row.labels] for row in segments.rows])
    return at_place(segments, position, 0, segments.width)


def _positions(labels: Sequence[str], columns: list[int]) -> list[int]:
    """Positions within the prompt, not counting padding, which may lie between picture and text."""
    return [sum(label != "padding" for label in labels[:column]) for column in columns]


def _absent(columns: Columns, rows: int) -> Tensor:
    """Which rows have no such column."""
    return torch.bincount(columns[0], minlength=rows) == 0


def _reasons(missing: list[list[bool]], gaps: list[float], least: float) -> tuple[tuple[str, ...], ...]:
    near = [f"margins only {gap:.2g} logits apart" if gap < least or gap == 0 else "" for gap in gaps]
    return tuple(tuple(NO_PLACE if gone else why for gone, why in zip(row, near, strict=True)) for row in missing)


def _name(prompt: "Prompt") -> str:
    return f"'{prompt.key or prompt.text}'"
