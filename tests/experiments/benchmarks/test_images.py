import io
import os
import struct
import warnings
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from experiments.benchmarks.images import BadImage, Fault, open_image, pixel_digest
from experiments.benchmarks.published_benchmark import Collected, runnable
from experiments.types import Drawable, Loaded, Sample


def noise(seed: int = 0, size: tuple[int, int] = (9, 7)) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def png_claiming(width: int, height: int) -> bytes:
    """A PNG whose header claims a size that its data does not have: a bomb must be refused before decoding."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(99))) + chunk(b"IEND", b"")
    )


def sample(id: str, image: Path | Drawable | None, prompt: str = "p") -> Sample:
    return Sample(id, "typical", "s", "no", "t", prompt, image, cluster=id)


class Drawn:
    def render(self) -> Image.Image:
        return noise(5).convert("RGBA")


def fault_of(path: Path, **options) -> Fault:
    with pytest.raises(BadImage) as caught:
        open_image(path, **options)
    assert str(path) in str(caught.value)
    return caught.value.problem.fault


def test_transparency_shows_white_without_a_warning(tmp_path: Path) -> None:
    picture = noise().quantize(8)
    picture.save(tmp_path / "a.png", transparency=bytes([0, 255]))  # of the palette's first colour alone
    expected = np.asarray(picture.convert("RGB")).copy()
    expected[np.asarray(picture) == 0] = 255
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.array_equal(np.asarray(open_image(tmp_path / "a.png")), expected)


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", Fault.EMPTY),
        (b"\n", Fault.UNREADABLE),
        (b"<html>404</html>", Fault.UNREADABLE),
        (png_claiming(30_000, 30_000), Fault.TOO_LARGE),  # beyond what Pillow opens
        (png_claiming(8_000, 7_000), Fault.TOO_LARGE),  # Pillow would decode it
        (png_claiming(200, 200), Fault.UNREADABLE),  # data shorter than the header says
    ],
)
def test_bad_bytes_are_a_typed_fault(tmp_path: Path, data: bytes, fault: Fault) -> None:
    (tmp_path / "a.png").write_bytes(data)
    assert fault_of(tmp_path / "a.png") is fault


def test_the_pixel_bound_is_inclusive_and_may_be_set(tmp_path: Path) -> None:
    noise(size=(10, 10)).save(tmp_path / "a.png")
    assert open_image(tmp_path / "a.png", max_pixels=100).size == (10, 10)
    assert fault_of(tmp_path / "a.png", max_pixels=99) is Fault.TOO_LARGE


def test_files_that_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "loop.png").symlink_to("loop.png")
    assert fault_of(tmp_path / "absent.png") is Fault.MISSING
    assert fault_of(tmp_path) is Fault.UNREADABLE
    assert fault_of(tmp_path / "pipe.png") is Fault.UNREADABLE
    assert fault_of(tmp_path / "loop.png") in (Fault.UNREADABLE, Fault.MISSING)
    assert fault_of(tmp_path / "a\0.png") is Fault.UNREADABLE


def test_paths_that_leave_the_root_are_refused(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "images").mkdir(parents=True)
    noise().save(tmp_path / "secret.png")
    noise().save(root / "images" / "own.png")
    (root / "images" / "link.png").symlink_to(tmp_path / "secret.png")
    (root / "images" / "inner.png").symlink_to(root / "images" / "own.png")
    (root / "elsewhere").symlink_to(tmp_path)
    (tmp_path / "alias").symlink_to(root)
    for path in ("images/link.png", "images/../../secret.png", "elsewhere/secret.png", str(tmp_path / "secret.png")):
        assert fault_of(root / path, root=root) is Fault.OUTSIDE_ROOT
    for path in (root / "images/inner.png", root / "images/../images/own.png", tmp_path / "alias/images/own.png"):
        assert open_image(path, root=root).size == (9, 7)
        assert open_image(path, root=tmp_path / "alias").size == (9, 7)


@settings(deadline=None, max_examples=50)  # a shared machine may be slow
@given(cut=st.floats(0, 0.98), form=st.sampled_from(["PNG", "JPEG", "WEBP"]))
def test_a_truncated_file_never_passes_and_never_crashes(tmp_path_factory, cut: float, form: str) -> None:
    buffer = io.BytesIO()
    noise(size=(40, 40)).save(buffer, form)
    path = tmp_path_factory.mktemp("cut") / f"a.{form.lower()}"
    path.write_bytes(buffer.getvalue()[: int(len(buffer.getvalue()) * cut)])
    assert fault_of(path) in (Fault.UNREADABLE, Fault.EMPTY)


@settings(deadline=None, max_examples=50)  # a shared machine may be slow
@given(junk=st.binary(max_size=200))
def test_any_bytes_are_a_picture_or_a_fault(tmp_path_factory, junk: bytes) -> None:
    path = tmp_path_factory.mktemp("junk") / "a.png"
    path.write_bytes(png_claiming(3, 3)[:50] + junk)
    with suppress(BadImage):
        assert open_image(path).mode == "RGB"


def read(samples: list[Sample], root: Path) -> Loaded:
    return runnable(Collected(root, images=False, samples=samples))


def test_every_problem_of_a_published_benchmark_is_named_and_the_rest_kept(tmp_path: Path) -> None:
    noise(1).save(tmp_path / "good.png")
    noise(2).save(tmp_path / "other.png", "WEBP", lossless=True)
    (tmp_path / "empty.png").touch()
    samples = [
        sample("c1", tmp_path / "good.png"),
        sample("c2", tmp_path / "empty.png"),
        sample("c3", tmp_path / "other.png"),
        sample("c4", tmp_path / "absent.png"),
        sample("c5", Drawn()),
        sample("c6", None),
    ]
    found = read(samples, tmp_path)
    notes = {one.id: one.tags["image_note"] for one in found.samples if "image_note" in one.tags}
    assert {case: note.partition(": ")[0] for case, note in notes.items()} == {
        "c2": "image empty", "c4": "image missing"}  # fmt: skip
    assert {one.id: one.picture for one in found.samples if one.picture} == {
        "c1": pixel_digest(noise(1)), "c3": pixel_digest(noise(2)), "c5": pixel_digest(noise(5))}  # fmt: skip
    with_pictures = runnable(Collected(tmp_path, samples=samples))
    assert {case: why.partition(":")[0] for case, why in with_pictures.missing.items()} == {
        "c2": "image empty", "c4": "image missing"}  # fmt: skip


def test_the_manifest_follows_content_alone(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        noise(1).save(tmp_path / folder / "a.png")
        noise(2).save(tmp_path / folder / "b.png")
    one = [sample("a", tmp_path / "one/a.png"), sample("b", tmp_path / "one/b.png")]
    two = [sample("b", tmp_path / "two/b.png"), sample("a", tmp_path / "two/a.png")]
    manifest = read(one, tmp_path).manifest
    assert read(two, tmp_path).manifest == manifest
    changed = [
        [sample("a", tmp_path / "one/b.png"), one[1]],
        [sample("a", one[0].image, prompt="q"), one[1]],
        [sample("a", None), one[1]],
        one[:1],
    ]
    assert len({read(samples, tmp_path).manifest for samples in changed} | {manifest}) == 5


@pytest.mark.parametrize("form", ["GIF", "WEBP", "PNG"])
def test_an_animated_picture_is_a_problem(tmp_path: Path, form: str) -> None:
    path = tmp_path / f"clip.{form.lower()}"
    noise(1).save(path, save_all=True, append_images=[noise(2), noise(3)])
    with pytest.raises(BadImage, match=r"has 3 frames, and a model sees one; save the frame"):
        open_image(path)
    assert fault_of(path) is Fault.ANIMATED
