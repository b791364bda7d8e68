"""Resize, pad, crop and normalise pictures [..., channel, height, width], by torch alone."""

from collections.abc import Sequence
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate
from torch.nn.functional import pad as padded


class InterpolationMode(Enum):
    """How a picture is resized; what torch does not know is done by its nearest kin."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


_KIN = {"lanczos": "bicubic", "box": "bilinear", "hamming": "bilinear"}


def pil_to_tensor(picture: Any) -> Tensor:
    """Bytes [channel, height, width]."""
    pixels = torch.from_numpy(np.array(picture))
    return pixels[None] if pixels.ndim == 2 else pixels.permute(2, 0, 1).contiguous()


def resize(
    image: Tensor,
    size: int | Sequence[int],
    interpolation: Any = InterpolationMode.BILINEAR,
    max_size: int | None = None,
    antialias: bool = True,
) -> Tensor:
    """To ``size``, height and width."""
    edges = [size, size] if isinstance(size, int) else list(size)
    mode = getattr(interpolation, "value", interpolation)
    mode = _KIN.get(mode, mode)
    options: dict[str, Any] = {} if mode.startswith("nearest") else {"align_corners": False, "antialias": antialias}
    flat = image.reshape(-1, *image.shape[-3:]).float()
    found = interpolate(flat, size=edges, mode=mode, **options)
    if not image.is_floating_point():
        found = found.round().clamp(0, 255)
    return found.to(image.dtype).reshape(*image.shape[:-3], *found.shape[-3:])


def normalize(image: Tensor, mean: Sequence[float], std: Sequence[float], inplace: bool = False) -> Tensor:
    """Channel by channel."""
    middle, spread = (torch.as_tensor(values, dtype=image.dtype).view(-1, 1, 1) for values in (mean, std))
    return (image - middle) / spread


def pad(image: Tensor, padding: int | Sequence[int], fill: Any = 0, padding_mode: str = "constant") -> Tensor:
    """``padding`` is all, or left and top (twice), or left, top, right, bottom."""
    around = [padding] * 4 if isinstance(padding, int) else list(padding)
    left, top, right, bottom = around * 2 if len(around) == 2 else around
    edges = (left, right, top, bottom)
    if padding_mode != "constant":
        return padded(image.float(), edges, mode=padding_mode).to(image.dtype)
    if isinstance(fill, list | tuple):
        return torch.cat([padded(image[..., i : i + 1, :, :], edges, value=value) for i, value in enumerate(fill)], -3)
    return padded(image, edges, value=fill or 0)


def crop(image: Tensor, top: int, left: int, height: int, width: int) -> Tensor:
    """A rectangle."""
    return image[..., top : top + height, left : left + width]


def center_crop(image: Tensor, size: int | Sequence[int]) -> Tensor:
    """The rectangle in the middle."""
    height, width = (size, size) if isinstance(size, int) else size
    return crop(image, (image.shape[-2] - height) // 2, (image.shape[-1] - width) // 2, height, width)


def grayscale_to_rgb(image: Tensor) -> Tensor:
    """One channel three times."""
    return image.expand(*image.shape[:-3], 3, *image.shape[-2:]) if image.shape[-3] == 1 else image


def to_dtype(image: Tensor, dtype: torch.dtype, scale: bool = False) -> Tensor:
    """Bytes as numbers from 0 to 1, where ``scale`` asks for it."""
    scaled = scale and dtype.is_floating_point and not image.is_floating_point()
    return image.to(dtype) / 255 if scaled else image.to(dtype)
