"""Where a model looks while it thinks: the picture's share of attention, by quarter of a thought and at the verdict."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float

from experiments.metrics.estimates import Resamples

if TYPE_CHECKING:
    from interp.vlm import VLM, Prompt

QUARTERS = ("first quarter", "second quarter", "third quarter", "last quarter")
VERDICT = "verdict"
PLACES = (*QUARTERS, VERDICT)


def shares_along(vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> Float[np.ndarray, "case place"]:
    """The share of attention on the image at each of ``PLACES``, a mean over heads, layers and the tokens there.

    Of what the sink leaves (``interp.attention.tables.image_share``); a token's share is that of the query which it is
    chosen at. NaN where a case has no token there, or no verdict behind a thought.

    Raises:
        UserError: attention cannot be recorded, or the family has no image tokens.
    """
    from interp.attention.record import Queries, record_attention
    from interp.attention.tables import image_share

    def of(some: "list[Prompt]") -> list[list[float]]:
        with record_attention(vlm, queries=Queries.GENERATED) as log:
            generation = vlm.generate(some, max_new_tokens=max_new_tokens)
        table = image_share(log.masses).groupby(["row", "step"])["share"].mean()
        found = []
        for row in range(len(some)):
            place = None if generation.verdicts is None else generation.verdicts[row]
            length = generation.thought_tokens[row] if generation.thought_tokens else 0
            here = table.loc[row]
            if place is None or place.step is None or not length:
                found.append([np.nan] * len(PLACES))
                continue
            quarter = {step: step * 4 // length for step in range(length)}
            means = [
                float(here[[step in quarter and quarter[step] == one for step in here.index]].mean())
                for one in range(4)
            ]
            found.append([*means, float(here.get(place.step, np.nan))])
        return found

    return np.array(vlm.batches.gathered(prompts, of), dtype=float)


def rows(
    shares: Float[np.ndarray, "case place"], failed: Bool[np.ndarray, " case"], estimator: Resamples
) -> list[dict[str, Any]]:
    """For each place the mean share of all cases, of failures and of successes, and their ``gap``."""
    found = []
    for name, column in zip(PLACES, shares.T, strict=True):
        found.append({
            "place": name, "all": estimator.mean(column), "failures": estimator.mean(column, failed),
            "successes": estimator.mean(column, ~failed), "gap": estimator.gap(column, failed, ~failed),
        })  # fmt: skip
    return found
