"""The files of a saved run, read and checked, and the small pictures of its cases."""

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.benchmarks.images import BadImage, one_picture
from experiments.benchmarks.rows import json_file
from experiments.runs.record_fields import RECORD_KEYS, WAY_OUT, read_records
from experiments.runs.results_table import Results, read_results, rebuild
from experiments.types import Sample
from interp.atomic import atomic_write
from interp.errors import UserError


@dataclass(frozen=True)
class SavedRun:
    """One run: results.csv, metrics.json (its design), environment.json and predictions.jsonl."""

    directory: Path
    results: Results
    metrics: Mapping[str, Any]
    environment: Mapping[str, Any]
    predictions: list[dict[str, Any]]

    def thumbnail(self, case_id: str) -> str | None:
        """Return the case's thumbnail as a data URI; None where there is none."""
        path = self.directory / "thumbnails" / thumbnail_name(case_id)
        if not path.is_file():
            return None
        return "data:image/jpeg;base64," + base64.b64encode(path.read_bytes()).decode("ascii")


def read_run(run_dir: Path) -> SavedRun:
    """Read and check a run's directory.

    Raises:
        UserError: the directory or one of its files is missing, not readable, or not of the expected shape.
    """
    if not run_dir.is_dir():
        raise UserError(f"{run_dir} is not a directory; a report is built from a run's directory; give one, "
                        "outputs/<name>/<time>")  # fmt: skip
    results = read_results(run_dir)
    metrics = json_file(run_dir / "metrics.json", dict, WAY_OUT)
    if absent := [key for key in ("kind", "study", "baseline", "rules", "notes") if key not in metrics]:
        raise UserError(
            f"{run_dir / 'metrics.json'} has no {absent[0]!r}; an earlier version made it. {rebuild(run_dir)}"
        )
    if not results.arms:
        raise UserError(f"{run_dir / 'results.csv'} has no arms; a report needs at least one; {WAY_OUT}")
    return SavedRun(
        directory=run_dir,
        results=results,
        metrics=metrics,
        environment=json_file(run_dir / "environment.json", dict, WAY_OUT),
        predictions=read_records(run_dir, RECORD_KEYS),
    )


QUALITY = 75  # of JPEG: 1,500 pictures must fit a file that can be mailed
SIDE = 160  # pixels, the longer side


def thumbnail_name(case_id: str) -> str:
    """Return a safe file name for the case's thumbnail.

    A safe id stays. Any other id is cleaned and followed by a hash of the original, so that two ids never share a file
    ("a/b" and "a_b").
    """
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}", case_id):
        return f"{case_id}.jpg"
    cleaned = re.sub(r"[^A-Za-z0-9._-]", "_", case_id)[:60].lstrip(".")
    digest = hashlib.sha256(case_id.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{cleaned}~{digest}.jpg"


def write_thumbnails(run_dir: Path, samples: Sequence[Sample]) -> None:
    """Write the missing ``thumbnails/`` of ``run_dir``; a case with a bad image gets none."""
    folder = run_dir / "thumbnails"
    for sample in samples:
        path = folder / thumbnail_name(sample.id)
        if sample.image is not None and not path.exists():
            try:
                image = one_picture(sample)
            except BadImage:
                continue  # its record says so
            image.thumbnail((SIDE, SIDE))
            with atomic_write(path) as draft:
                image.save(draft, format="JPEG", quality=QUALITY)
