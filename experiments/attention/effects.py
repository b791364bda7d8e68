"""What the image does to the margin, beside where attention goes: two interventions on the same cases.

*Without the edge*: image → verdict attention is cut, so that the picture reaches the verdict only through what other
tokens took from it. *Swapped*: the counterfactual twin's picture (same sentence, opposite truth), else
another case's. Attention is not causation; these are.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pandas as pd

from experiments.attention.matching import swapped
from experiments.attention.recording import Recorded, margins, margins_without_image_edge
from experiments.benchmarks.images import open_image
from experiments.benchmarks.sample import Sample

if TYPE_CHECKING:
    from interp.vlm import VLM


def effects(
    vlm: "VLM",
    samples: Sequence[Sample],
    recorded: Recorded,
    usable: Sequence[Sample],
    *,
    batch_size: int,
    layers: Sequence[int] | None,
    seed: int,
) -> pd.DataFrame:
    """One row a case: margins as answered, without the edge (in ``layers``), and with another picture; all in logits.

    ``usable`` are the cases whose picture may be taken; where there is no other one, ``margin_swapped`` is missing.
    """
    others = [swapped(usable, sample, seed=seed) for sample in samples]
    table = pd.DataFrame(
        {
            "case": [sample.id for sample in samples],
            "margin": recorded.margins,
            "margin_without_edge": margins_without_image_edge(
                vlm, recorded.prompts, batch_size=batch_size, layers=layers
            ),
            "margin_swapped": float("nan"),
            "swapped_with": [other.id if other else None for other in others],
            "twin": [
                other is not None and sample.pair is not None and other.pair == sample.pair
                for sample, other in zip(samples, others, strict=True)
            ],
        }
    )
    prompts = [
        replace(prompt, image=open_image(other.image))
        for prompt, other in zip(recorded.prompts, others, strict=True)
        if other is not None and other.image is not None
    ]
    if prompts:
        table.loc[table["swapped_with"].notna(), "margin_swapped"] = margins(vlm, prompts, batch_size=batch_size)
    return table
