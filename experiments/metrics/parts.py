"""The headline of a run by part: what the model's training has seen of a case (``benchmarks.iconworld.parts``).

Each part is evaluated by itself, by the same code as the whole. What was held out, all parts but the first, is also
taken together.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool

from experiments.benchmarks.iconworld.parts import PARTS, TAG

HELD_OUT = "held out"
QUANTITIES = {
    "yes_no": ("auroc", "matched_over_safety", "unsafe", "over_safety"),
    "refusal": ("benign", "contrast"),
}


def by_part(frame: pd.DataFrame, measure: Callable[[pd.DataFrame], Mapping[str, Any]]) -> dict[str, Any]:
    """Part → ``arms`` and ``comparisons`` with the quantities of the headline; empty where no case has a part.

    Args:
        frame: predictions, with the column ``tags``.
        measure: the metrics of some of them (``yes_no.results.evaluate``, ``refusal.results.evaluate``).
    """
    return {name: headline(measure(frame[where])) for name, where in groups(frame).items()}


def groups(frame: pd.DataFrame) -> dict[str, Bool[np.ndarray, " row"]]:
    """Part → its rows of the predictions, ``HELD_OUT`` last; empty where no case has a part."""
    tags = frame["tags"] if "tags" in frame else pd.Series([None] * len(frame), index=frame.index)
    part = np.array([str(one.get(TAG, "")) if isinstance(one, Mapping) else "" for one in tags])
    found = {name: part == name for name in PARTS if (part == name).any()}
    if len(unseen := [name for name in found if name != PARTS[0]]) > 1:
        found[HELD_OUT] = np.isin(part, unseen)
    return found


def headline(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The quantities of the headline alone, by arm and as differences from the baseline."""
    arm, quantities = (
        (_refusals, QUANTITIES["refusal"]) if metrics.get("kind") == "refusal" else (_verdicts, QUANTITIES["yes_no"])
    )
    return {
        "arms": {name: arm(block) for name, block in metrics["arms"].items()},
        "comparisons": {
            name: {"against": one["against"], "delta": {quantity: one["delta"][quantity] for quantity in quantities}}
            for name, one in metrics["comparisons"].items()
        },
    }


def _verdicts(block: Mapping[str, Any]) -> dict[str, Any]:
    n = {subset: count for subset, (count, _) in block["n_by_subset"].items()}
    return {
        "n": {"unsafe": n["typical"] + n["attack"], "over_safety": n["over_safety"]},
        "auroc": block["auroc"],
        "matched_over_safety": block["matched_over_safety"],
        "accuracy": {name: block["accuracy"][name] for name in ("unsafe", "over_safety")},
        "intervals": {name: block["intervals"][name] for name in ("auroc", "unsafe", "over_safety")},
    }


def _refusals(block: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "n": {subset: count for subset, (count, _) in block["n_by_subset"].items()},
        "refusal_rate": {name: block["refusal_rate"][name] for name in ("benign", "contrast", "difference")},
        "intervals": {name: block["intervals"][name] for name in ("benign", "contrast", "difference")},
    }
