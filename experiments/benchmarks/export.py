"""Writes samples as VLMEvalKit's TSV. Knows nothing of where the samples come from."""

import csv
from collections.abc import Sequence
from pathlib import Path

from experiments.benchmarks.images import data_url, open_image
from experiments.types import Sample
from interp.atomic import atomic_write
from interp.errors import UserError

VLMEVALKIT = ("index", "image", "question", "answer", "category", "id")
ANSWERS = {"yes": "Yes", "no": "No"}


def export_vlmevalkit(samples: Sequence[Sample], path: str | Path) -> Path:
    """Write ``samples`` into the TSV ``path``, a row a case. Return the path.

    ``image`` is the picture in base64 (PNG), empty without one. ``question`` is all that the model is asked.
    ``category`` is the subset. ``index`` is a running number, and ``id`` the case's own id. The file is complete or not
    there.

    Raises:
        UserError: there is no sample, a picture cannot be opened, or the file cannot be written.
    """
    target = Path(path).expanduser().absolute()
    if not samples:
        raise UserError("no sample to export; a file has at least one; raise limit")
    if target.suffix != ".tsv" or target.exists():
        raise UserError(f"{target} is there already or does not end in .tsv; give the name of a new .tsv file")
    try:
        with atomic_write(target) as draft, draft.open("w", encoding="utf-8", newline="") as file:
            rows = csv.writer(file, delimiter="\t", lineterminator="\n")
            rows.writerow(VLMEVALKIT)
            for index, sample in enumerate(samples, start=1):
                answer = ANSWERS.get(sample.gold, sample.gold)
                picture = "" if sample.image is None else data_url(open_image(sample.image)).partition(",")[2]
                rows.writerow([index, picture, sample.prompt, answer, sample.subset, sample.id])
    except OSError as error:
        raise UserError(f"cannot write {target} ({error.strerror or error}); name another file") from error
    return target
