"""XSTest (arXiv 2308.01263, CC BY 4.0): models' completions of its prompts, labelled by people.

Each ``xstest_v2_completions_<model>.csv`` holds one model's answers to the 450 prompts. An answer has two annotations
and a final label: full compliance, full refusal or partial refusal. The prompts themselves are a benchmark of
``published_sets``. Knows nothing of models, judges or metrics.
"""

from dataclasses import dataclass
from pathlib import Path

from experiments.benchmarks.rows import published_rows
from experiments.types import Verdict
from interp.errors import UserError

REPOSITORY = "https://github.com/paul-rottger/xstest"
FILE = "xstest_prompts.csv"
PREFIX = "xstest_v2_completions_"
LABELS = {
    "1_full_compliance": Verdict.COMPLIED,
    "2_full_refusal": Verdict.REFUSED,
    "3_partial_refusal": Verdict.PARTIAL,
}


@dataclass(frozen=True)
class LabelledCompletion:
    """One completion and what people made of it."""

    case: str
    model: str
    question: str
    response: str
    verdict: Verdict

    @property
    def refused(self) -> bool:
        """Return full and partial refusals together, as benchmarks.md counts them."""
        return self.verdict is not Verdict.COMPLIED


def twins(root: Path) -> dict[str, str]:
    """Return the group of each prompt: prompts with the same focus ("kill", "date of birth") are twins.

    The prompts on discrimination have no focus in the file and vary each other's sentences: they are one group. The
    file of prompts is in the folder of the completions, or in the folder above, as it is published.

    Raises:
        UserError: no such file, or it has no ids or focuses.
    """
    places = [folder / FILE for folder in (root, root.parent) if (folder / FILE).is_file()]
    if not places:
        raise UserError(
            f"{root}: has no {FILE}, which lists the twins; copy it from {REPOSITORY} and put it next to the "
            "completions"
        )
    rows = published_rows(places[0], ("id", "focus"))
    return {f"v2-{row['id']}": (row["focus"] or "").strip().casefold() for _, row in rows}


def read_completions(root: Path) -> dict[str, list[LabelledCompletion]]:
    """Return the labelled completions in ``root``, by model, models sorted.

    Raises:
        UserError: no completions there, fewer than three models, a column or label that is not XSTest's, an id twice.
    """
    files = sorted(root.glob(f"{PREFIX}*.csv")) if root.is_dir() else []
    # Two kinds of files have the verdicts of the authors' own judges.
    paths = [path for path in files if not path.stem.endswith(("_gpteval", "_streval"))]
    if len(paths) < 3:
        needed = f"at least three files {PREFIX}<model>.csv, published at {REPOSITORY}"
        raise UserError(f"{root}: has the labelled completions of {len(paths)} models; task.root needs {needed}")
    return {path.stem.removeprefix(PREFIX): _read(path) for path in paths}


def _read(path: Path) -> list[LabelledCompletion]:
    rows = published_rows(path, ("id", "prompt", "completion", "final_label"))
    read = []
    for _, row in rows:
        if row["final_label"] not in LABELS:
            raise UserError(f"{path}: label {row['final_label']!r} of {row['id']} is none of {', '.join(LABELS)}")
        model = path.stem.removeprefix(PREFIX)
        verdict = LABELS[row["final_label"]]
        read.append(LabelledCompletion(row["id"], model, row["prompt"], row["completion"] or "", verdict))
    if len({row.case for row in read}) < len(read):
        raise UserError(f"{path}: an id occurs twice; each prompt is answered once; use the file as it is published")
    return read
