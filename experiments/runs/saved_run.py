"""The files of a saved run, read and checked: for reports, rejudging, joining and comparing runs.

While a run is open, its ``predictions.jsonl`` is read through ``experiments.runs.store.RunStore``.
"""

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.benchmarks.images import BadImage, open_image
from experiments.benchmarks.rows import json_file
from experiments.runs import records
from experiments.runs.results_table import Results, read_results, rebuild
from experiments.runs.store import PREDICTIONS, files_of, parsed, read_object
from experiments.types import Sample, Status
from interp.atomic import atomic_write
from interp.errors import UserError

THUMBNAIL_QUALITY = 75  # of JPEG: 1,500 pictures must fit a file that can be mailed
THUMBNAIL = 160  # pixels, the longer side
RECORD_KEYS = ("case", "arm", "status", "verdict", "response", "margin", "subset", "gold", "text")
_WAY_OUT = "repeat the run's command, which finishes what is missing without repeating what is there"


@dataclass(frozen=True)
class SavedRun:
    """One run: results.csv, metrics.json (its design), environment.json and predictions.jsonl."""

    directory: Path
    results: Results
    metrics: Mapping[str, Any]
    environment: Mapping[str, Any]
    predictions: list[dict[str, Any]]

    def thumbnail(self, case_id: str) -> str | None:
        """The case's thumbnail as a data URI; None where there is none."""
        path = self.directory / "thumbnails" / thumbnail_name(case_id)
        if not path.is_file():
            return None
        return "data:image/jpeg;base64," + base64.b64encode(path.read_bytes()).decode("ascii")


def thumbnail_name(case_id: str) -> str:
    """A safe file name for the case's thumbnail.

    A safe id stays. Any other id is cleaned and followed by a hash of the original, so that two ids never share a file
    ("a/b" and "a_b").
    """
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}", case_id):
        return f"{case_id}.jpg"
    cleaned = re.sub(r"[^A-Za-z0-9._-]", "_", case_id)[:60].lstrip(".")
    digest = hashlib.sha256(case_id.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{cleaned}~{digest}.jpg"


def read_run(run_dir: Path) -> SavedRun:
    """Read and check a run's directory.

    Raises:
        UserError: the directory or one of its files is missing, not readable, or not of the expected shape.
    """
    if not run_dir.is_dir():
        raise UserError(f"{run_dir} is not a directory; a report is built from a run's directory; give one, "
                        "outputs/<name>/<time>")  # fmt: skip
    results = read_results(run_dir)
    metrics = json_file(run_dir / "metrics.json", dict, _WAY_OUT)
    if absent := [key for key in ("kind", "study", "baseline", "rules", "notes") if key not in metrics]:
        raise UserError(
            f"{run_dir / 'metrics.json'} has no {absent[0]!r}; an earlier version made it. {rebuild(run_dir)}"
        )
    if not results.arms:
        raise UserError(f"{run_dir / 'results.csv'} has no arms; a report needs at least one; {_WAY_OUT}")
    return SavedRun(
        directory=run_dir,
        results=results,
        metrics=metrics,
        environment=json_file(run_dir / "environment.json", dict, _WAY_OUT),
        predictions=read_records(run_dir, RECORD_KEYS),
    )


def _text(path: Path) -> str:
    if not path.is_file():
        raise UserError(f"{path} is missing and cannot be read; give the directory of a finished run, or {_WAY_OUT}")
    try:
        # A model may have produced, and a crash may have torn, bytes that are no UTF-8: shown as �, never fatal.
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); check its permissions") from None


def read_records(run_dir: Path, keys: Sequence[str] = ("case", "arm")) -> list[dict[str, Any]]:
    """The records of a run, by arm and case, each with ``keys``; of several with one (case, arm) the last counts.

    The arms are in the order of the run's configuration.

    Raises:
        UserError: there are none, or a line is not such a record.
    """
    lines = []
    for path in files_of(run_dir / PREDICTIONS) or [run_dir / PREDICTIONS]:
        for number, record in parsed(_text(path).split("\n")):
            if isinstance(record, ValueError):
                raise UserError(f"{path}, line {number}: not JSON ({record}); {_WAY_OUT}")
            if not isinstance(record, dict) or (absent := [key for key in keys if key not in record]):
                lacks = f"lacks {', '.join(absent)}" if isinstance(record, dict) else "is no JSON object"
                raise UserError(f"{path}, line {number}: {lacks}; every prediction is a record with these; {_WAY_OUT}")
            if record.get("status", Status.ANSWERED) not in list(Status):
                raise UserError(f"{path}, line {number}: status {record['status']!r} is not one of "
                                f"{', '.join(Status)}; {_WAY_OUT}")  # fmt: skip
            lines.append(record)
    if not lines:
        raise UserError(f"{run_dir / PREDICTIONS} is empty; there is nothing to read without a prediction; {_WAY_OUT}")
    configured = (read_object(run_dir / "environment.json").get("config") or {}).get("arms") or {}
    return records.ordered(records.current(lines), list(configured))


def write_thumbnails(run_dir: Path, samples: Sequence[Sample]) -> None:
    """Writes the missing ``thumbnails/`` of ``run_dir``; a case with a bad image gets none."""
    folder = run_dir / "thumbnails"
    for sample in samples:
        path = folder / thumbnail_name(sample.id)
        if sample.image is not None and not path.exists():
            try:
                image = open_image(sample.image)
            except BadImage:
                continue  # its record says so
            image.thumbnail((THUMBNAIL, THUMBNAIL))
            with atomic_write(path) as draft:
                image.save(draft, format="JPEG", quality=THUMBNAIL_QUALITY)
