"""IconWorld's own cases as somebody's table: pictures as files, text, label and what is shown; no tag and no pair."""

import csv
from collections.abc import Sequence
from pathlib import Path

from experiments.benchmarks.iconworld.benchmark import IconWorld
from experiments.benchmarks.images import open_image
from experiments.types import Sample

LABELS = {"yes": "safe", "no": "unsafe"}


def write_table(folder: Path, samples: Sequence[Sample]) -> Path:
    """Writes ``cases.csv`` and a picture a case into ``folder``; the path of the table."""
    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    with (folder / "cases.csv").open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "image", "text", "label", "shows"])
        for number, sample in enumerate(samples, 1):
            name = f"pictures/{number}.png"
            open_image(sample.image).save(folder / name)
            rows.writerow([number, name, sample.text, LABELS[sample.gold], sample.described])
    return folder / "cases.csv"


def scored(pairs: int = 7) -> list[Sample]:
    """IconWorld's scored cases, ``pairs`` of every sentence plain and as many wrapped."""
    return [sample for sample in IconWorld(pairs=pairs).cases() if sample.subset != "control"]
