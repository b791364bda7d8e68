"""Images of a benchmark, opened as if their files were hostile: confined to a root, bounded in pixels, decoded in full.

Knows nothing of answer keys, models or arms. A file that cannot be used becomes an ``ImageProblem``, not a crash.
"""

import base64
import hashlib
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from PIL import Image

from experiments.types import Drawable, Sample
from interp.errors import UserError
from interp.messages import as_seen, frames

MAX_PIXELS = 50_000_000
# Decoders that work on the bytes alone: others that Pillow knows start outside programs (EPS) or have no use here.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
DATA_URI = re.compile(r"data:image/[\w.+-]{1,40};base64,")


class Fault(StrEnum):
    """What is wrong with an image file."""

    MISSING = "missing"
    OUTSIDE_ROOT = "outside_root"
    EMPTY = "empty"
    UNREADABLE = "unreadable"
    TOO_LARGE = "too_large"
    ANIMATED = "animated"


@dataclass(frozen=True)
class ImageProblem:
    """What is wrong with one file."""

    file: str
    fault: Fault
    reason: str


class BadImage(UserError):
    """An image that cannot be used; ``problem`` says which and why."""

    def __init__(self, problem: ImageProblem) -> None:
        super().__init__(f"{problem.file}: {problem.reason}")
        self.problem = problem


@dataclass(frozen=True)
class EncodedImage:
    """An image file's bytes where there is no file, as data sets from the hub hold them; opened as hostile as any."""

    name: str
    data: bytes = field(repr=False)

    def render(self) -> Image.Image:
        """Return the picture in RGB.

        Raises:
            BadImage: see ``open_image``.
        """
        return open_image(self)


@dataclass(frozen=True)
class UnusableImage:
    """In the place of an image that a benchmark's file names and that may not, or cannot, be opened."""

    problem: ImageProblem

    def render(self) -> Image.Image:
        """Raise the error of a picture that cannot be opened.

        Raises:
            BadImage: always.
        """
        raise BadImage(self.problem)


def open_image(
    source: Path | Drawable,
    *,
    root: Path | None = None,
    max_pixels: int = MAX_PIXELS,
    formats: Sequence[str] = FORMATS,
) -> Image.Image:
    """Return the picture in RGB: drawn, or read from disk and decoded in full.

    The picture is as a model sees it (``interp.messages.as_seen``).

    Args:
        source: a file, its bytes, or a drawing.
        root: the folder that a path may not leave, not even through ``..`` or a symbolic link.
        max_pixels: the largest area that is read.
        formats: the formats that the bytes may have. The name of the file does not matter.

    Raises:
        BadImage: the file cannot be used; ``problem`` says why.
    """
    if isinstance(source, UnusableImage):
        raise BadImage(source.problem)
    if not isinstance(source, Path | EncodedImage):
        return as_seen(source.render())
    name = str(source) if isinstance(source, Path) else source.name
    data = _read(source, root) if isinstance(source, Path) else source.data
    if not data:
        raise _bad(name, Fault.EMPTY, "has zero bytes; fetch it again")
    return _picture(name, data, max_pixels, formats)


def cell_picture(value: Any, case: str, root: Path, option: str) -> Path | Drawable:
    """Return the picture that a cell names or holds, or a stand-in that says why none may be opened."""
    held = value if not isinstance(value, dict) else value.get("bytes") or value.get("path")
    if isinstance(held, str) and (uri := DATA_URI.match(held)):
        try:
            held = base64.b64decode(held[uri.end() :], validate=True)
        except ValueError:
            return _unusable("data:image", Fault.UNREADABLE, "is no base64; write the picture's bytes again")
    if isinstance(held, bytes | bytearray | memoryview):
        return EncodedImage(f"the picture of {case[:60]!r}", bytes(held))
    if held is None or held == "":
        return _unusable("", Fault.MISSING, "the cell is empty; name a file, or leave the column out of the table")
    if not isinstance(held, str):
        return _unusable("", Fault.UNREADABLE, f"the cell holds {described(held)}; give a path or the bytes")
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", held):
        return _unusable(held, Fault.UNREADABLE, "is an address; download it, and give the file's path")
    try:
        path = (root / held).resolve()
    except (OSError, RuntimeError, ValueError) as error:  # a NUL character, a loop of links, a name too long
        return _unusable(held, Fault.UNREADABLE, f"cannot be opened ({type(error).__name__})")
    if not path.is_relative_to(root):
        rule = f"leads out of {root}; only files in it are read; copy the file, or set {option}.images"
        return _unusable(held, Fault.OUTSIDE_ROOT, rule)
    return path


def _unusable(file: str, fault: Fault, reason: str) -> UnusableImage:
    return UnusableImage(ImageProblem(file[:200], fault, reason))


def described(value: Any) -> str:
    """Return any value of a foreign file for a message."""
    return f"{value!r}" if isinstance(value, bool | float) else f"a {type(value).__name__}"


def open_pictures(sample: Sample) -> tuple[Image.Image, ...]:
    """Return the case's pictures in their order.

    Raises:
        BadImage: one of them cannot be opened.
    """
    return tuple(map(open_image, sample.images))


def one_picture(sample: Sample) -> Image.Image:
    """Return the case's picture for people and judges: several side by side, each as high as the first.

    Raises:
        BadImage: one of them cannot be opened.
    """
    images = list(map(open_image, sample.images))
    height = images[0].height
    images = [image.resize((max(1, round(image.width * height / image.height)), height)) for image in images]
    gap = max(2, height // 20) if len(images) > 1 else 0
    sheet = Image.new("RGB", (sum(image.width + gap for image in images) - gap, height), "white")
    for index, image in enumerate(images):
        sheet.paste(image, (sum(before.width + gap for before in images[:index]), 0))
    return sheet if len(images) > 1 else images[0]


def data_url(image: Image.Image, form: str = "PNG", **options: Any) -> str:
    """Return the picture as a data URL of ``form``, by default lossless; ``options`` go to Pillow's ``save``."""
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return f"data:image/{form.lower()};base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"


def pixel_digest(image: Image.Image) -> str:
    """Return the SHA-256 of size, mode and pixels: equal for the same picture in two lossless formats."""
    return hashlib.sha256(f"{image.mode} {image.size}".encode() + image.tobytes()).hexdigest()


def picture_of(source: Path | Drawable | None) -> str:
    """Return a hash of the picture, for the key of a case; "" if there is none or it cannot be opened.

    The hash is of the pixels, so that a copy in another lossless format counts as the same. If a drawing has a
    ``content``, the hash is of that, and nothing is drawn.
    """
    if source is None:
        return ""
    content = getattr(source, "content", None)
    if isinstance(content, str):
        return hashlib.sha256(content.encode()).hexdigest()
    try:
        return pixel_digest(open_image(source))
    except BadImage:
        return ""


def _bad(file: object, fault: Fault, reason: str) -> BadImage:
    return BadImage(ImageProblem(str(file), fault, reason))


def _read(path: Path, root: Path | None) -> bytes:
    try:
        target = path.resolve()
        if root is not None and not target.is_relative_to(root.resolve()):
            rule = f"leads to {target}, outside {root}; only files under that folder are read"
            raise _bad(path, Fault.OUTSIDE_ROOT, f"{rule}; copy the file into it")
        if not target.exists():
            raise _bad(path, Fault.MISSING, "no such file")
        if not target.is_file():  # reading a pipe or a device would wait for ever
            raise _bad(path, Fault.UNREADABLE, "not a regular file")
        return target.read_bytes()
    except (OSError, RuntimeError, ValueError) as error:  # no permission; a loop of links; a NUL character in the name
        raise _bad(path, Fault.UNREADABLE, f"cannot be opened ({error})") from error


def _picture(name: str, data: bytes, max_pixels: int, formats: Sequence[str]) -> Image.Image:
    """Return the picture in RGB. Its size is judged from the header, before decoding."""
    try:
        with Image.open(io.BytesIO(data), formats=tuple(formats)) as image:
            width, height = image.size
            if width * height > max_pixels:
                rule = f"{width} x {height} pixels, more than the {max_pixels:,} that are read"
                raise _bad(name, Fault.TOO_LARGE, f"{rule}; scale it down")
            if (count := frames(image)) > 1:
                rule = f"has {count} frames, and a model sees one"
                raise _bad(name, Fault.ANIMATED, f"{rule}; save the frame that you mean as a picture of its own")
            image.load()  # here, so that a damaged picture is not taken for damaged EXIF below
            return as_seen(image)
    except BadImage:
        raise
    except Image.DecompressionBombError as error:  # Pillow's own limit
        raise _bad(
            name, Fault.TOO_LARGE, f"more than the {max_pixels:,} pixels that are read; scale it down"
        ) from error
    except Exception as error:  # the decoders raise whatever bad bytes provoke: OSError, SyntaxError, struct.error …
        rule = f"not a complete image in one of {', '.join(formats)}"
        raise _bad(name, Fault.UNREADABLE, f"{rule} ({type(error).__name__}); replace it") from error
