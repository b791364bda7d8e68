"""Pictures as a model sees them: every mode, orientation and depth."""

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from interp.errors import UserError
from interp.messages import ORIENTATION, as_seen
from interp.prompt import Prompt

GREY = ("1", "L", "LA", "La", "I", "F", "I;16")
MODES = (*GREY, "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "LAB", "HSV")


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_becomes_rgb(mode: str) -> None:
    image = as_seen(Image.new(mode, (5, 4)))
    assert (image.mode, image.size) == ("RGB", (5, 4))


def test_a_picture_that_is_so_already_is_the_same_object() -> None:
    image = Image.new("RGB", (5, 4))
    assert as_seen(image) is image
    assert Prompt("?", image).image is image


@pytest.mark.parametrize("mode", ["LA", "PA", "RGBA"])
def test_what_is_transparent_shows_white(mode: str) -> None:
    picture = Image.new("RGBA", (2, 1), (0, 0, 0, 0))
    picture.putpixel((1, 0), (0, 0, 0, 255))
    seen = np.asarray(as_seen(picture.convert(mode)))
    np.testing.assert_allclose(seen[0], [[255] * 3, [0] * 3], atol=2)


def test_a_colour_named_as_transparent_shows_white() -> None:
    picture = Image.new("RGB", (1, 1), (9, 8, 7))
    picture.info["transparency"] = (9, 8, 7)
    assert as_seen(picture).getpixel((0, 0)) == (255, 255, 255)


def test_a_sixteen_bit_grey_named_as_transparent_shows_white() -> None:
    picture = Image.fromarray(np.array([[0, 4096, 40960]], dtype=np.uint16))
    picture.info["transparency"] = 4096
    assert np.asarray(as_seen(picture))[0, :, 0].tolist() == [0, 255, 159]


@given(st.lists(st.integers(0, 65535), min_size=2, max_size=8))
def test_sixteen_bit_greys_are_scaled_not_clipped(greys: list[int]) -> None:
    image = Image.fromarray(np.array([greys], dtype=np.uint16))
    assert image.mode == "I;16"
    got = np.asarray(as_seen(image))[0, :, 0]
    np.testing.assert_allclose(got, np.array(greys) / 257, atol=0.5)


def test_eight_bit_values_in_a_wide_image_stay() -> None:
    image = Image.fromarray(np.array([[0, 7, 255]], dtype=np.int32))
    assert np.asarray(as_seen(image))[0, :, 0].tolist() == [0, 7, 255]


@pytest.mark.parametrize(("values", "seen"), [([0.0, 0.2, 1.0], [0, 51, 255]), ([0.0, 51.0, 300.0], [0, 51, 255])])
def test_floats_are_shares_or_greys(values: list[float], seen: list[int]) -> None:
    image = Image.fromarray(np.array([values], dtype=np.float32))
    assert np.asarray(as_seen(image))[0, :, 0].tolist() == seen


@pytest.mark.parametrize("orientation", range(10))
def test_orientation_is_applied_once(orientation: int) -> None:
    rng = np.random.default_rng(0)
    upright = Image.fromarray(rng.integers(0, 256, (4, 6, 3), dtype=np.uint8))
    turns = {2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM", 5: "TRANSPOSE", 6: "ROTATE_90",
             7: "TRANSVERSE", 8: "ROTATE_270"}  # fmt: skip
    stored = upright.transpose(Image.Transpose[turns[orientation]]) if orientation in turns else upright.copy()
    stored.getexif()[ORIENTATION] = orientation
    once = as_seen(stored)
    assert np.array_equal(np.asarray(once), np.asarray(upright))
    assert np.array_equal(np.asarray(as_seen(once)), np.asarray(upright))


def animated(colours: tuple[str, ...] = ("black", "red", "green", "blue")) -> Image.Image:
    first, *others = [Image.new("RGB", (8, 8), colour) for colour in colours]
    file = io.BytesIO()
    first.save(file, "GIF", save_all=True, append_images=others)
    return Image.open(file)


def test_an_animated_picture_is_refused_until_a_frame_is_chosen() -> None:
    clip = animated()
    with pytest.raises(UserError, match=r"has 4 frames, .* image\.copy\(\)"):
        Prompt("Is it safe?", clip)
    assert as_seen(clip.copy()).getpixel((0, 0)) == (0, 0, 0)
    clip.seek(1)
    assert as_seen(clip).getpixel((0, 0))[0] > 200


def test_the_preview_in_a_phones_jpeg_is_no_second_frame() -> None:
    file = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(file, "MPO", save_all=True, append_images=[Image.new("RGB", (4, 4), "red")])
    assert as_seen(Image.open(file)).size == (8, 8)
