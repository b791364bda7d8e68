"""Pictures in and out of every family's ``pixel_values``, and noise that lies on the picture."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from interp.vlm import VLM, Prompt
from mitigation.contrastive.corruption import case_generator, diffuse, diffuse_images, pictures_of
from tests.families import FAMILIES, Pieces, every_family
from tests.tiny import picture

QWEN = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
SIZES = [(24, 24), (90, 40), (40, 80)]


class Built(dict[str, Pieces]):
    """Models by family, each built when it is first asked for."""

    def __missing__(self, name: str) -> Pieces:
        self[name] = FAMILIES[name]()
        return self[name]


@pytest.fixture(scope="module")
def built() -> dict[str, Pieces]:
    return Built()


@pytest.fixture
def prompts(prompts: list[Prompt]) -> list[Prompt]:
    """Pictures of other shapes, so that tiles and patches differ in number."""
    return [replace(p, image=picture(i, SIZES[i])) for i, p in enumerate(prompts)]


def noised(vlm: VLM, prompts: list[Prompt]) -> tuple[list[Tensor], list[Tensor]]:
    """The views of every picture, before and after."""
    inputs, keys = vlm.encode(prompts), [prompt.key for prompt in prompts]
    after = diffuse_images(inputs, keys, step=999, seed=0, model=vlm.model)
    return [pictures_of(batch, len(keys), model=vlm.model).views for batch in (inputs, after)]  # type: ignore[return-value]


@pytest.mark.parametrize("family", every_family())
def test_unchanged_views_join_to_what_the_processor_gave(
    family: str, built: dict[str, Pieces], prompts: list[Prompt]
) -> None:
    inputs = VLM(*built[family]).encode(prompts)
    pictures = pictures_of(inputs, len(prompts), model=built[family].model)
    assert torch.equal(pictures.join(list(pictures.views)), inputs["pixel_values"])


@pytest.mark.parametrize("family", QWEN)
def test_both_copies_of_a_patch_get_the_noise_of_one_picture(
    family: str, built: dict[str, Pieces], prompts: list[Prompt]
) -> None:
    vlm = VLM(*built[family])
    before, after = noised(vlm, prompts)
    for prompt, image, views in zip(prompts, before, after, strict=True):
        assert len(views) == 2
        assert torch.equal(views[0], views[1])
        expected = diffuse(image[0], step=999, generator=case_generator(prompt.key, 0))
        assert torch.equal(views[0], expected)


@pytest.mark.parametrize("family", QWEN)
def test_patches_are_put_together_as_the_picture(family: str, built: dict[str, Pieces]) -> None:
    # A size that the processor leaves alone, so that its pixels are the picture's but for the normalisation.
    pieces, image = built[family], picture(7, (64, 32))
    inputs = VLM(*pieces).encode([Prompt("what is red", image)])
    (views,) = pictures_of(inputs, 1, model=pieces.model).views
    processor = pieces.processor.image_processor
    mean, std = (torch.tensor(v)[:, None, None] for v in (processor.image_mean, processor.image_std))
    pixels = torch.tensor(list(image.tobytes())).reshape(32, 64, 3).permute(2, 0, 1) / 255
    torch.testing.assert_close(views[0], (pixels - mean) / std, atol=1e-5, rtol=0)


def test_a_tile_in_a_row_of_its_own_belongs_to_its_prompt(built: dict[str, Pieces], prompts: list[Prompt]) -> None:
    before, after = noised(VLM(*built["internvl"]), prompts)
    assert [len(views) for views in before] == [1, 3, 3]
    for prompt, tiles, views in zip(prompts, before, after, strict=True):
        generator = case_generator(prompt.key, 0)
        for tile, view in zip(tiles, views, strict=True):
            assert torch.equal(view, diffuse(tile, step=999, generator=generator))


def test_what_a_mask_calls_padding_stays_and_draws_nothing() -> None:
    pixels, mask = torch.zeros(1, 1, 3, 8, 8), torch.zeros(1, 1, 8, 8, dtype=torch.long)
    pixels[..., :6, :4], mask[..., :6, :4] = 1.0, 1
    inputs = {"pixel_values": pixels, "pixel_attention_mask": mask}
    after = diffuse_images(inputs, ["a"], step=999, seed=0)["pixel_values"]
    alone = diffuse_images({"pixel_values": pixels[..., :6, :4]}, ["a"], step=999, seed=0)["pixel_values"]
    assert torch.equal(after[..., :6, :4], alone)
    assert not after[..., 6:, :].any()
    assert not after[..., 4:].any()
