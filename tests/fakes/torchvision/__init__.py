"""The tensor functions of torchvision that image processors of transformers call, and names that they import."""

from torchvision import datasets, io, ops, transforms

__all__ = ["datasets", "io", "ops", "transforms"]
__version__ = "0.28.0"
