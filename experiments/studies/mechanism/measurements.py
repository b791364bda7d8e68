"""What the model is asked: margins with attention edges cut, patched pairs, priors, ablated margins.

Each function runs forwards and returns arrays on the CPU.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from experiments.evaluation.batching import batches
from interp.attention_knockout import Edge, knockout, windows
from interp.hooks.residual import LayerStates, edit_residual
from interp.patching import PatchEffects, misaligned, patch
from interp.segments import segment
from mitigation.prior_correction import prior_margins

if TYPE_CHECKING:
    from interp.vlm import VLM, Prompt

EDGES: tuple[Edge, ...] = (("image", "verdict"), ("image", "user"), ("user", "verdict"))


def seconds_per_case(vlm: "VLM", prompts: "Sequence[Prompt]") -> float:
    """Seconds of a forward per prompt, from one timed batch; an untimed one before it pays for one-time set-up."""
    vlm.score(prompts)
    started = time.perf_counter()
    vlm.score(prompts)
    return (time.perf_counter() - started) / len(prompts)


def cut_margins(
    vlm: "VLM", prompts: "Sequence[Prompt]", *, width: int, batch_size: int
) -> Float[np.ndarray, "edge window row"]:
    """Margins with each of ``EDGES`` cut in all layers (window 0) and in each window of ``width`` layers after it."""
    cuts: list[Sequence[int] | None] = [None, *windows(vlm, width)]
    parts = []
    for some in batches(prompts, batch_size):
        encoded = vlm.encode(some)
        segments = segment(vlm, some, encoded)
        rows = []
        for edge in EDGES:
            for layers in cuts:
                with knockout(vlm, [edge], layers=layers, segments=segments):
                    rows.append(vlm.score(some, encoded=encoded))
        parts.append(torch.stack(rows))
    return torch.cat(parts, dim=1).double().numpy().reshape(len(EDGES), len(cuts), len(prompts))


def patched(
    vlm: "VLM",
    clean: "Sequence[Prompt]",
    others: "Sequence[Sequence[Prompt]]",
    *,
    positions: Sequence[str],
    layers: Sequence[int],
    batch_size: int,
) -> tuple[PatchEffects | None, list[int]]:
    """Patches each prompt with the first of its ``others`` that aligns with it; also which prompts have one.

    The effects are None where no prompt has one.
    """
    pairs = [(row, other) for row, some in enumerate(others) if (other := _aligned(vlm, clean[row], some, positions))]
    if not pairs:
        return None, []
    rows = [row for row, _ in pairs]
    effects = patch(
        vlm,
        [clean[row] for row in rows],
        [other for _, other in pairs],
        places=positions,
        layers=layers,
        batch_size=batch_size,
    )
    return effects, rows


def _aligned(vlm: "VLM", clean: "Prompt", others: "Sequence[Prompt]", positions: Sequence[str]) -> "Prompt | None":
    return next((other for other in others if not misaligned(vlm, [clean], [other], places=positions)[0]), None)


def priors(vlm: "VLM", prompts: "Sequence[Prompt]", prior: str, *, batch_size: int, seed: int) -> np.ndarray:
    """The margin that each sentence has without its picture (``mitigation.prior_correction``)."""
    parts = [prior_margins(vlm, some, prior, seed=seed) for some in batches(prompts, batch_size)]
    return torch.cat(parts).double().numpy()


def ablated_margins(
    vlm: "VLM",
    prompts: "Sequence[Prompt]",
    vector: Float[Tensor, "width"],
    level: float,
    *,
    layer: int,
    batch_size: int,
) -> Float[np.ndarray, "row"]:
    """Margins with the verdict's state at ``layer`` set to ``level`` along a unit ``vector``, the same for all cases.

    With the mean of all cases as the level, what differs from case to case is gone and the states stay in their usual
    range; projecting to zero would move every case by the same large step (Marshall et al. 2024, arXiv 2411.09003).
    """

    def edit(here: LayerStates) -> Tensor:
        where = here.where("verdict")
        edited = here.hidden.clone()
        states = edited[where].float()
        unit = vector.to(states)
        edited[where] = (states + (level - states @ unit)[:, None] * unit).to(edited.dtype)
        return edited

    parts = []
    for some in batches(prompts, batch_size):
        with edit_residual(vlm, edit, layers=[layer]):
            parts.append(vlm.score(some))
    return torch.cat(parts).double().numpy()


def asked_otherwise(prompts: "Sequence[Prompt]", questions: Sequence[Sequence[str]]) -> "Iterator[list[Prompt]]":
    """Each prompt with other questions instead of its own and the same picture."""
    for prompt, texts in zip(prompts, questions, strict=True):
        yield [replace(prompt, text=text) for text in texts]
