"""Attributions of a few cases beside their attention maps: integrated gradients and occlusion of the Yes/No margin."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from experiments.attention.figures import Shown, draw_attribution

if TYPE_CHECKING:
    from interp.vlm import VLM

WHOLE_PICTURES = ("patches", "thw", "queries")  # geometries whose pixels can be summed by place in the picture


def attribute(vlm: "VLM", shown: Sequence[Shown], out_dir: Path) -> dict[str, Any]:
    """Case → numbers and names of figures for attention.json; in logits of the margin, positive speaking for Yes.

    Writes ``attention/attribution_words.parquet`` (case, place, word, gradients, occlusion) and
    ``attention/attribution.safetensors`` (``<case>/gradients``: sums by image token; ``<case>/occlusion``: by region of
    the picture). Gradients by token are left out for a family that cuts its pictures into tiles, and out of the figure
    where the model sees a part of the picture alone.
    """
    from safetensors.torch import save

    from interp.attribution import integrated_gradients, occlude_image, occlude_words, pixel_map
    from interp.geometry import WHOLE

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
