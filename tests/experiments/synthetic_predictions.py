"""Predictions for tests, in memory: compact descriptions of cases and arms → the records of predictions.jsonl."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

SHORT = {"t": "typical", "a": "attack", "o": "over_safety", "c": "control"}
WORDS = {"y": ("answered", "yes", "Yes."), "n": ("answered", "no", "No."), "?": ("answered", "no_verdict", "Hm"),
         "e": ("empty", None, ""), "b": ("provider_blocked", None, None), "x": ("transport_failed", None, None),
         "i": ("bad_image", None, None)}  # fmt: skip


def records(
    subsets: str, arms: Mapping[str, str], margins: Mapping[str, Sequence[float]] | None = None
) -> list[dict[str, Any]]:
    """A record a case and arm: ``subsets`` has a letter a case (t, a, o, c), each arm too (y, n, ? no verdict, e empty,
    b blocked, x transport failed, i bad image). Each case is a cluster of its own unless changed."""
    rows = []
    for arm, answers in arms.items():
        assert len(answers) == len(subsets)
        for at, (short, answer) in enumerate(zip(subsets, answers, strict=True)):
            status, verdict, response = WORDS[answer]
            unanswered = status in ("transport_failed", "bad_image")
            margin = None if unanswered or margins is None or arm not in margins else float(margins[arm][at])
            rows.append({
                "case": f"c{at:04d}", "arm": arm, "settings": "s", "status": status, "verdict": verdict,
                "published_verdict": None, "response": response, "margin": margin, "subset": SHORT[short],
                "scenario": f"scenario {at % 3}", "gold": "yes" if short == "o" else "no", "cluster": f"k{at:04d}",
                "pair": None, "tags": {}, "text": f"Hm, {at}?",
            })  # fmt: skip
    return rows


def frame(subsets: str, arms: Mapping[str, str], margins: Mapping[str, Sequence[float]] | None = None) -> pd.DataFrame:
    """``records`` as a table."""
    return pd.DataFrame(records(subsets, arms, margins))


def from_margins(subsets: str, margins: Mapping[str, np.ndarray]) -> pd.DataFrame:
    """Arms that answer Yes where their margin is positive."""
    arms = {arm: "".join("y" if margin > 0 else "n" for margin in values) for arm, values in margins.items()}
    return frame(subsets, arms, {arm: list(values) for arm, values in margins.items()})


def world(n: int, *, seed: int = 0) -> tuple[str, dict[str, np.ndarray]]:
    """A model that sees a little and says No by habit: its margins, and those of arms whose effect is known.

    ``shift`` adds a constant, ``harsher`` subtracts one, ``sees`` weighs the image more, ``blinder`` less.
    """
    rng = np.random.default_rng(seed)
    subsets = "".join(rng.permutation(list("t" * (n // 4) + "a" * (n // 4) + "o" * (n - 2 * (n // 4)))))
    image = np.array([1.0 if short == "o" else -1.0 for short in subsets]) + rng.normal(0, 1.0, n)
    words = rng.normal(-1.5, 1.0, n)
    base = words + 0.3 * image
    return subsets, {
        "baseline": base,
        "sees": 0.3 * words + 1.5 * image - 1.0,
        "shift": base + 1.0,
        "harsher": base - 1.0,
        "blinder": words - 0.3 * image,
        "calibrated_shift": base + 1.5,
    }
