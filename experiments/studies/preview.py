"""A benchmark's cases as a contact sheet, or exported in MMSafeAware's published layout."""

import textwrap
from pathlib import Path

from PIL import Image, ImageDraw
from rich.console import Console

from experiments.benchmarks.export import export_mmsafeaware
from experiments.benchmarks.images import BadImage, open_image
from experiments.config import Run
from experiments.evaluation.study import limited
from experiments.runs.directory import open_run
from experiments.types import Sample
from interp.errors import UserError

CELL = 150  # pixels a side of a picture on the sheet
CAPTION = 58  # pixels below it
GAP = 8
GOLD_COLOUR = {"yes": (0, 90, 160), "no": (170, 60, 0)}


def run(run: Run, *, columns: int, rows: int) -> None:
    """Writes contact_sheet.png of the first cases, subsets by turns, into a run directory of the name ``preview``."""
    if columns < 1 or rows < 1:
        raise UserError(f"task.columns={columns}, task.rows={rows}: both must be at least 1")
    samples = limited(run.benchmark.load().samples, run.limit or columns * rows)
    with open_run(run.output_root, "preview", run.config, run.config_hash, fresh=True) as store:
        path = store.path / "contact_sheet.png"
        contact_sheet(samples, columns).save(path)
        Console().print(f"{len(samples)} cases: {path}", highlight=False, soft_wrap=True)


def contact_sheet(samples: list[Sample], columns: int) -> Image.Image:
    """Pictures in ``columns`` columns, each with subset, right answer and sentence; grey where there is no picture."""
    rows = -(-len(samples) // columns)
    sheet = Image.new("RGB", (columns * (CELL + GAP) + GAP, rows * (CELL + CAPTION + GAP) + GAP), "white")
    draw = ImageDraw.Draw(sheet)
    for index, sample in enumerate(samples):
        left = GAP + (index % columns) * (CELL + GAP)
        top = GAP + (index // columns) * (CELL + CAPTION + GAP)
        sheet.paste(_cell(sample), (left, top))
        draw.text((left, top + CELL + 2), f"{sample.subset}: {sample.gold}", fill=GOLD_COLOUR[sample.gold])
        sentence = "\n".join(textwrap.wrap(sample.text, 26)[:3])
        draw.multiline_text((left, top + CELL + 15), sentence, fill="black", spacing=2)
    return sheet


def _cell(sample: Sample) -> Image.Image:
    try:
        image = None if sample.image is None else open_image(sample.image)
    except BadImage:
        image = None
    cell = Image.new("RGB", (CELL, CELL), (200, 200, 200))
    if image is not None:
        image.thumbnail((CELL, CELL))
        scale = CELL / max(image.size)
        image = image.resize((round(image.width * scale), round(image.height * scale)))
        cell.paste(image, ((CELL - image.width) // 2, (CELL - image.height) // 2))
    return cell


def export(run: Run, *, to: str) -> None:
    """Writes the benchmark's scored cases into the folder ``to``, laid out as MMSafeAware is published."""
    samples = [sample for sample in run.benchmark.load().samples if sample.subset != "control"]
    samples = limited(samples, run.limit)
    folder = export_mmsafeaware(samples, Path(to))
    reading = f"read it with benchmark=mmsafeaware benchmark.root={folder}"
    Console().print(f"{len(samples)} cases: {folder} ({reading})", highlight=False, soft_wrap=True)
