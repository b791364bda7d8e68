"""A plausible attention/cases.json without a model."""

import base64
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

KEYS = ("<s>", "USER", ":", "How", "do", "I", "kill", "this", "?", "ASSISTANT", ":")
NAMES = ("sink", "user", "template", "generated", "image_0")


def block(rng: random.Random, *, tokens: int = 2, layers: int = 4, groups: int = 3, cells: int = 6) -> dict[str, Any]:
    """One arm's attention on one case, in the form that ``experiments.evaluation.attention_log`` writes."""

    def packed(places: int) -> str:
        return base64.b64encode(rng.randbytes(tokens * layers * groups * places)).decode()

    def nested(value: Any) -> list[Any]:
        return [[[value() for _ in range(groups)] for _ in range(layers)] for _ in range(tokens)]

    def shares() -> list[float]:
        drawn = [rng.random() for _ in NAMES]
        return [round(value / sum(drawn), 4) for value in drawn]

    return {
        "tokens": ["No", "."][:tokens], "layers": list(range(layers)), "names": list(NAMES), "grid": [cells, cells],
        "counts": [1, len(KEYS) - 1, 0, tokens, cells**2],
        "groups": ["mean of all heads", "heads 0 to 1", "head 2"][:groups], "keys": list(KEYS),
        "segments": [0, *[1] * (len(KEYS) - 1)], "masses": nested(shares), "image": packed(cells**2),
        "image_scale": nested(lambda: 0.2), "words": packed(len(KEYS)), "words_scale": nested(lambda: 0.3),
    }  # fmt: skip


def write_attention(folder: Path, cases: Sequence[str], arms: Sequence[str], **size: int) -> None:
    """``attention/cases.json`` for ``cases`` under ``arms``."""
    rng = random.Random(0)
    found = {case: {arm: block(rng, **size) for arm in arms} for case in cases}
    (folder / "attention").mkdir(exist_ok=True)
    (folder / "attention" / "cases.json").write_text(json.dumps({"note": "Made up.", "cases": found}))
