"""The functions."""

from torchvision.transforms.v2 import functional
from torchvision.transforms.v2.functional import InterpolationMode

__all__ = ["InterpolationMode", "functional"]
