"""The report's section on attention: what attention.json concluded, with the curves by layer. Reads the run alone.

The heatmaps of single cases stay in figures/: they show pictures of unsafe subsets, which a report hides until asked.
"""

import base64
import json
from pathlib import Path
from typing import NamedTuple

from experiments.report.numbers import percent

CURVES = "attention_by_layer_"
WORDS = 8  # of those that draw most attention, how many are listed


class Curve(NamedTuple):
    """One figure as a data URI with its text alternative; ``name`` is that of its file."""

    uri: str
    alt: str
    name: str


class Attention(NamedTuple):
    """What the template prints; nothing in it is marked as safe HTML."""

    sentences: list[str]
    words: list[str]
    curves: list[Curve]
    heatmaps: int


def attention(run_dir: Path) -> Attention | None:
    """None for a run whose attention was not looked at, or whose attention.json cannot be read."""
    try:
        found = json.loads((run_dir / "attention.json").read_text(encoding="utf-8"))
        sentences = [str(sentence) for sentence in found["sentences"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    words = [f"{word['word']} ({percent(word['mass'])}%)" for word in (found.get("words") or [])[:WORDS]]
    names = [Path(str(name)).name for name in found.get("figures") or []]  # the name alone: no path leaves the run
    curves = [_curve(run_dir / "figures" / name) for name in names if name.startswith(CURVES)]
    heatmaps = sum(not name.startswith(CURVES) for name in names)
    return Attention(sentences, words, [curve for curve in curves if curve is not None], heatmaps)


def _curve(path: Path) -> Curve | None:
    if not path.is_file():
        return None
    subset = path.stem.removeprefix(CURVES).replace("_", "-")
    kind = {".svg": "svg+xml", ".png": "png"}.get(path.suffix, "png")
    uri = f"data:image/{kind};base64," + base64.b64encode(path.read_bytes()).decode("ascii")
    return Curve(uri, f"Attention on the image by layer, failures and matched successes of {subset} cases.", path.stem)
