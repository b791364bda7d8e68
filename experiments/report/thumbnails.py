"""A small picture of every case, which a run keeps for its report."""

from collections.abc import Sequence
from pathlib import Path

from experiments.benchmarks.images import BadImage, open_image
from experiments.benchmarks.sample import Sample
from experiments.report.run_files import THUMBNAIL_QUALITY, thumbnail_name

THUMBNAIL = 160  # pixels, the longer side


def write_thumbnails(run_dir: Path, samples: Sequence[Sample]) -> None:
    """Writes ``thumbnails/`` of ``run_dir``; those that are there stay, and a case whose image is bad gets none."""
    folder = run_dir / "thumbnails"
    folder.mkdir(exist_ok=True)
    for sample in samples:
        path = folder / thumbnail_name(sample.id)
        if sample.image is not None and not path.exists():
            try:
                image = open_image(sample.image)
            except BadImage:
                continue  # its record says so
            image.thumbnail((THUMBNAIL, THUMBNAIL))
            part = path.with_name(path.name + ".part")  # a full disk leaves no half of a picture
            image.save(part, format="JPEG", quality=THUMBNAIL_QUALITY)
            part.replace(path)
