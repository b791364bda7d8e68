"""Attention of single cases under several arms, small enough for a report: ``attention/cases.json``.

Each map is pooled over the picture, averaged over heads and kept in 8 bits; the file's ``note`` says so.
"""

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from experiments.benchmarks.images import open_pictures
from experiments.evaluation.cases import prompt_of, rolled_out
from experiments.runs.store import write_json
from experiments.types import Sample
from interp.batching import merged
from interp.errors import UserError
from mitigation.vcd import in_two_branches

if TYPE_CHECKING:
    from interp.attention.tables import AttentionMap
    from interp.image_grid import PatchGrid
    from interp.segments import RowSegments
    from interp.vlm import VLM, Generation, Prompt
    from mitigation.method import Method


def prompts_of(samples: Sequence[Sample]) -> "list[Prompt]":
    """Return what the study asks of each case."""
    return [prompt_of(s, open_pictures(s)) for s in samples]


def at_verdicts(vlm: "VLM", prompts: "Sequence[Prompt]", method: "Method", *, max_new_tokens: int) -> "list[Prompt]":
    """Return the prompts; of a model that thinks first, begun with what it says by ``method`` before its verdicts.

    Raises:
        UserError: a thought was cut off.
    """
    if not vlm.thinks or any(prompt.answer_prefix for prompt in prompts):
        return list(prompts)
    return method.generate(vlm, prompts, max_new_tokens=max_new_tokens).to_verdicts(prompts)


FILE = "attention/cases.json"
TOKENS = 2  # of an answer
CELLS = 12  # along a side of the picture
GROUPS = ["mean of all heads"]
NOTE = (
    "Attention of {cases} cases: half of them were chosen for a changed verdict, the rest are failures. Maps are "
    f"pooled to at most {CELLS} × {CELLS} cells of the picture and averaged over heads. They belong to the first "
    f"{TOKENS} tokens of an answer, each read at the position that predicts it. An arm that only changes scores looks "
    "like the baseline until its answer differs. Attention shows where a model looked, not why it answered."
)

WHOLE_PICTURE = ("base", "global")  # grids that cover the picture at once; tiles are left out where there is one
DROPPED = ("padding",)


def record_cases(
    vlm: "VLM",
    arms: "Mapping[str, Method]",
    samples: Sequence[Sample],
    folder: Path,
    *,
    max_new_tokens: int,
) -> dict[str, Any]:
    """Answer ``samples`` under ``arms`` once more and write where the first tokens of each answer looked.

    Returns the contents of ``attention/cases.json``: ``note`` and ``cases[id][arm]``. Each entry has ``tokens`` of the
    answer, ``layers``, ``groups`` of heads, and ``grid`` (rows, columns; null without image). ``keys`` are the text
    tokens read, with their ``segments``. ``names`` are the segments, with their ``counts`` of tokens.
    ``masses[token][layer][group][segment]`` are shares. ``image`` and ``words`` are maps in base64 of uint8
    [token][layer][group][place]. Multiply them by ``image_scale`` and ``words_scale`` [token][layer][group], over 255.
    An arm whose attention cannot be recorded is named in the note.
    """
    cases: dict[str, dict[str, Any]] = {}
    refused: list[str] = []
    for arm, method in arms.items():
        try:
            for sample, entry in zip(samples, _recorded(vlm, method, samples, max_new_tokens), strict=True):
                cases.setdefault(sample.id, {})[arm] = entry
        except UserError as error:
            refused.append(f"{arm}: {error}")
    note = " ".join([NOTE.format(cases=len(samples)), *(f"Not recorded: {reason}." for reason in refused)])
    result = {"note": note, "cases": cases}
    (folder / FILE).parent.mkdir(parents=True, exist_ok=True)
    write_json(folder / FILE, result)
    return result


def _recorded(
    vlm: "VLM",
    method: "Method",
    samples: Sequence[Sample],
    max_new_tokens: int,
) -> list[dict[str, Any]]:
    """Return what ``record_cases`` says of each case under one arm."""
    from interp.attention.record import record_attention

    steps = range(min(TOKENS, max_new_tokens))

    def ask(batch: "list[Prompt]") -> list[dict[str, Any]]:
        batch = at_verdicts(vlm, batch, method, max_new_tokens=max_new_tokens)
        with record_attention(vlm, queries=steps, maps=steps) as log:
            generation = in_two_branches(method).generate(vlm, batch, max_new_tokens=max_new_tokens)
        if len(log.rows) != len(batch):
            raise UserError(
                f"{len(log.rows)} prompts were forwarded for {len(batch)} cases, so attention belongs to several "
                "answers; set method.branch=sequential"
            )
        maps = {(one.row, one.step): one for one in log.maps}
        entries = []
        for row, (ids, segments) in enumerate(zip(generation.token_ids, log.rows, strict=True)):
            recorded = [step for step in steps if (row, step) in maps and step < max(1, len(ids))]
            entries.append(packed(vlm, {step: maps[row, step] for step in recorded}, segments, ids))
        return entries

    def answers(turns: "Sequence[Prompt]") -> "Generation":
        parts = vlm.batches.limit.parts(turns, lambda part: method.generate(vlm, part, max_new_tokens=max_new_tokens))
        return merged(parts)

    return vlm.batches.gathered(rolled_out(answers, prompts_of(samples)), ask)


def packed(
    vlm: "VLM",
    maps: "Mapping[int, AttentionMap]",
    segments: "RowSegments",
    ids: Sequence[int],
    cells: int = CELLS,
) -> dict[str, Any]:
    """Return the maps of one prompt by step, ascending, as ``record_cases`` has them; ``ids`` are the answer's tokens.

    A step below 0 is a token of the prompt (``interp.attention.record``), and is spelled by it.
    """
    from interp.segments import SEGMENTS

    finest, earlier = (segments.parts, segments.parts) if segments.conversation else (segments.labels, SEGMENTS)
    names = [name for name in dict.fromkeys(earlier) if name not in DROPPED]
    names += [] if "generated" in names else ["generated"]
    labels = [*finest, *["generated"] * sum(step >= 0 for step in maps)]
    words = [at for at, name in enumerate(labels) if not name.startswith("image") and name not in DROPPED]
    read = [*segments.input_ids, *ids][: len(labels)]
    words = [at for at in words if at < len(read)]
    grid = _grid(segments)
    weights = torch.stack([_averaged(found, len(labels)) for found in maps.values()])
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
        "groups": GROUPS,
        "keys": [decoded[at] for at in words],
        "segments": [names.index(labels[at]) for at in words],
        "names": names,
        "counts": [len(columns) for columns in of_segment],
        "masses": np.round(masses.numpy().astype(float), 4).tolist(),
        "grid": None,
        **_quantised("words", weights[..., words]),
        **({} if grid is None else _picture(weights, grid, cells)),
    }


def _averaged(result: "AttentionMap", width: int) -> Float[Tensor, "layer group column"]:
    """Return the mean over all heads; columns that were not there yet are 0."""
    mean = result.weights.float().mean(dim=1, keepdim=True)
    return torch.nn.functional.pad(mean, (0, max(0, width - mean.shape[-1])))[..., :width]


def _grid(segments: "RowSegments") -> "PatchGrid | None":
    """Return the grid over the whole picture, or else the first there is."""
    covering = [grid for grid in segments.grids if grid.name in WHOLE_PICTURE]
    return next(iter([*covering, *segments.grids]), None)


def _picture(weights: Float[Tensor, "token layer group column"], grid: "PatchGrid", most: int) -> dict[str, Any]:
    """Return the share of attention in each cell of the picture."""
    patches = weights[..., grid.columns]
    height, width = grid.columns.shape
    cells = (min(height, most), min(width, most))
    pooled = adaptive_avg_pool2d(patches.flatten(0, 2), cells) * (height * width / (cells[0] * cells[1]))
    return {"grid": list(cells), **_quantised("image", pooled.reshape(*weights.shape[:3], -1))}


def _quantised(name: str, weights: Float[Tensor, "token layer group place"]) -> dict[str, Any]:
    scale = weights.amax(dim=-1).clamp(min=0) if weights.shape[-1] else weights.new_zeros(weights.shape[:-1])
    steps = (255 * weights / scale.clamp(min=1e-12).unsqueeze(-1)).round().to(torch.uint8)
    packed = base64.b64encode(steps.contiguous().numpy().tobytes()).decode("ascii")
    return {name: packed, f"{name}_scale": np.round(scale.numpy().astype(float), 6).tolist()}
