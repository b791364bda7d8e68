"""The functions, and names of transforms that nothing here calls."""

from typing import Any

from torchvision.transforms import functional, v2
from torchvision.transforms.v2.functional import InterpolationMode

__all__ = ["InterpolationMode", "functional", "v2"]


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {"__init__": lambda self, *args, **kwargs: None})
