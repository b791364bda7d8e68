"""Attention of single cases under several arms, small enough for a report: ``attention/cases.json``.

Each map is pooled over the picture, averaged over heads (all of them, and a few groups) and kept in 8 bits. How coarse
it is follows from how many there are, and the file's ``note`` says so.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from experiments.benchmarks.images import open_image
from experiments.evaluation.case_batches import prompt_of
from experiments.report.cases import choose, correct, flips
from experiments.runs.store import write_json
from experiments.types import Sample
from interp.errors import UserError
from mitigation.vcd import in_two_branches

if TYPE_CHECKING:
    from interp.attention.tables import AttentionMap
    from interp.image_grid import PatchGrid
    from interp.segments import RowSegments
    from interp.vlm import VLM, Prompt
    from mitigation.method import Method


def prompts_of(samples: Sequence[Sample]) -> "list[Prompt]":
    """What the study asks of each case."""
    return [prompt_of(s, None if s.image is None else open_image(s.image)) for s in samples]


def at_verdicts(vlm: "VLM", prompts: "Sequence[Prompt]", method: "Method", *, max_new_tokens: int) -> "list[Prompt]":
    """The prompts; of a model that thinks first, begun with what it says by ``method`` before its verdicts.

    Raises:
        UserError: a thought was cut off.
    """
    if not vlm.thinks or any(prompt.begun for prompt in prompts):
        return list(prompts)
    return method.generate(vlm, prompts, max_new_tokens=max_new_tokens).to_verdicts(prompts)


FILE = "attention/cases.json"
BUDGET = 12_000_000  # bytes of all maps together
TYPICAL_WORDS = 80  # text tokens of a prompt, for the estimate


@dataclass(frozen=True)
class MapResolution:
    """How fine the maps are: answer tokens, cells along a side of the picture, groups of heads (0: only their mean)."""

    tokens: int
    cells: int
    groups: int

    def bytes(self, layers: int) -> int:
        """Of one case under one arm."""
        return self.tokens * layers * (1 + self.groups) * (self.cells**2 + TYPICAL_WORDS)


# From fine to coarse.
RESOLUTIONS = (
    MapResolution(3, 12, 4),
    MapResolution(3, 12, 2),
    MapResolution(2, 12, 2),
    MapResolution(2, 8, 2),
    MapResolution(2, 8, 0),
    MapResolution(1, 8, 0),
)


def finest(*, layers: int, maps: int) -> MapResolution:
    """The finest resolution at which ``maps`` (cases × arms) of ``layers`` layers fit the budget, else the coarsest."""
    return next(
        (resolution for resolution in RESOLUTIONS if resolution.bytes(layers) * maps <= BUDGET), RESOLUTIONS[-1]
    )


WHOLE_PICTURE = ("base", "global")  # grids that cover the picture at once; tiles are left out where there is one
DROPPED = ("padding",)


def cases_to_show(
    samples: Sequence[Sample], records: Sequence[Mapping[str, Any]], *, studied: str, reference: str, limit: int
) -> list[Sample]:
    """At most ``limit`` cases: half of them flips from ``reference`` to ``studied``, then failures of the former."""
    found = choose(flips(records, arm=studied, reference=reference), arm=studied, count=max(1, limit // 2))
    flipped = [flip.case for flip in found]
    failures = [
        r["case"] for r in records if r["arm"] == reference and correct(r) is False and r["case"] not in flipped
    ]
    chosen = {*flipped, *failures[:: max(1, len(failures) // max(1, limit - len(flipped)))][: limit - len(flipped)]}
    return [sample for sample in samples if sample.id in chosen]


def record_cases(
    vlm: "VLM",
    arms: "Mapping[str, Method]",
    samples: Sequence[Sample],
    folder: Path,
    *,
    max_new_tokens: int,
) -> dict[str, Any]:
    """Answers ``samples`` under ``arms`` once more and writes where the first tokens of each answer looked.

    Returns the contents of ``attention/cases.json``: ``note``, and ``cases[id][arm]`` with ``tokens`` (of the answer),
    ``layers``, ``groups`` (of heads), ``grid`` (rows, columns; null without image), ``keys`` (text tokens read) with
    their ``segments``, ``names`` (of segments) with their ``counts`` of tokens, the shares
    ``masses[token][layer][group][segment]``, and the packed maps ``image`` and ``words``: base64 of uint8
    [token][layer][group][place], to be multiplied by ``image_scale`` and ``words_scale`` [token][layer][group] over
    255. An arm whose attention cannot be recorded is named in the note.
    """
    layers = len(vlm.layout.attentions(vlm.model))
    resolution = finest(layers=layers, maps=len(samples) * len(arms))
    cases: dict[str, dict[str, Any]] = {}
    refused: list[str] = []
    branches: dict[str, str] = {}
    for arm, method in arms.items():
        try:
            recorded = _recorded(vlm, method, samples, resolution, max_new_tokens)
            for sample, entry in zip(samples, recorded, strict=True):
                branches |= {arm: branch} if (branch := entry.pop("branch")) else {}
                cases.setdefault(sample.id, {})[arm] = entry
        except UserError as error:
            refused.append(f"{arm}: {error}")
    result = {"note": _note(resolution, len(samples), refused, branches), "cases": cases}
    (folder / FILE).parent.mkdir(parents=True, exist_ok=True)
    write_json(folder / FILE, result)
    return result


def _recorded(
    vlm: "VLM",
    method: "Method",
    samples: Sequence[Sample],
    resolution: MapResolution,
    max_new_tokens: int,
) -> list[dict[str, Any]]:
    """What ``record_cases`` says of each case under one arm."""
    from interp.attention.record import record_attention

    steps = range(min(resolution.tokens, max_new_tokens))

    def ask(some: "list[Prompt]") -> list[dict[str, Any]]:
        some = at_verdicts(vlm, some, method, max_new_tokens=max_new_tokens)
        with record_attention(vlm, queries=steps, maps=steps) as log:
            generation = in_two_branches(method).generate(vlm, some, max_new_tokens=max_new_tokens)
        if len(log.rows) != len(some):
            raise UserError(
                f"{len(log.rows)} prompts were forwarded for {len(some)} cases; its attention is not one answer's; "
                "look at it with branch=sequential"
            )
        maps = {(one.row, one.step): one for one in log.maps}
        found = []
        for row, (ids, segments) in enumerate(zip(generation.token_ids, log.rows, strict=True)):
            shown = [step for step in steps if (row, step) in maps and step < max(1, len(ids))]
            entry = packed(vlm, {step: maps[row, step] for step in shown}, segments, ids, resolution)
            found.append({"branch": generation.branch} | entry)
        return found

    return vlm.batches.gathered(prompts_of(samples), ask)


def packed(
    vlm: "VLM",
    maps: "Mapping[int, AttentionMap]",
    segments: "RowSegments",
    ids: Sequence[int],
    resolution: MapResolution,
) -> dict[str, Any]:
    """The maps of one prompt by step, ascending, as ``record_cases`` has them; ``ids`` are the answer's tokens.

    A step below 0 is a token of the prompt (``interp.attention.record``), and is spelled by it.
    """
    from interp.segments import SEGMENTS

    names = [name for name in SEGMENTS if name not in DROPPED]
    labels = [*segments.labels, *["generated"] * sum(step >= 0 for step in maps)]
    words = [at for at, name in enumerate(labels) if not name.startswith("image") and name not in DROPPED]
    read = [*segments.input_ids, *ids][: len(labels)]
    words = [at for at in words if at < len(read)]
    grid = _grid(segments)
    weights = torch.stack([_grouped(found, resolution, len(labels)) for found in maps.values()])
    of_segment = [[at for at, label in enumerate(labels) if label == name] for name in names]
    masses = torch.stack([weights[..., columns].sum(-1) for columns in of_segment], dim=-1)
    decoded = [vlm.tokenizer.decode([token]).strip() or "␣" for token in read]
    first = next(iter(maps.values()))
    spelled = [vlm.tokenizer.decode([ids[s]]).strip() or "␣" if s >= 0 and ids else "(nothing)" for s in maps]
    return {
        "tokens": [
            decoded[len(segments.labels) - 1 + s] if s < 0 else text for s, text in zip(maps, spelled, strict=True)
        ],
        "layers": list(first.layers),
        "groups": _group_names(first.weights.shape[1], resolution),
        "keys": [decoded[at] for at in words],
        "segments": [names.index(labels[at]) for at in words],
        "names": names,
        "counts": [len(columns) for columns in of_segment],
        "masses": np.round(masses.numpy().astype(float), 4).tolist(),
        "grid": None,
        **_quantised("words", weights[..., words]),
        **({} if grid is None else _picture(weights, grid, resolution)),
    }


def _grouped(found: "AttentionMap", resolution: MapResolution, width: int) -> Float[Tensor, "layer group column"]:
    """Mean over all heads, then over each group; columns that were not there yet are 0."""
    weights = found.weights.float()
    parts = [weights, *(weights.tensor_split(resolution.groups, dim=1) if resolution.groups else ())]
    means = torch.stack([part.mean(dim=1) for part in parts if part.shape[1]], dim=1)
    return torch.nn.functional.pad(means, (0, max(0, width - means.shape[-1])))[..., :width]


def _group_names(heads: int, resolution: MapResolution) -> list[str]:
    parts = [part.tolist() for part in torch.arange(heads).tensor_split(resolution.groups)] if resolution.groups else []
    spans = [f"heads {part[0]} to {part[-1]}" if len(part) > 1 else f"head {part[0]}" for part in parts if part]
    return ["mean of all heads", *spans]


def _grid(segments: "RowSegments") -> "PatchGrid | None":
    """The grid over the whole picture, or else the first there is."""
    whole = [grid for grid in segments.grids if grid.name in WHOLE_PICTURE]
    return next(iter([*whole, *segments.grids]), None)


def _picture(
    weights: Float[Tensor, "token layer group column"], grid: "PatchGrid", resolution: MapResolution
) -> dict[str, Any]:
    """The share of attention in each cell of the picture."""
    patches = weights[..., grid.columns]
    height, width = grid.columns.shape
    cells = (min(height, resolution.cells), min(width, resolution.cells))
    pooled = adaptive_avg_pool2d(patches.flatten(0, 2), cells) * (height * width / (cells[0] * cells[1]))
    return {"grid": list(cells), **_quantised("image", pooled.reshape(*weights.shape[:3], -1))}


def _quantised(name: str, weights: Float[Tensor, "token layer group place"]) -> dict[str, Any]:
    scale = weights.amax(dim=-1).clamp(min=0) if weights.shape[-1] else weights.new_zeros(weights.shape[:-1])
    steps = (255 * weights / scale.clamp(min=1e-12).unsqueeze(-1)).round().to(torch.uint8)
    packed = base64.b64encode(steps.contiguous().numpy().tobytes()).decode("ascii")
    return {name: packed, f"{name}_scale": np.round(scale.numpy().astype(float), 6).tolist()}


def _note(resolution: MapResolution, cases: int, refused: Sequence[str], branches: Mapping[str, str]) -> str:
    groups = f"all of them and {resolution.groups} groups" if resolution.groups else "all of them together"
    return " ".join(
        [
            f"Attention of {cases} cases, half of them chosen for a changed verdict, the rest failures: pooled to at "
            f"most {resolution.cells} × {resolution.cells} cells of the picture, heads averaged ({groups}), in 256 "
            f"steps of each map's largest weight, for the first {resolution.tokens} tokens of an answer. A token's "
            "attention is that of the position which it was read off. An arm that only changes scores (a contrast, a "
            "shift) looks like the baseline until its answer differs. Attention shows where a model looked, not why it "
            "answered.",
            *(
                f"Recorded with branch={branch}: {arm}, whatever the branch it was answered with."
                for arm, branch in branches.items()
            ),
            *(f"Not recorded: {reason}" for reason in refused),
        ]
    )
