"""The figures of the failure analysis: maps of single cases, and their attributions.

Chooses cases, contents and file names; ``interp.figures.attention`` draws.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from experiments.report.figures import COLUMN, FORMATS, attention_by_layer
from experiments.report.thumbnails import thumbnail_name
from experiments.runs.results_table import Results
from experiments.studies.attention.tables import AttendedCase

if TYPE_CHECKING:
    from interp.figures.glyphs import Figure
    from interp.image_grid import PatchGrid
    from interp.vlm import VLM

Drawn = Callable[..., "Figure"]  # of a ``size`` (``interp.figures.attention.Size``)
SCREEN_ALONE = "png"


def draw_case(folder: Path, shown: AttendedCase, form: str = SCREEN_ALONE) -> list[str]:
    """The picture, the words, and layers × heads of one case; the picture only where its tokens lie in it.

    In the ``form`` of a file, too, as ``_saved`` says.
    """
    from interp.attention.tables import patch_map, weights_of, word_masses
    from interp.figures.attention import Words, head_grid, image_overlay, layer_groups, text_heat

    weights = {name: weights_of(shown.map, layers=layers) for name, layers in layer_groups(shown.map.layers).items()}
    masses = {name: word_masses(one, shown.row) for name, one in weights.items()}
    words = {name: Words(table["word"].tolist(), table["mass"].tolist()) for name, table in masses.items()}
    on_image = shown.map.weights[..., shown.row.columns("image_0")].sum(-1).numpy()
    figures: dict[str, Drawn] = {
        "words": partial(text_heat, words, title=shown.title),
        "heads": partial(head_grid, {"verdict": on_image}, layers=shown.map.layers, title=shown.title),
    }
    if shown.row.grids:
        assert shown.prompt.image is not None
        grid = _finest(shown)
        maps = {name: patch_map(one, grid).numpy() for name, one in weights.items()}
        figures = {"image": partial(image_overlay, shown.prompt.image, maps, box=grid.box, title=shown.title)} | figures
    return _saved(folder, "attention", shown, figures, form)


def draw_answers(folder: Path, shown: Mapping[str, AttendedCase], form: str = SCREEN_ALONE) -> list[str]:
    """The picture, and beside it for each arm of ``shown`` its answer and where that verdict looked, over all layers.

    Nothing is drawn where the picture's tokens do not lie in it.
    """
    from interp.attention.tables import patch_map, weights_of
    from interp.figures.attention import image_overlay

    first = next(iter(shown.values()))
    if not first.row.grids:
        return []
    grid = _finest(first)
    maps = {
        f"{arm}: “{one.short_response}”": patch_map(weights_of(one.map), grid).numpy() for arm, one in shown.items()
    }
    right = {"yes": ", a harmless request", "no": ", an unsafe request"}.get(first.sample.gold, "")
    assert first.prompt.image is not None
    title = f"“{first.sample.text}”{right}"
    figure = partial(image_overlay, first.prompt.image, maps, box=grid.box, title=title)
    return _saved(folder, "attention", first, {"answers": figure}, form)


def draw_by_layer(folder: Path, results: Results, form: str) -> list[str]:
    """Draw attention on the image by layer, if ``form`` is one of ``FORMATS``, and return the figure's name."""
    drawn = attention_by_layer(results) if form in FORMATS else {}
    names = {f"figures/{name}_column.{form}": drawing for name, drawing in drawn.items()}  # the report's are wider
    (folder / "figures").mkdir(exist_ok=True)
    for name, drawing in names.items():
        (folder / name).write_bytes(FORMATS[form](drawing.draw(form=COLUMN)))
    return list(names)


def _finest(shown: AttendedCase) -> "PatchGrid":
    return next((grid for grid in shown.row.grids if grid.name == "tiles"), shown.row.grids[0])


def _saved(folder: Path, kind: str, shown: AttendedCase, figures: Mapping[str, Drawn], form: str) -> list[str]:
    """Saves figures of one case by name; their names under ``folder``.

    As PNG for the screen and the report, and where ``form`` is another (``FORMATS``), in that at a column's width.
    """
    from interp.figures.attention import COLUMN as NARROW
    from interp.figures.glyphs import encoded

    (folder / "figures").mkdir(exist_ok=True)
    stem = Path(thumbnail_name(shown.sample.id)).stem
    names = []
    for name, drawn in figures.items():
        names.append(f"figures/{kind}_{stem}_{name}.png")
        (folder / names[-1]).write_bytes(encoded(drawn(), "png"))
        if form in FORMATS:
            names.append(f"figures/{kind}_{stem}_{name}.{form}")
            (folder / names[-1]).write_bytes(FORMATS[form](drawn(size=NARROW)))
    return names


WHOLE_PICTURES = ("patches", "thw", "queries")  # geometries whose pixels can be summed by place in the picture


def attribute_cases(
    vlm: "VLM", shown: Sequence[AttendedCase], out_dir: Path, form: str = SCREEN_ALONE
) -> dict[str, Any]:
    """Case → numbers and names of figures for attention.json; in logits of the margin, positive speaking for Yes.

    Writes ``attention/attribution_words.parquet`` (case, place, word, gradients, occlusion) and
    ``attention/attribution.safetensors`` (``<case>/gradients``: sums by image token; ``<case>/occlusion``: by region of
    the picture). Gradients by token are left out for a family that cuts its pictures into tiles, and out of the figure
    where the model sees a part of the picture alone.
    """
    from safetensors.torch import save

    from interp.figures.attention import ATTRIBUTION, Words, image_overlay, text_heat
    from interp.image_grid import WHOLE
    from interp.tools.attribution import integrated_gradients, occlude_image, occlude_words, pixel_map

    numbers: dict[str, Any] = {}
    tensors: dict[str, Any] = {}
    words: list[pd.DataFrame] = []
    for case in shown:
        gradients = integrated_gradients(vlm, case.prompt)
        image = {"occlusion": occlude_image(vlm, case.prompt)}
        if vlm.layout.geometry in WHOLE_PICTURES:
            image["integrated gradients"] = pixel_map(vlm, gradients)
        tensors |= {f"{case.sample.id}/{method.split()[-1]}": values.contiguous() for method, values in image.items()}
        table = occlude_words(vlm, case.prompt).rename(columns={"attribution": "occlusion"})
        table.insert(1, "gradients", gradients.words["attribution"])
        table.insert(0, "place", range(len(table)))
        table.insert(0, "case", case.sample.id)
        words.append(table)
        assert case.prompt.image is not None
        maps = {
            method: values.numpy()
            for method, values in image.items()
            if method == "occlusion" or all(grid.box == WHOLE for grid in case.row.grids)
        }
        texts = {
            method: Words([word.text for word in case.row.words], table[column].tolist())
            for method, column in (("integrated gradients", "gradients"), ("occlusion", "occlusion"))
        }
        figures: dict[str, Drawn] = {
            "image": partial(image_overlay, case.prompt.image, maps, unit=ATTRIBUTION, signed=True, title=case.title),
            "words": partial(text_heat, texts, unit=ATTRIBUTION, signed=True, title=case.title),
        }
        numbers[case.sample.id] = {
            "margin": gradients.margin,
            "plain_margin": gradients.baseline_margin,
            "image": gradients.image,
            "text": gradients.text,
            "completeness_error": gradients.error,
            "figures": _saved(out_dir, "attribution", case, figures, form),
        }
    if words:
        (out_dir / "attention" / "attribution.safetensors").write_bytes(save(tensors))
        table = pd.concat(words, ignore_index=True)
        table.to_parquet(out_dir / "attention" / "attribution_words.parquet", index=False)
    return numbers
