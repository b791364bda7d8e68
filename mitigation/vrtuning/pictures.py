"""Training pictures on disk, opened as if their files were hostile: confined to a root, bounded in pixels, decoded."""

import math
from pathlib import Path

from PIL import Image

MAX_PIXELS = 50_000_000
# Decoders that work on the bytes alone; others that Pillow knows start outside programs.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")


class Unusable(Exception):
    """Why a picture cannot be used, as part of a sentence."""


def usable(name: str, root: Path) -> Path:
    """The absolute path of the picture ``name`` under ``root``, once it has been decoded in full. Raises Unusable."""
    try:
        path = (root / name).resolve()
        if not path.is_relative_to(root.resolve()):
            raise Unusable(f"image {name} leads outside {root}")
        if not path.exists():
            raise Unusable(f"image {name} is missing")
        if not path.is_file():  # reading a pipe or a device would wait for ever
            raise Unusable(f"image {name} is not a regular file")
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links; a NUL character in the name
        raise Unusable(f"image {name!r} cannot be opened ({error})") from error
    try:
        with Image.open(path, formats=FORMATS) as image:
            if math.prod(image.size) > MAX_PIXELS:
                raise Unusable(f"image {name} has {math.prod(image.size):,} pixels, more than the {MAX_PIXELS:,} read")
            image.load()
    except Unusable:
        raise
    except Exception as error:  # the decoders raise whatever bad bytes provoke
        raise Unusable(f"image {name} is not a complete {', '.join(FORMATS)} ({type(error).__name__})") from error
    return path


def bounded(image: Image.Image, max_pixels: int | None) -> Image.Image:
    """The picture, scaled down to at most ``max_pixels`` pixels with its proportions kept; itself where it fits."""
    if max_pixels is None or math.prod(image.size) <= max_pixels:
        return image
    scale = math.sqrt(max_pixels / math.prod(image.size))
    return image.resize((max(1, int(image.width * scale)), max(1, int(image.height * scale))), Image.Resampling.LANCZOS)
