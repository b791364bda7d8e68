"""Where a model looks while it thinks: the picture's share of attention, by quarter of a thought and at the verdict."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float

from experiments.metrics.estimates import Resamples
from experiments.runs.results_table import Row, group_of, row
from experiments.studies.reasoning.decision_curve import ARM

if TYPE_CHECKING:
    from interp.vlm import VLM, Prompt

WHILE = ("first quarter", "second quarter", "third quarter", "last quarter", "verdict")


def shares_along(
    vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int
) -> Float[np.ndarray, "case while_writing"]:
    """Return the share of attention on the image at each of ``WHILE``, a mean over heads, layers and tokens.

    The attention sink is left out (``interp.attention.tables.image_share``). A token's share is that of the query that
    it is chosen at. NaN if a case has no token there, or no verdict after a thought.

    Raises:
        UserError: attention cannot be recorded, or the family has no image tokens.
    """
    from interp.attention.record import Queries, record_attention
    from interp.attention.tables import image_share

    def recorded(batch: "list[Prompt]") -> list[list[float]]:
        with record_attention(vlm, queries=Queries.GENERATED) as log:
            generation = vlm.generate(batch, max_new_tokens=max_new_tokens)
        table = image_share(log.masses).groupby(["row", "step"])["share"].mean()
        shares = []
        for index in range(len(batch)):
            verdict = None if generation.verdicts is None else generation.verdicts[index]
            length = generation.thought_tokens[index] if generation.thought_tokens else 0
            if verdict is None or verdict.step is None or not length:
                shares.append([np.nan] * len(WHILE))
                continue
            here = table.loc[index]
            quarters = [step * 4 // length if step < length else None for step in here.index]
            means = [float(here[[quarter == number for quarter in quarters]].mean()) for number in range(4)]
            shares.append([*means, float(here.get(verdict.step, np.nan))])
        return shares

    return np.array(vlm.batches.gathered(prompts, recorded), dtype=float)


def look_rows(
    shares: Float[np.ndarray, "case while_writing"], failed: Bool[np.ndarray, " case"], estimator: Resamples
) -> list[Row]:
    """Return the mean share of all cases, of failures and of successes, and the difference of these two."""
    rows = []
    for name, values in zip(WHILE, shares.T, strict=True):
        key = {"arm": ARM, "group": group_of(writing=name)}
        rows += [
            row("thought_image_share", **key, entry=estimator.mean(values)),
            row("thought_image_share", **key, subset="failures", entry=estimator.mean(values, failed)),
            row("thought_image_share", **key, subset="successes", entry=estimator.mean(values, ~failed)),
            row("thought_image_share", **key, subset="failures", against="successes",
                entry=estimator.gap(values, failed, ~failed)),
        ]  # fmt: skip
    return rows
