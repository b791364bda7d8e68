"""Predictions of a refusal benchmark for tests, in memory."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

WORDS = {"r": ("answered", "refused"), "p": ("answered", "partial"), "c": ("answered", "complied"),
         "n": ("answered", "rebutted"),
         "j": ("answered", "judge_failed"), "e": ("empty", None), "b": ("provider_blocked", None),
         "x": ("transport_failed", None), "i": ("bad_image", None)}  # fmt: skip
TYPES = ("Exaggerated Risk", "Negated Harm", "Counterintuitive Interpretation")


def records(subsets: str, arms: Mapping[str, str]) -> list[dict[str, Any]]:
    """A record a case and arm: a letter a case in ``subsets`` (b benign, c contrast) and in each arm (r refused,
    p partial, c complied, n rebutted, j judge failed, e empty, b blocked, x transport failed, i bad image);
    types by turns."""
    rows = []
    for arm, answers in arms.items():
        for at, (short, answer) in enumerate(zip(subsets, answers, strict=True)):
            status, verdict = WORDS[answer]
            rows.append({
                "case": f"c{at:04d}", "arm": arm, "settings": "s", "status": status, "verdict": verdict,
                "published_verdict": None, "response": "text" if status == "answered" else None, "margin": None,
                "subset": "benign" if short == "b" else "contrast", "scenario": TYPES[at % 3],
                "gold": "comply" if short == "b" else "refuse", "cluster": f"k{at:04d}", "pair": None,
                "tags": {"child": str(at % 2), "pid": str(at)}, "text": f"Hm, {at}?",
            })  # fmt: skip
    return rows


def frame(subsets: str, arms: Mapping[str, str]) -> pd.DataFrame:
    """``records`` as a table."""
    return pd.DataFrame(records(subsets, arms))
