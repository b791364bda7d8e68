"""Small pictures of a run's cases, for its report."""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from experiments.benchmarks.images import BadImage, one_picture
from experiments.types import Sample
from interp.atomic import atomic_write

QUALITY = 75  # of JPEG: 1,500 pictures must fit a file that can be mailed
SIDE = 160  # pixels, the longer side


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
