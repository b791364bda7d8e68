"""Grids say where in the picture a token lies: shown by painting the place and looking for the token that changes."""

import pytest
import torch
from PIL import Image, ImageDraw
from transformers import CLIPImageProcessorPil
from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil

from interp.errors import UserError
from interp.image_grid import WHOLE, crop_box
from interp.segments import segment
from interp.vlm import VLM, Prompt
from tests.families import FAMILIES, every_family
from tests.tiny import picture

NOWHERE = ("instructblip", "idefics", "mllama")  # learned queries; keys in cross-attention alone
SPATIAL = every_family(but={*NOWHERE, "llava_mistral", "paligemma2"})


def deaf(vlm):
    """Stops the vision tower's attention, so that a token knows its own place alone."""
    for name, module in vlm.module_map.module(vlm.model, "vision_tower").named_modules():
        if name.endswith(("out_proj", "attn.proj", "projection_layer")):
            torch.nn.init.zeros_(module.weight)
    return vlm


def embeddings(vlm, prompts):
    seen = []
    module = vlm.module_map.module(vlm.model, "language_model")
    hook = module.register_forward_pre_hook(lambda m, a, kwargs: seen.append(kwargs["inputs_embeds"]), with_kwargs=True)
    with hook, torch.no_grad():
        vlm.model(**vlm.encode(prompts))
    return seen[0]


def painted(size, box, cell, shape):
    """A grey picture with one cell of a grid over ``box`` in white."""
    left, top, right, bottom = (edge * size[i % 2] for i, edge in enumerate(box))
    width, height = (right - left) / shape[1], (bottom - top) / shape[0]
    x, y = left + cell[1] * width, top + cell[0] * height
    image = Image.new("RGB", size, (90, 90, 90))
    ImageDraw.Draw(image).rectangle((x + 1, y + 1, x + width - 2, y + height - 2), fill=(255, 255, 255))
    return image


def assert_grids_fit(vlm, size):
    plain = Prompt("Is it?", Image.new("RGB", size, (90, 90, 90)))
    grids = segment(vlm, [plain], vlm.encode([plain])).rows[0].grids
    assert grids
    for grid in grids:
        shape = tuple(grid.columns.shape)
        cells = [(r, c) for r in range(shape[0]) for c in range(shape[1])]
        pictures = [Prompt("Is it?", painted(size, grid.box, cell, shape)) for cell in cells]
        found = embeddings(vlm, [plain, *pictures])
        change = (found[1:] - found[:1]).norm(dim=-1)[:, grid.columns]  # picture × height × width
        loudest = [divmod(int(i), shape[1]) for i in change.flatten(1).argmax(1)]
        assert loudest == cells, grid.name
    return grids


@pytest.mark.parametrize("size", [(192, 96), (96, 192), (128, 128)], ids=["wide", "tall", "square"])
@pytest.mark.parametrize("name", SPATIAL)
def test_painting_a_cell_changes_its_token(name, size):
    grids = assert_grids_fit(deaf(VLM(*FAMILIES[name]())), size)
    shapes = [tuple(grid.columns.shape) for grid in grids]
    if len(grids) > 1 and size[0] != size[1]:  # high resolution follows the picture's aspect
        names = [grid.name for grid in grids]
        height, width = shapes[names.index("tiles")]
        assert (width > height) == (size[0] > size[1])


@pytest.mark.parametrize("size", [(96, 48), (48, 96)])
def test_a_centre_crop_covers_the_middle(size):
    vlm = deaf(VLM(*FAMILIES["llava"]()))
    vlm.processor.image_processor = CLIPImageProcessorPil(
        size={"shortest_edge": 24}, crop_size={"height": 24, "width": 24}
    )
    (grid,) = assert_grids_fit(vlm, size)
    assert grid.box == ((0.25, 0, 0.75, 1) if size[0] > size[1] else (0, 0.25, 1, 0.75))


def test_crop_boxes():
    crop = {"height": 20, "width": 20}
    padded = LlavaImageProcessorPil(do_pad=True, size={"shortest_edge": 20}, crop_size=crop)
    assert crop_box(padded, (40, 20)) == (0, -0.5, 1, 1.5)
    assert crop_box(LlavaImageProcessorPil(do_resize=False, crop_size=crop), (40, 80)) == (0.25, 0.375, 0.75, 0.625)
    assert crop_box(LlavaImageProcessorPil(do_center_crop=False), (40, 80)) == WHOLE


def test_the_newline_column_is_image_mass_but_on_no_map():
    vlm = VLM(*FAMILIES["llava_next"]())
    prompts = [Prompt("Is it?", picture(0, (64, 40)))]
    row = segment(vlm, prompts, vlm.encode(prompts)).rows[0]
    mapped = {c for grid in row.grids for c in grid.columns.flatten().tolist()}
    left = sorted(set(row.columns("image_0")) - mapped)
    assert len(left) == row.grids[1].columns.shape[0]
    assert left == (row.grids[1].columns[:, -1] + 1).tolist()


def test_pan_and_scan_crops_are_refused():
    vlm = VLM(*FAMILIES["gemma3"]())
    vlm.processor.images_kwargs = {
        "do_pan_and_scan": True,
        "pan_and_scan_min_crop_size": 8,
        "pan_and_scan_max_num_crops": 2,
        "pan_and_scan_min_ratio_to_activate": 1.2,
    }
    prompts = [Prompt("Is it?", picture(0, (96, 32)))]
    with pytest.raises(UserError, match="3 crops of 1 pictures"):
        segment(vlm, prompts, vlm.encode(prompts))


def test_a_processor_of_another_patch_size_is_refused():
    vlm = VLM(*FAMILIES["llava"]())
    prompts = [Prompt("Is it?", picture())]
    encoded = vlm.encode(prompts)
    encoded["input_ids"][0, -1] = vlm.model.config.image_token_id
    with pytest.raises(UserError, match="10 image tokens do not fill a grid of 3 × 3"):
        segment(vlm, prompts, encoded)


def test_tiles_that_do_not_fit_their_arrangement_are_refused():
    vlm = VLM(*FAMILIES["internvl"]())
    prompts = [Prompt("Is it?", picture(0, (64, 32)))]
    encoded = vlm.encode(prompts)
    vlm.processor.image_processor.max_patches = 1
    with pytest.raises(UserError, match="2 tiles of an image where 1 × 1 were expected"):
        segment(vlm, prompts, encoded)
    vlm.processor.image_seq_length = 5
    with pytest.raises(UserError, match="12 image tokens are no multiple of the 5"):
        segment(vlm, prompts, encoded)
