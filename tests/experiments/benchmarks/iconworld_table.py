"""IconWorld's own cases as somebody's table: pictures as files, text, label and what is shown; no tag and no pair."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from experiments.benchmarks.iconworld.benchmark import IconWorld
from experiments.benchmarks.images import open_image
from experiments.types import Sample

LABELS = {"yes": "safe", "no": "unsafe"}


def write_table(folder: Path, samples: Sequence[Sample]) -> Path:
    """Writes ``cases.csv`` and a picture a case into ``folder``; the path of the table."""
    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    rows = []
    for number, sample in enumerate(samples, 1):
        rows.append((number, f"pictures/{number}.png", sample.text, LABELS[sample.gold], sample.described))
        open_image(sample.image).save(folder / rows[-1][1])
    pd.DataFrame(rows, columns=["id", "image", "text", "label", "shows"]).to_csv(folder / "cases.csv", index=False)
    return folder / "cases.csv"


def scored(pairs: int = 7) -> list[Sample]:
    """IconWorld's scored cases, ``pairs`` of every sentence plain and as many wrapped."""
    return [sample for sample in IconWorld(pairs=pairs).cases() if sample.subset != "control"]
