"""Activation patching between the members of a counterfactual pair: same sentence and other picture, or vice versa.

The clean prompt is run with the hidden states of one place at one layer replaced by those of the other prompt. How far
its margin moves towards the other's measures how much of the difference passes through there (Vig et al. 2020; Meng et
al. 2022, "Locating and Editing Factual Associations in GPT", section 2). Layers and places are those of
``interp.hooks.residual``. States are replaced column by column, so a pair must be aligned. To patch in the other
direction, swap the two lists; the results need not agree.

Families that add the picture again after a layer (Qwen3-VL's first layers, cross-attention) add the clean prompt's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.batching import measured
from interp.errors import UserError
from interp.hooks.residual import READABLE, LayerStates, at_place, check_places, edit_residual, last_layer
from interp.segments import IMAGE, Segments, segment

if TYPE_CHECKING:
    from interp.vlm import VLM, Prompt

PATCHABLE = (*READABLE, "all")
"""Places that can be patched. ``all`` is the whole prompt."""

SINGLE = ("verdict", "sink", "last_image", "last_user")
FREE = ("user", "system", IMAGE)  # segments in which the two members may differ
LEAST_GAP = 0.1
NO_PLACE = "neither prompt has such a place"


@dataclass(frozen=True)
class PatchEffects:
    """The effect of patching on each pair's clean prompt. Margins are in logits, float32, on the CPU.

    ``moved`` is the patched margin minus the clean one, NaN if neither prompt has the place. ``reasons[place][row]``
    says why an effect is NaN; else it is "".
    """

    moved: Float[Tensor, "place layer row"]
    clean: Float[Tensor, "row"]
    other: Float[Tensor, "row"]
    places: tuple[str, ...]
    layers: tuple[int, ...]
    reasons: tuple[tuple[str, ...], ...]

    @property
    def values(self) -> Float[Tensor, "place layer row"]:
        """``moved`` divided by the gap between the two margins: 0 is no effect, 1 the other prompt's margin, or NaN."""
        unknown = torch.tensor([[bool(reason) for reason in rows] for rows in self.reasons])
        return (self.moved / (self.other - self.clean)).masked_fill(unknown[:, None], torch.nan)

    def at(self, place: str, layer: int) -> Float[Tensor, "row"]:
        """The effects of one place and layer.

        Raises:
            UserError: a place or layer that was not patched.
        """
        for name, value, known in (("place", place, self.places), ("layer", layer, self.layers)):
            if value not in known:
                have = ", ".join(map(str, known))
                raise UserError(f"no {name} {value!r} among what was patched; there are: {have}; patch it too")
        return self.values[self.places.index(place), self.layers.index(layer)]

    @property
    def table(self) -> pd.DataFrame:
        """Tidy table with columns place, layer, row, clean, other, moved, effect, reason."""
        values = self.values
        return pd.DataFrame(
            {
                "place": place,
                "layer": layer,
                "row": row,
                "clean": float(self.clean[row]),
                "other": float(self.other[row]),
                "moved": float(self.moved[i, j, row]),
                "effect": float(values[i, j, row]),
                "reason": self.reasons[i][row],
            }
            for i, place in enumerate(self.places)
            for j, layer in enumerate(self.layers)
            for row in range(len(self.clean))
        )


def patch(
    vlm: "VLM",
    clean: "Sequence[Prompt]",
    other: "Sequence[Prompt]",
    *,
    places: Sequence[str] = ("verdict", "image", "user"),
    layers: Sequence[int] | None = None,
    batch_size: int | None = None,
    least_gap: float = LEAST_GAP,
) -> PatchEffects:
    """Patches states of ``other`` into ``clean``, pair by pair, at one place and layer (default: 0 to L) at a time.

    Costs places · layers + 2 forwards per batch, and memory for the other prompts' states. ``batch_size`` is the most
    pairs at once, None for the rule of the open road (``interp.batching``). Effects are NaN for pairs
    whose margins are less than ``least_gap`` logits apart.

    Raises:
        UserError: empty lists or lists of different lengths, an unknown place or layer, image tokens of a model that
            has none, or a pair that is not aligned at a place (``misaligned``).
    """
    places = tuple(places)
    layers = tuple(range(last_layer(vlm) + 1)) if layers is None else tuple(layers)
    check_places(vlm, places, PATCHABLE)
    if len(clean) != len(other):
        raise UserError(
            f"{len(clean)} clean prompts, {len(other)} others; patching needs one other a clean prompt; check the pairs"
        )

    def margins(some: list[int]) -> Float[Tensor, "row margin"]:
        """Clean, other, whether neither has a place, by place, and patched, by place and layer."""
        batch = _Pairs.of(vlm, [clean[index] for index in some], [other[index] for index in some], some)
        columns = {place: batch.aligned(place) for place in places}
        before, after = (vlm.score(batch.clean, encoded=batch.clean_inputs), batch.read(vlm, columns, layers))
        absent = [_absent(columns[place][0], len(some)).to(before) for place in places]
        patched = [batch.patched(vlm, columns[place], place, layer) for place in places for layer in layers]
        return torch.stack([before, after, *absent, *patched], dim=1)

    clean_margins, other_margins, *rest = measured(vlm, clean, margins, batch_size=batch_size).unbind(1)
    missing = torch.stack(rest[: len(places)]).bool()
    patched = torch.stack(rest[len(places) :]).unflatten(0, (len(places), len(layers)))
    return PatchEffects(
        moved=(patched - clean_margins).masked_fill(missing[:, None], torch.nan),
        clean=clean_margins,
        other=other_margins,
        places=places,
        layers=layers,
        reasons=_reasons(missing.tolist(), (other_margins - clean_margins).abs().tolist(), least_gap),
    )


def misaligned(vlm: "VLM", clean: "Sequence[Prompt]", other: "Sequence[Prompt]", *, places: Sequence[str]) -> list[str]:
    """Why each pair cannot be patched at ``places``, or "" if it can.

    A place is aligned if both prompts have the same number of columns there, at the same positions (or a single one),
    patch grids of the same shape and, outside question, system text and picture, the same tokens.

    Raises:
        UserError: an unknown place, or lists of different lengths.
    """
    check_places(vlm, places, PATCHABLE)
    if len(clean) != len(other):
        raise UserError(f"{len(clean)} clean prompts and {len(other)} others; a pair has one of each; check the pairs")
    found = []
    for i, (one, another) in enumerate(zip(clean, other, strict=True)):
        batch = _Pairs.of(vlm, [one], [another], [i])
        found.append(next((reason for place in places if (reason := batch.mismatch(place, 0))), ""))
    return found


Columns = tuple[Int[Tensor, "n"], Int[Tensor, "n"]]
"""Rows and columns of a batch."""


@dataclass(frozen=True)
class _Pairs:
    """A batch of pairs; ``states`` are the other prompts' hidden states by place and layer."""

    clean: "Sequence[Prompt]"
    other: "Sequence[Prompt]"
    indices: Sequence[int]  # of the batch's pairs among all pairs
    clean_inputs: Any
    other_inputs: Any
    clean_segments: Segments
    other_segments: Segments
    states: dict[tuple[str, int], Float[Tensor, "n width"]]

    @classmethod
    def of(cls, vlm: "VLM", clean: "Sequence[Prompt]", other: "Sequence[Prompt]", indices: Sequence[int]) -> "_Pairs":
        a, b = vlm.encode(clean), vlm.encode(other)
        return cls(clean, other, indices, a, b, segment(vlm, clean, a), segment(vlm, other, b), {})

    def aligned(self, place: str) -> tuple[Columns, Columns]:
        """The columns of a place in the clean and the other batch, in the same order."""
        for row in range(len(self.clean)):
            reason = self.mismatch(place, row)
            if reason:
                raise UserError(
                    f"pair {self.indices[row]} ({_name(self.clean[row])} and {_name(self.other[row])}) does not align "
                    f"at '{place}': {reason}; patching goes column by column; leave the pair out (misaligned) or "
                    "choose another place"
                )
        found = (_columns(some, place).nonzero(as_tuple=True) for some in (self.clean_segments, self.other_segments))
        a, b = found
        return (a[0], a[1]), (b[0], b[1])

    def mismatch(self, place: str, row: int) -> str:
        """Why a pair is not aligned at a place, or ""."""
        sides = (self.clean_segments, self.other_segments)
        one, another = (_columns(some, place)[row].nonzero()[:, 0].tolist() for some in sides)
        a, b = (some.rows[row] for some in sides)
        if len(one) != len(another):
            return f"{len(one)} columns against {len(another)}"
        labels = [(a.labels[i], b.labels[j]) for i, j in zip(one, another, strict=True)]
        tokens = [(a.input_ids[i], b.input_ids[j]) for i, j in zip(one, another, strict=True)]
        if any(left != right for left, right in labels):
            return "segments of other lengths"
        if place not in SINGLE and _positions(a.labels, one) != _positions(b.labels, another):
            return "its columns stand at other positions"
        shapes = [[tuple(grid.columns.shape) for grid in side.grids] for side in (a, b)]
        if any(left == IMAGE for left, _ in labels) and shapes[0] != shapes[1]:
            return f"picture grids of {shapes[0]} against {shapes[1]}"
        if any(left != right for (left, right), (name, _) in zip(tokens, labels, strict=True) if name not in FREE):
            return "other tokens outside question and picture"
        return ""

    def read(
        self, vlm: "VLM", columns: dict[str, tuple[Columns, Columns]], layers: Sequence[int]
    ) -> Float[Tensor, "row"]:
        """The other prompts' margins. Stores their states at these columns."""

        def keep(here: LayerStates) -> None:
            for place, (_, (rows, there)) in columns.items():
                self.states[place, here.layer] = here.hidden[rows, there]

        with edit_residual(vlm, keep, layers=layers):
            return vlm.score(self.other, encoded=self.other_inputs)

    def patched(self, vlm: "VLM", columns: tuple[Columns, Columns], place: str, layer: int) -> Float[Tensor, "row"]:
        """The clean prompts' margins with one place at one layer replaced."""
        rows, there = columns[0]

        def put(here: LayerStates) -> Tensor:
            hidden = here.hidden.clone()
            hidden[rows, there] = self.states[place, layer]
            return hidden

        with edit_residual(vlm, put, layers=[layer]):
            return vlm.score(self.clean, encoded=self.clean_inputs)


def _columns(segments: Segments, place: str) -> Tensor:
    """True at a place, row × column. ``all`` is everything but padding."""
    if place == "all":
        return torch.tensor([[label != "padding" for label in row.labels] for row in segments.rows])
    return at_place(segments, place, 0, segments.width)


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
