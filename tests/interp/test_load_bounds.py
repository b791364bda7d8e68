"""Bounds on pictures reach the image processor, and those that mean nothing to a family are refused."""

from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image

from interp.checkpoints.config import ModelConfig
from interp.checkpoints.load import set_bounds
from interp.errors import UserError
from interp.vlm import VLM, Prompt
from tests import read_families
from tests.families import FAMILIES
from tests.tiny import picture

PROMPT = [Prompt("Is this safe?", picture(1, (160, 96)))]


@pytest.mark.parametrize(
    ("family", "bounds"),
    [
        ("qwen2_vl", {"max_pixels": 32 * 32}),
        ("qwen2_5_vl", {"min_pixels": 96 * 96, "max_pixels": 128 * 128}),
        ("qwen3_vl", {"max_pixels": 32 * 32}),
        ("idefics3", {"longest_edge": 32}),
        ("smolvlm", {"longest_edge": 32}),
        ("internvl", {"max_tiles": 1}),
    ],
)
def test_a_bound_changes_how_many_tokens_a_picture_has(family: str, bounds: dict[str, int]) -> None:
    vlm = VLM(*FAMILIES[family]())
    image = vlm.module_map.image_token_id(vlm.model.config)
    before = int((vlm.encode(PROMPT)["input_ids"] == image).sum())
    set_bounds(vlm.processor.image_processor, ModelConfig(family, "a/b", **bounds))  # type: ignore[arg-type]
    after = int((vlm.encode(PROMPT)["input_ids"] == image).sum())
    assert (after > before) if "min_pixels" in bounds else (after < before)


@pytest.mark.parametrize("tiles", [1, 2, 5])
def test_llama_s_tiles_are_as_many_as_it_was_trained_with(tiles: int) -> None:
    """Its embeddings are those of arrangements of four: fewer crash the vision tower."""
    vlm = VLM(*FAMILIES["mllama"]())
    set_bounds(vlm.processor.image_processor, ModelConfig("mllama", "a/b", max_tiles=4))
    vlm.score(PROMPT)
    with pytest.raises(UserError, match=f"max_tiles={tiles} is not the 4 that mllama was trained with"):
        set_bounds(vlm.processor.image_processor, ModelConfig("mllama", "a/b", max_tiles=tiles))


class Deaf:
    """An image processor that has a side, as Step3's has, and does not read it."""

    def __init__(self) -> None:
        inner = VLM(*FAMILIES["idefics3"]()).processor.image_processor
        self.valid_kwargs, self.size = inner.valid_kwargs, inner.size

    def __call__(self, picture: Image.Image, **_: object) -> dict[str, np.ndarray]:
        return {"pixel_values": np.zeros((1, 3, 24, 24))}


@pytest.mark.parametrize("build", [Deaf, lambda: read_families.build("aria")[1].image_processor])
def test_a_side_that_the_processor_does_not_read_is_refused(build: Callable[[], object]) -> None:
    with pytest.raises(UserError, match=r"longest_edge=32 means nothing to it, whose .*; leave it out"):
        set_bounds(build(), ModelConfig("it", "a/b", longest_edge=32))
