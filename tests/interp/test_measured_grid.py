"""Where image tokens lie, measured: as the table has it where there is one, and refused where two seeds disagree."""

from dataclasses import replace

import pytest
import torch

from interp import image_grid as places
from interp.errors import UserError
from interp.image_grid import MEASURED, measure_places
from interp.segments import segment
from interp.vlm import VLM, Prompt
from tests.families import FAMILIES
from tests.tiny import picture


def unplaced(name: str) -> tuple[VLM, VLM]:
    """A model that the table places, and the same one as if it did not."""
    known, vlm = VLM(*FAMILIES[name]()), VLM(*FAMILIES[name]())
    vlm.layout = replace(vlm.layout, geometry="measured")
    return known, vlm


@pytest.mark.parametrize(("name", "size"), [("llava", (24, 24)), ("qwen2_vl", (64, 48)), ("paligemma", (32, 32))])
def test_a_measured_grid_is_the_table_s_and_says_that_it_is_measured(name: str, size: tuple[int, int]) -> None:
    known, vlm = unplaced(name)
    prompts = [Prompt("Is it?", picture(0, size))]
    (truth,) = segment(known, prompts, known.encode(prompts)).rows[0].grids
    assert measure_places(vlm, size) == tuple(truth.columns.shape)
    (grid,) = segment(vlm, prompts, vlm.encode(prompts)).rows[0].grids
    assert grid.name == MEASURED
    assert torch.equal(grid.columns, truth.columns)


def test_tokens_that_change_anywhere_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _, vlm = unplaced("llava")
    generator = torch.Generator().manual_seed(0)
    monkeypatch.setattr(places, "_first_states", lambda vlm, pixels: torch.randn(9, 4, generator=generator))
    with pytest.raises(UserError, match="the 9 image tokens of llava for a picture of 24 × 24 fill no grid"):
        measure_places(vlm, (24, 24))


def test_no_image_tokens_have_no_places() -> None:
    with pytest.raises(UserError, match="no image tokens in the sequence of mllama"):
        measure_places(VLM(*FAMILIES["mllama"]()), (32, 32))
