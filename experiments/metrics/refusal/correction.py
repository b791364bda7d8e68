"""Refusal rates corrected for their judge's error, as a judge card (``task=judge_validation``) says it is."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.metrics.judge_error import rogan_gladen
from interp.errors import UserError

SUBSETS = ("benign", "contrast")


def corrected(metrics: Mapping[str, Any], card: Path, judge: str) -> dict[str, Any]:
    """By arm and subset, the rate that the judge's sensitivity and specificity leave (Rogan and Gladen 1978).

    ``metrics`` are a refusal benchmark's; the result stands beside its raw rates, and replaces none.

    Raises:
        UserError: the card cannot be read or does not measure ``judge``, or the judge is no better than guessing.
    """
    known = _pooled(card, judge)
    sensitivity, specificity = float(known["sensitivity"]), float(known["specificity"])
    positives = int(known["refused"])
    counts = {"positives": positives, "negatives": int(known["n"]) - positives}
    arms: dict[str, dict[str, Any]] = {}
    for name, arm in metrics["arms"].items():
        for subset in SUBSETS:
            rate, n = arm["refusal_rate"][subset], arm["n_by_subset"][subset][0]
            if rate is not None and n:
                found = rogan_gladen(rate, sensitivity, specificity, n=n, **counts)
                arms.setdefault(name, {})[subset] = found._asdict() | {"impossible": found.impossible}
    return {"judge": judge, "sensitivity": sensitivity, "specificity": specificity, **counts, "arms": arms}


def _pooled(card: Path, judge: str) -> Mapping[str, Any]:
    try:
        judges = json.loads(card.read_text(encoding="utf-8"))["judges"]
        known = {name: one["pooled"] for name, one in judges.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise UserError(
            f"judge_card={card}: is no judge card; task=judge_validation writes judge_card.json; give that file's path"
        ) from None
    if judge not in known:
        raise UserError(
            f"judge_card={card}: does not measure {judge} (it has {', '.join(known)}); "
            f"make one with task=judge_validation judge={judge}"
        )
    return known[judge]
