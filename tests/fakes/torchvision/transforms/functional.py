"""The same functions by their older place."""

from torchvision.transforms.v2.functional import *  # noqa: F403
