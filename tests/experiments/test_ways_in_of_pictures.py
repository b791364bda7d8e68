"""One picture, whichever way it comes in (Python, table, training row, server, page): one and the same tensor."""

import base64
import io
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from experiments.benchmarks.images import open_image
from experiments.benchmarks.table import table
from experiments.evaluation.cases import prompt_of, size_of
from experiments.serving.pictures import Pictures, read_picture
from interp.messages import ORIENTATION
from interp.vlm import VLM, Prompt
from mitigation.vrtuning.collator import Collator
from mitigation.vrtuning.data import Row, from_rows
from tests.interp.test_pictures import MODES
from tests.tiny import tiny_llava

pytestmark = pytest.mark.long

TURNS = {2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM", 5: "TRANSPOSE", 6: "ROTATE_90", 7: "TRANSVERSE",
         8: "ROTATE_270"}  # fmt: skip
TURNED = (None, *range(1, 9))
# Of each format the modes that it stores, with what is transparent in them.
STORED = [("PNG", mode, None) for mode in ("1", "L", "LA", "I;16", "P", "RGB", "RGBA")] + [
    ("PNG", "1", 0), ("PNG", "L", 7), ("PNG", "I;16", 4096), ("PNG", "P", 3), ("PNG", "P", bytes(range(0, 256, 5))),
    ("PNG", "RGB", (1, 2, 3)), ("JPEG", "L", None), ("JPEG", "RGB", None), ("JPEG", "CMYK", None),
    ("WEBP", "RGB", None), ("WEBP", "RGBA", None), ("GIF", "P", None), ("GIF", "P", 3), ("BMP", "1", None),
    ("BMP", "P", None), ("BMP", "RGB", None),
]  # fmt: skip
SERVED = {"PNG": "image/png", "JPEG": "image/jpeg", "WEBP": "image/webp"}
QUESTION = "Is it safe?"


def drawn(mode: str, seed: int) -> Image.Image:
    """A picture of this mode without any symmetry."""
    rng = np.random.default_rng(seed)
    if mode in ("I", "I;16"):
        deep = Image.fromarray(rng.integers(0, 65536, (9, 14)).astype(np.uint16))
        return deep if mode == "I;16" else Image.fromarray(np.asarray(deep).astype(np.int32))
    if mode == "F":
        return Image.fromarray(rng.random((9, 14)).astype(np.float32))
    if mode == "LAB":
        return Image.frombytes("LAB", (14, 9), rng.integers(0, 256, 14 * 9 * 3, dtype=np.uint8).tobytes())
    clear = Image.fromarray(rng.integers(0, 256, (9, 14, 4), dtype=np.uint8))
    through = {"La": ("LA", "La"), "PA": ("RGB", "P", "PA"), "RGBA": (), "LA": ("LA",), "RGBa": ("RGBa",)}
    for step in through.get(mode, ("RGB", mode)):
        clear = clear.convert(step)
    return clear


def on_its_side(picture: Image.Image, orientation: int | None) -> Image.Image:
    """The picture as a camera stores it with this orientation in EXIF."""
    if orientation is None:
        return picture.copy()
    turn = TURNS.get(orientation)
    stored = picture.transpose(Image.Transpose[turn]) if turn else picture.copy()
    stored.getexif()[ORIENTATION] = orientation
    return stored


@cache
def tiny() -> VLM:
    return VLM(*tiny_llava(), name="tiny")


def asked(picture: Image.Image) -> Tensor:
    """What the model gets of a prompt with this picture."""
    return tiny().encode([Prompt(QUESTION, picture)])["pixel_values"]


def trained_on(picture: Image.Image | Path, max_pixels: int | None = None) -> Tensor:
    """What the model gets of a training row."""
    data = from_rows([Row(picture, QUESTION, "", "Yes")])
    assert data.skipped == []
    return Collator(tiny(), max_pixels)([data.dataset[0]])["pixel_values"]


def in_a_table(folder: Path, cell: Any) -> Tensor:
    """What the model gets of a case whose row has this in its column ``image``."""
    path = folder / "cases.parquet"
    pd.DataFrame([{"id": "1", "image": cell, "text": "t", "label": "safe"}]).to_parquet(path)
    (sample,) = table(str(path)).load().samples
    picture = open_image(sample.image)
    assert size_of(sample.image) == picture.size
    return asked(prompt_of(sample, [picture]).image)


def on_the_page(picture: Image.Image) -> Tensor:
    """What the model gets of a picture that was dropped on the page."""
    pictures = Pictures(lambda name: pytest.fail(name))
    return asked(pictures.open(pictures.keep(picture)))


@given(st.sampled_from(STORED), st.sampled_from(TURNED), st.integers(0, 10))
@settings(max_examples=60)
def test_a_file_is_the_same_tensor_whichever_way_it_comes_in(
    tmp_path_factory: pytest.TempPathFactory, stored: tuple[str, str, Any], orientation: int | None, seed: int
) -> None:
    form, mode, clear = stored
    folder = tmp_path_factory.mktemp("ways")
    path = folder / f"picture.{form.lower()}"
    upright = drawn(mode, seed)
    picture = on_its_side(upright, orientation if form in SERVED else None)
    buffer = io.BytesIO()
    options = {} if clear is None else {"transparency": clear}
    picture.save(buffer, form, exif=picture.getexif(), **({"lossless": True} if form == "WEBP" else {}), **options)
    data = buffer.getvalue()
    path.write_bytes(data)

    seen = asked(Image.open(path))
    ways: dict[str, Callable[[], Tensor]] = {
        "bytes in Python": lambda: asked(Image.open(io.BytesIO(data))),
        "training row by path": lambda: trained_on(path),
        "training row by picture": lambda: trained_on(Image.open(path)),
        "table by path": lambda: in_a_table(folder, path.name),
        "table by bytes": lambda: in_a_table(folder, data),
        "table of the hub": lambda: in_a_table(folder, {"bytes": data, "path": path.name}),
    }
    if form in SERVED:
        url = f"data:{SERVED[form]};base64,{base64.b64encode(data).decode()}"
        ways |= {
            "data URL in a table": lambda: in_a_table(folder, url),
            "server": lambda: asked(read_picture(url, 10_000)),
            "page": lambda: on_the_page(read_picture(url, 10_000)),
        }
    assert [name for name, way in ways.items() if not torch.equal(way(), seen)] == []
    assert torch.equal(trained_on(path, 40), trained_on(Image.open(path), 40))
    if form != "JPEG":  # the others lose nothing, so it is the picture before it was stored
        again = io.BytesIO()
        upright.save(again, form, **({"lossless": True} if form == "WEBP" else {}), **options)
        assert torch.equal(asked(Image.open(again)), seen)


@given(st.sampled_from(MODES), st.sampled_from(TURNED), st.integers(0, 10))
@settings(max_examples=60)
def test_a_picture_in_memory_is_the_same_tensor_and_upright(mode: str, orientation: int | None, seed: int) -> None:
    class Drawn:
        def render(self) -> Image.Image:
            return picture

    upright = drawn(mode, seed)
    picture = on_its_side(upright, orientation)
    seen = asked(upright)
    ways: dict[str, Callable[[], Tensor]] = {
        "prompt": lambda: asked(picture),
        "training row": lambda: trained_on(picture),
        "drawing": lambda: asked(open_image(Drawn())),
        "page": lambda: on_the_page(open_image(Drawn())),
    }
    assert [name for name, way in ways.items() if not torch.equal(way(), seen)] == []
