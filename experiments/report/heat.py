"""Where a verdict looked, as pictures: the maps of ``attention/cases.json`` laid over a case's thumbnail.

All maps of one page share a scale, so that the same colour is the same share of attention.
"""

import base64
import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from experiments.report.colours import SHARES

SIDE = 240  # pixels, the longer side
QUALITY = 80  # of JPEG
COLOUR = 0.62  # share of the map's colour in a pixel; the rest is the picture in grey, so that its outlines stay
_VERDICT = re.compile(r"yes|no", re.IGNORECASE)


def verdict_token(block: Mapping[str, Any]) -> int:
    """Return where the verdict was read: the first token of the answer that is a Yes or a No, else its first token."""
    return next((at for at, token in enumerate(block["tokens"]) if _VERDICT.fullmatch(str(token).strip())), 0)


def image_map(block: Mapping[str, Any] | None) -> np.ndarray | None:
    """Return the verdict's attention by cell of the picture [row column], a mean over layers and heads.

    A cell holds the share of all the verdict's attention that falls on it. A block that is not of the shape that
    ``experiments.evaluation.attention_log`` writes has no map.
    """
    if not block or not block.get("grid"):
        return None
    try:
        rows, columns = (int(size) for size in block["grid"])
        shape = (len(block["tokens"]), len(block["layers"]), len(block["groups"]), rows, columns)
        steps = np.frombuffer(base64.b64decode(block["image"]), dtype=np.uint8).reshape(shape)
        scale = np.asarray(block["image_scale"], dtype=float).reshape(shape[:3])
    except (KeyError, TypeError, ValueError):
        return None
    token = verdict_token(block)
    values: np.ndarray = (steps[token, :, 0] * scale[token, :, 0, None, None] / 255).mean(axis=0)
    return values


def alike(maps: Sequence[np.ndarray]) -> bool:
    """Return whether ``maps`` are the same except for their rounding to 8 bits."""
    first = maps[0]
    return all(one.shape == first.shape and np.allclose(one, first, rtol=0, atol=first.max() / 64) for one in maps[1:])


def overlay(picture: bytes, values: np.ndarray, most: float) -> str:
    """Return the picture in grey under the colours of ``SHARES``, as a data URI of a JPEG.

    Args:
        picture: an image file.
        values: by cell [row column].
        most: the value of full colour, the same for all maps that are compared.

    Raises:
        OSError: ``picture`` is no image.
    """
    image = Image.open(io.BytesIO(picture)).convert("L")
    factor = SIDE / max(image.size)
    image = image.resize((max(1, round(image.width * factor)), max(1, round(image.height * factor))))
    rows = np.arange(image.height) * values.shape[0] // image.height
    columns = np.arange(image.width) * values.shape[1] // image.width
    share = np.clip(values / most if most > 0 else values * 0, 0, 1)[rows[:, None], columns[None, :]]
    colours = 255 * SHARES(share)[..., :3]
    grey = ImageOps.autocontrast(image)
    blended = Image.fromarray(
        (COLOUR * colours + (1 - COLOUR) * np.asarray(grey, dtype=float)[..., None]).astype(np.uint8)
    )
    buffer = io.BytesIO()
    blended.save(buffer, format="JPEG", quality=QUALITY)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def describe_map(values: np.ndarray) -> str:
    """Return in words where the strongest cell is and how much of the verdict's attention the picture draws.

    Rows and columns count from 1 at the upper left.
    """
    row, column = np.unravel_index(int(values.argmax()), values.shape)
    return (
        f"strongest in row {row + 1} of {values.shape[0]}, column {column + 1} of {values.shape[1]}; "
        f"the picture draws {100 * float(values.sum()):.0f}% of the verdict's attention"
    )
