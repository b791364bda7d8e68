"""The figures of single cases: maps over the picture and the words, and layers × heads.

This module chooses contents and file names; ``interp.figures.attention`` draws.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.report.figures import FORMATS
from experiments.report.thumbnails import thumbnail_name
from experiments.studies.attention.cases import AttendedCase

if TYPE_CHECKING:
    from interp.figures.glyphs import Figure
    from interp.image_grid import PatchGrid

Drawn = Callable[..., "Figure"]  # of a ``size`` (``interp.figures.attention.Size``)
PNG = "png"


def draw_case(folder: Path, case: AttendedCase, form: str = PNG) -> list[str]:
    """Draw the picture, the words, and layers × heads of a case, and return the names of the files.

    There is no picture if its tokens have no place in it. ``form`` is as in ``_save``.
    """
    from interp.attention.tables import patch_map, weights_of, word_masses
    from interp.figures.attention import Words, head_grid, image_overlay, layer_groups, text_heat

    weights = {name: weights_of(case.map, layers=layers) for name, layers in layer_groups(case.map.layers).items()}
    masses = {name: word_masses(each, case.row) for name, each in weights.items()}
    words = {name: Words(table["word"].tolist(), table["mass"].tolist()) for name, table in masses.items()}
    on_image = case.map.weights[..., case.row.columns("image_0")].sum(-1).numpy()
    figures: dict[str, Drawn] = {
        "words": partial(text_heat, words, title=case.title),
        "heads": partial(head_grid, {"verdict": on_image}, layers=case.map.layers, title=case.title),
    }
    if case.row.grids:
        assert case.prompt.image is not None
        grid = _finest(case)
        maps = {name: patch_map(each, grid).numpy() for name, each in weights.items()}
        figures = {"image": partial(image_overlay, case.prompt.image, maps, box=grid.box, title=case.title)} | figures
    return _save(folder, case, figures, form)


def draw_answers(folder: Path, by_arm: Mapping[str, AttendedCase], form: str = PNG) -> list[str]:
    """Draw the picture, and for each arm its answer and where that verdict looked, over all layers.

    Nothing is drawn if the picture's tokens have no place in it.
    """
    from interp.attention.tables import patch_map, weights_of
    from interp.figures.attention import image_overlay

    first = next(iter(by_arm.values()))
    if not first.row.grids:
        return []
    grid = _finest(first)
    maps = {
        f"{arm}: “{case.short_response}”": patch_map(weights_of(case.map), grid).numpy() for arm, case in by_arm.items()
    }
    right = {"yes": ", a harmless request", "no": ", an unsafe request"}.get(first.sample.gold, "")
    assert first.prompt.image is not None
    title = f"“{first.sample.text}”{right}"
    figure = partial(image_overlay, first.prompt.image, maps, box=grid.box, title=title)
    return _save(folder, first, {"answers": figure}, form)


def _finest(case: AttendedCase) -> "PatchGrid":
    return next((grid for grid in case.row.grids if grid.name == "tiles"), case.row.grids[0])


def _save(folder: Path, case: AttendedCase, figures: Mapping[str, Drawn], form: str) -> list[str]:
    """Save figures of a case, and return their names in ``folder``.

    Each is a PNG file. If ``form`` is another of ``FORMATS``, it is also a file of that form, as wide as a column.
    """
    from interp.figures.attention import COLUMN
    from interp.figures.glyphs import encoded

    (folder / "figures").mkdir(exist_ok=True)
    stem = f"figures/attention_{Path(thumbnail_name(case.sample.id)).stem}"
    names = []
    for name, draw in figures.items():
        names.append(f"{stem}_{name}.png")
        (folder / names[-1]).write_bytes(encoded(draw(), PNG))
        if form in FORMATS:
            names.append(f"{stem}_{name}.{form}")
            (folder / names[-1]).write_bytes(FORMATS[form](draw(size=COLUMN)))
    return names
