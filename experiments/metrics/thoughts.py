"""How many thoughts the token budget cut off, and which budget would have let most of them end."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from experiments.types import Status

SHARE = 0.95  # of the thoughts that are to come to their end


def thoughts_by_arm(predictions: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """By arm that thinks: ``n`` answers to scored cases, of them ``thought`` after a thought and ``cut_off`` within it.

    ``tokens`` is how long these thoughts are, in the mean. ``longest`` are the tokens after which the longest one was
    cut off, ``budget`` those within which 95% of the thoughts end (``tokens_until``); None where it is not known.
    ``at_verdict`` is whether every margin behind a thought is the verdict's, not that of the thought's first token.
    Columns of ``predictions``: arm, subset, status, response, thought, margin, and thought_tokens and verdict_step
    where a model counted them.
    """
    if "thought" not in predictions:
        return {}
    found = {}
    for arm, rows in predictions[predictions["subset"] != "control"].groupby("arm", sort=False):
        thinking = rows[rows["thought"].fillna("").astype(bool)]
        if thinking.empty:
            continue
        cut = ((thinking["status"] == Status.TRUNCATED) & ~thinking["response"].fillna("").astype(bool)).to_numpy()
        counted = thinking.get("thought_tokens", pd.Series(np.nan, index=thinking.index)).to_numpy(dtype=float)
        known = bool(np.isfinite(counted).all())
        steps = thinking.get("verdict_step", pd.Series(np.nan, index=thinking.index))
        margins = thinking.get("margin", pd.Series(np.nan, index=thinking.index))
        found[str(arm)] = {
            "n": len(rows),
            "thought": len(thinking),
            "cut_off": int(cut.sum()),
            "tokens": float(np.mean(counted)) if known else None,
            "longest": int(counted[cut].max()) if known and cut.any() else None,
            "budget": tokens_until(counted.tolist(), (~cut).tolist()) if known else None,
            "at_verdict": bool((steps.notna() | margins.isna()).all()),
        }
    return found


def tokens_until(lengths: Sequence[float], ended: Sequence[bool], share: float = SHARE) -> int | None:
    """The least number of tokens within which a ``share`` of thoughts end; None where the thoughts do not show it.

    A thought that was cut off would have taken more than its length: it is censored, and the share that ends by a
    length is 1 − the product over all lengths up to there of (1 − ends / thoughts at least so long): the product-limit
    estimate of Kaplan and Meier (1958). At one length ends come before cuts.
    """
    lasting, sizes, ends = 1.0, np.asarray(lengths), np.asarray(ended, dtype=bool)
    for length in np.unique(sizes[ends]):
        lasting *= 1 - (ends & (sizes == length)).sum() / (sizes >= length).sum()
        if lasting <= 1 - share + 1e-12:
            return int(length)
    return None
