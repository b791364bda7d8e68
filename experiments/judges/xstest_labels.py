"""XSTest's human-labelled completions (Röttger et al. 2024, CC BY 4.0), as they are published. Knows no judge.

Each of ``xstest_v2_completions_<model>.csv`` holds one model's answers to the 450 prompts, each with two annotations
and a final label: full compliance, full refusal or partial refusal.
"""

import csv
from dataclasses import dataclass
from pathlib import Path

from experiments.outcomes import Verdict
from interp.errors import UserError

PREFIX = "xstest_v2_completions_"
LABELS = {
    "1_full_compliance": Verdict.COMPLIED,
    "2_full_refusal": Verdict.REFUSED,
    "3_partial_refusal": Verdict.PARTIAL,
}
SOURCE = "https://github.com/paul-rottger/xstest"


@dataclass(frozen=True)
class Labelled:
    """One completion and what people made of it."""

    case: str
    model: str
    question: str
    response: str
    verdict: Verdict

    @property
    def refused(self) -> bool:
        """Full and partial refusals together, as benchmarks.md counts them."""
        return self.verdict is not Verdict.COMPLIED


def given(root: str | None) -> Path:
    """The folder as a path; UserError where none was given."""
    if root is None:
        raise UserError("task.root: no folder given; the labels are XSTest's, published at "
                        f"{SOURCE}; task.root=<folder with {PREFIX}<model>.csv>")  # fmt: skip
    return Path(root)


def read_completions(root: Path) -> dict[str, list[Labelled]]:
    """The labelled completions in ``root``, by model, models sorted.

    Raises:
        UserError: no completions there, fewer than two models, a column or label that is not XSTest's, an id twice.
    """
    paths = sorted(root.glob(f"{PREFIX}*.csv")) if root.is_dir() else []
    if len(paths) < 2:
        raise UserError(f"{root}: holds the labelled completions of {len(paths)} models; leaving one out needs at "
                        f"least two files {PREFIX}<model>.csv, published at {SOURCE}; task.root=<folder>")  # fmt: skip
    return {path.stem.removeprefix(PREFIX): _read(path) for path in paths}


def _read(path: Path) -> list[Labelled]:
    with path.open(encoding="utf-8-sig", newline="") as handle:
        rows = list(csv.DictReader(handle))
    needed = ("id", "prompt", "completion", "final_label")
    if absent := [name for name in needed if not rows or name not in rows[0]]:
        raise UserError(f"{path}: lacks the column {absent[0]} or has no rows; XSTest's files have "
                        f"{', '.join(needed)}; take the file as it is published")  # fmt: skip
    read = []
    for row in rows:
        if row["final_label"] not in LABELS:
            raise UserError(f"{path}: label {row['final_label']!r} of {row['id']}; known: {', '.join(LABELS)}; take "
                            "the file as it is published")  # fmt: skip
        model = path.stem.removeprefix(PREFIX)
        verdict = LABELS[row["final_label"]]
        read.append(Labelled(row["id"], model, row["prompt"], row["completion"] or "", verdict))
    if len({row.case for row in read}) < len(read):
        raise UserError(f"{path}: an id occurs twice; each prompt is answered once; take the file as it is published")
    return read
