"""The figures of the failure analysis: attention by layer, maps of single cases, and their attributions.

Chooses cases, contents and file names; ``interp.figures.attention`` draws.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from experiments.report.figures import svg_bytes
from experiments.runs.saved_run import thumbnail_name
from experiments.studies.attention.tables import RecordedAnswers
from experiments.types import Sample

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from interp.attention.tables import AttentionMap
    from interp.figures.attention import Curve
    from interp.image_grid import PatchGrid
    from interp.segments import RowSegments
    from interp.vlm import VLM, Prompt


@dataclass(frozen=True)
class AttendedCase:
    """A case to draw: what was asked, where its verdict looked, and what it said."""

    sample: Sample
    prompt: "Prompt"
    map: "AttentionMap"
    row: "RowSegments"
    margin: float
    response: str

    @property
    def title(self) -> str:
        """The case in a line or two."""
        subset = self.sample.subset.replace("_", "-")
        kind = "" if self.sample.gold == "unknown" else f"{subset}, right: {self.sample.gold}, "
        return f"The verdict on “{self.sample.text}” ({kind}answered: {_shortened(self.response)})"


def _shortened(answer: str) -> str:
    return answer if len(answer) <= 40 else f"{answer[:39]}…"


def attended_case(sample: Sample, recorded: RecordedAnswers, index: int) -> AttendedCase:
    """The case at ``index`` of what was recorded."""
    return AttendedCase(
        sample,
        recorded.prompts[index],
        recorded.maps[index],
        recorded.rows[index],
        float(recorded.margins[index]),
        recorded.texts[index],
    )


def draw_failures(folder: Path, shown: Sequence[AttendedCase], result: Mapping[str, Any]) -> list[str]:
    """The image share by layer in failures and successes, and each case of ``shown``; names under ``folder``."""
    names = [
        _saved(_curves(subset, block), folder, f"attention_by_layer_{subset}", kind="svg")
        for subset, block in result["subsets"].items()
        if block["pairs"]
    ]
    return [*names, *(name for one in shown for name in draw_case(folder, one))]


def draw_case(folder: Path, shown: AttendedCase) -> list[str]:
    """The picture, the words, and layers × heads of one case; the picture only where its tokens lie in it."""
    figures = {"words": _words(shown), "heads": _heads(shown)}
    if shown.row.grids:
        figures = {"image": _image(shown)} | figures
    stem = Path(thumbnail_name(shown.sample.id)).stem
    return [_saved(figure, folder, f"attention_{stem}_{name}") for name, figure in figures.items()]


def draw_answers(folder: Path, shown: Mapping[str, AttendedCase]) -> list[str]:
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
        f"{arm}: “{_shortened(one.response)}”": patch_map(weights_of(one.map), grid).numpy()
        for arm, one in shown.items()
    }
    right = {"yes": ", a harmless request", "no": ", an unsafe request"}.get(first.sample.gold, "")
    assert first.prompt.image is not None
    figure = image_overlay(first.prompt.image, maps, box=grid.box, title=f"“{first.sample.text}”{right}")
    return [_saved(figure, folder, f"attention_{Path(thumbnail_name(first.sample.id)).stem}_answers")]


def _finest(shown: AttendedCase) -> "PatchGrid":
    return next((grid for grid in shown.row.grids if grid.name == "tiles"), shown.row.grids[0])


def _saved(figure: "Figure", folder: Path, name: str, *, kind: Literal["png", "svg"] = "png") -> str:
    """Saves curves as SVG, and pictures and grids of many cells as PNG."""
    path = folder / "figures" / f"{name}.{kind}"
    path.parent.mkdir(exist_ok=True)
    if kind == "svg":
        path.write_bytes(svg_bytes(figure))
    else:
        figure.savefig(path)
    return f"figures/{name}.{kind}"


def _image(shown: AttendedCase) -> "Figure":
    from interp.attention.tables import patch_map, weights_of
    from interp.figures.attention import image_overlay, layer_groups

    assert shown.prompt.image is not None
    grid = _finest(shown)
    maps = {
        name: patch_map(weights_of(shown.map, layers=layers), grid).numpy()
        for name, layers in layer_groups(shown.map.layers).items()
    }
    return image_overlay(shown.prompt.image, maps, box=grid.box, title=shown.title)


def _words(shown: AttendedCase) -> "Figure":
    from interp.attention.tables import weights_of, word_masses
    from interp.figures.attention import Words, layer_groups, text_heat

    tables = {
        name: word_masses(weights_of(shown.map, layers=layers), shown.row)
        for name, layers in layer_groups(shown.map.layers).items()
    }
    texts = {name: Words(table["word"].tolist(), table["mass"].tolist()) for name, table in tables.items()}
    return text_heat(texts, title=shown.title)


def _heads(shown: AttendedCase) -> "Figure":
    from interp.figures.attention import head_grid

    columns = shown.row.columns("image_0")
    grid = shown.map.weights[..., columns].sum(-1).numpy()
    return head_grid({"verdict": grid}, layers=shown.map.layers, title=shown.title)


def _curves(subset: str, block: Mapping[str, Any]) -> "Figure":
    """Failures and matched successes of one subset, the sink left out."""
    from interp.figures.attention import layer_curves

    by_layer = block["image_share"]["by_layer"]
    curves = {
        f"{name} ({block['pairs']})": _curve([one[name] for one in by_layer.values()])
        for name in ("failures", "successes")
    }
    unit = "attention on the image,\nof all but the first token (%)"
    title = f"Where the verdict looks: {subset.replace('_', '-')} cases"
    return layer_curves(curves, layers=[int(layer) for layer in by_layer], unit=unit, title=title)


def _curve(estimates: Sequence[Mapping[str, Any]]) -> "Curve":
    """Too few clusters give no interval: the band is then as thin as the line."""
    from interp.figures.attention import Curve

    mean, low, high = (
        np.array([one["value"] if one[end] is None else one[end] for one in estimates])
        for end in ("value", "low", "high")
    )
    return Curve(mean, low, high)


def draw_attribution(
    folder: Path, shown: AttendedCase, image: Mapping[str, np.ndarray], words: Mapping[str, Sequence[float]]
) -> list[str]:
    """Attributions over the whole picture and over the words, by method, each on one signed scale."""
    from interp.figures.attention import ATTRIBUTION, Words, image_overlay, text_heat

    assert shown.prompt.image is not None
    names = [word.text for word in shown.row.words]
    texts = {method: Words(names, values) for method, values in words.items()}
    figures = {
        "image": image_overlay(shown.prompt.image, image, unit=ATTRIBUTION, signed=True, title=shown.title),
        "words": text_heat(texts, unit=ATTRIBUTION, signed=True, title=shown.title),
    }
    stem = Path(thumbnail_name(shown.sample.id)).stem
    return [_saved(figure, folder, f"attribution_{stem}_{name}") for name, figure in figures.items()]


WHOLE_PICTURES = ("patches", "thw", "queries")  # geometries whose pixels can be summed by place in the picture


def attribute_cases(vlm: "VLM", shown: Sequence[AttendedCase], out_dir: Path) -> dict[str, Any]:
    """Case → numbers and names of figures for attention.json; in logits of the margin, positive speaking for Yes.

    Writes ``attention/attribution_words.parquet`` (case, place, word, gradients, occlusion) and
    ``attention/attribution.safetensors`` (``<case>/gradients``: sums by image token; ``<case>/occlusion``: by region of
    the picture). Gradients by token are left out for a family that cuts its pictures into tiles, and out of the figure
    where the model sees a part of the picture alone.
    """
    from safetensors.torch import save

    from interp.image_grid import WHOLE
    from interp.tools.attribution import integrated_gradients, occlude_image, occlude_words, pixel_map

    folder = out_dir / "attention"

    numbers: dict[str, Any] = {}
    tensors: dict[str, Any] = {}
    words: list[pd.DataFrame] = []
    for one in shown:
        gradients = integrated_gradients(vlm, one.prompt)
        image = {"occlusion": occlude_image(vlm, one.prompt)}
        if vlm.layout.geometry in WHOLE_PICTURES:
            image["integrated gradients"] = pixel_map(vlm, gradients)
        tensors |= {f"{one.sample.id}/{method.split()[-1]}": values.contiguous() for method, values in image.items()}
        table = occlude_words(vlm, one.prompt).rename(columns={"attribution": "occlusion"})
        table.insert(1, "gradients", gradients.words["attribution"])
        table.insert(0, "place", range(len(table)))
        table.insert(0, "case", one.sample.id)
        words.append(table)
        numbers[one.sample.id] = {
            "margin": gradients.margin,
            "plain_margin": gradients.baseline_margin,
            "image": gradients.image,
            "text": gradients.text,
            "completeness_error": gradients.error,
            "figures": draw_attribution(
                out_dir,
                one,
                {
                    method: values.numpy()
                    for method, values in image.items()
                    if method == "occlusion" or all(grid.box == WHOLE for grid in one.row.grids)
                },
                {"integrated gradients": table["gradients"].tolist(), "occlusion": table["occlusion"].tolist()},
            ),
        }
    if words:
        (folder / "attribution.safetensors").write_bytes(save(tensors))
        pd.concat(words, ignore_index=True).to_parquet(folder / "attribution_words.parquet", index=False)
    return numbers
