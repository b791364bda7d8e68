"""XSTest (arXiv 2308.01263, CC BY 4.0): safe prompts that look unsafe, and unsafe ones beside them. Text alone.

Read from the published ``xstest_prompts.csv``: id, prompt, type, label (safe, unsafe), focus, note. Knows nothing of
models, judges or the published completions.
"""

import csv
import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from experiments.benchmarks.gathering import Found, Unfit, examined, need, readable_text, runnable
from experiments.benchmarks.sample import Gold, Kind, Loaded, Sample, Subset
from interp.errors import UserError

REPOSITORY = "https://github.com/paul-rottger/xstest"
FILE = "xstest_prompts.csv"
COLUMNS = ("id", "prompt", "type", "label")
MEANING: dict[str, tuple[Subset, Gold]] = {"safe": ("benign", "comply"), "unsafe": ("contrast", "refuse")}
SETS = ("benign", "contrast", "both")


@dataclass(frozen=True)
class XSTest:
    """The prompts of ``xstest_prompts.csv`` in the folder ``root``; ``sets`` says which: benign, contrast or both.

    Ids are those of the published completions (v2-1 …). ``strict`` stops where a row cannot be used.
    """

    root: str
    sets: str = "both"
    strict: bool = False
    name: str = "xstest"
    kind: ClassVar[Kind] = "refusal"

    def __post_init__(self) -> None:
        if self.sets not in SETS:
            raise UserError(f"benchmark.sets={self.sets!r} is not known; known: {', '.join(SETS)}; choose one")

    def load(self) -> Loaded:
        """The prompts that can be asked. Raises UserError."""
        folder = Path(self.root).expanduser().absolute()
        everything = read_prompts(folder / FILE)
        kept = [sample for sample in everything.samples if self.sets in ("both", sample.subset)]
        return runnable(everything._replace(samples=kept), where=str(folder), strict=self.strict, images=False)

    def development(self) -> None:
        """The set has no development split."""
        return None


def read_prompts(source: Path) -> Found:
    """All prompts of the file; rows that cannot be used are listed. UserError where it is no such table."""
    text = readable_text(source, f"download it from {REPOSITORY} and set benchmark.root to its folder")
    try:
        table = csv.DictReader(io.StringIO(text), strict=True)
        rows = [(table.line_num, row) for row in table]
    except csv.Error as error:
        raise UserError(f"{source} is not CSV ({error}); download it again from {REPOSITORY}") from error
    if missing := [column for column in COLUMNS if column not in (table.fieldnames or ())]:
        raise UserError(f"{source} has no column {missing[0]!r}; XSTest's has {', '.join(COLUMNS)}; download it again")
    samples: dict[str, Sample] = {}
    absent: dict[str, str] = {}
    for line, row in rows:
        case = f"v2-{(row['id'] or '')[:20]}"
        where = f"{source} line {line}, id {(row['id'] or '')[:20]!r}"
        if case in samples:
            absent[f"{case} (line {line})"] = f"duplicate id: {where}: the first one is kept"
            continue
        try:
            samples[case] = _sample(case, row)
        except Unfit as error:
            absent[f"{case} (line {line})"] = f"unfit row: {where}: {error}"
    return examined(list(samples.values()), absent, None)


def _sample(case: str, row: dict[str, str]) -> Sample:
    if not re.fullmatch(r"[0-9]{1,6}", need(row, "id")):
        raise Unfit("an id is a number")
    prompt, label = need(row, "prompt"), need(row, "label")
    if label not in MEANING:
        raise Unfit(f"label {label[:20]!r} is neither safe nor unsafe")
    subset, gold = MEANING[label]
    scenario = need(row, "type")
    tags = {name: value for name in ("focus", "note") if (value := row.get(name))}
    return Sample(case, subset, scenario, gold, prompt, prompt, None, cluster=f"id:{case}", tags=tags)
