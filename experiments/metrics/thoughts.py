"""How many thoughts the token budget cut off, and which budget would have let most of them end."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from statsmodels.duration.survfunc import SurvfuncRight

from experiments.types import Status

COLUMNS = ["arm", "status", "response", "thought", "margin", "thought_tokens", "verdict_step"]
SHARE = 0.95  # of the thoughts that are to come to their end


def thoughts_by_arm(predictions: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """By arm that thinks: ``n`` answers to scored cases, of them ``thought`` after a thought and ``cut_off`` within it.

    ``tokens`` is how long these thoughts are, in the mean. ``longest`` is the number of tokens after which the longest
    thought was cut off. ``budget`` is the number within which 95% of the thoughts end (``tokens_until``). Both are None
    if unknown. ``at_verdict`` is whether every margin after a thought is read at the verdict, not at the thought's
    first token. Columns of ``predictions``: arm, subset, status, response, thought, margin, and thought_tokens and
    verdict_step where a model counted them.
    """
    if "thought" not in predictions:
        return {}
    by_arm, table = {}, predictions[predictions["subset"] != "control"].reindex(columns=COLUMNS)
    for arm, rows in table.groupby("arm", sort=False):
        thinking = rows[rows["thought"].fillna("").astype(bool)]
        if thinking.empty:
            continue
        cut = ((thinking["status"] == Status.TRUNCATED) & ~thinking["response"].fillna("").astype(bool)).to_numpy()
        lengths = thinking["thought_tokens"].to_numpy(dtype=float)
        counted = bool(np.isfinite(lengths).all())
        by_arm[str(arm)] = {
            "n": len(rows),
            "thought": len(thinking),
            "cut_off": int(cut.sum()),
            "tokens": float(np.mean(lengths)) if counted else None,
            "longest": int(lengths[cut].max()) if counted and cut.any() else None,
            "budget": tokens_until(lengths, ~cut) if counted else None,
            "at_verdict": bool((thinking["verdict_step"].notna() | thinking["margin"].isna()).all()),
        }
    return by_arm


def tokens_until(lengths: Sequence[float], ended: Sequence[bool], share: float = SHARE) -> int | None:
    """Return the least number of tokens within which a ``share`` of thoughts end; None if the thoughts do not show it.

    A thought that was cut off would have been longer: it is censored. The share is the product-limit estimate of Kaplan
    and Meier (1958).
    """
    tokens = SurvfuncRight(np.asarray(lengths), np.asarray(ended, dtype=int)).quantile(share - 1e-12)
    return None if np.isnan(tokens) else int(tokens)
