"""Attention of chosen cases while they are answered as in the study: cached, batched, greedy generation.

Knows nothing of statistics or files.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from jaxtyping import Float

from experiments.answering import batches
from experiments.benchmarks.images import open_image
from experiments.benchmarks.sample import Sample

if TYPE_CHECKING:
    from interp.attention import AttentionMap
    from interp.segments import RowSegments
    from interp.vlm import VLM, Prompt

EDGES = (("image", "verdict"),)


@dataclass(frozen=True)
class Recorded:
    """Some cases' answers and attention, all in the order of ``prompts``; ``maps`` are of the verdict alone."""

    prompts: "list[Prompt]"
    texts: list[str]
    margins: Float[np.ndarray, "case"]
    masses: pd.DataFrame  # of the recorder; ``row`` is the place in ``prompts``
    maps: "list[AttentionMap]"
    rows: "list[RowSegments]"


def prompts_of(samples: Sequence[Sample]) -> "list[Prompt]":
    """What the study asks of each case."""
    from interp.vlm import Prompt

    return [Prompt(s.prompt, None if s.image is None else open_image(s.image), key=s.id) for s in samples]


def record(
    vlm: "VLM",
    samples: Sequence[Sample],
    *,
    batch_size: int,
    max_new_tokens: int,
    layers: Sequence[int] | None = None,
) -> Recorded:
    """Answers the cases (all with an image, or none) and logs verdict and generated tokens in ``layers``.

    Raises:
        UserError: an unknown layer, or a model whose attention cannot be recorded.
    """
    from interp.capture import Queries, record_attention

    prompts = prompts_of(samples)
    texts: list[str] = []
    margins: list[float] = []
    with record_attention(vlm, queries=Queries.GENERATED, maps=Queries.VERDICT, layers=layers) as log:
        for batch in batches(prompts, batch_size):
            generation = vlm.generate(batch, max_new_tokens=max_new_tokens)
            texts += generation.texts
            margins += generation.margins.tolist()
    maps = sorted(log.maps, key=lambda found: found.row)
    return Recorded(prompts, texts, np.array(margins), log.masses, maps, log.rows)


def margins_without_image_edge(
    vlm: "VLM", prompts: "Sequence[Prompt]", *, batch_size: int, layers: Sequence[int] | None = None
) -> Float[np.ndarray, "case"]:
    """Margins with image → verdict attention cut in ``layers`` (default: all); what text tokens saw of it stays."""
    from interp.knockout import knockout

    with knockout(vlm, EDGES, layers=layers):
        return margins(vlm, prompts, batch_size=batch_size)


def margins(vlm: "VLM", prompts: "Sequence[Prompt]", *, batch_size: int) -> Float[np.ndarray, "case"]:
    """One forward a batch."""

    return np.concatenate([vlm.score(batch).numpy() for batch in batches(prompts, batch_size)]).astype(np.float64)
