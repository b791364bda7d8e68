"""Pictures by name: a benchmark's case, one that was drawn here, or one's own, which only memory holds.

``case:<id>``, ``drawn:<concept>:<seed>`` (``no-<concept>`` under a prohibition sign), ``own:<digest of its pixels>``.
No name is ever a path. Imports no torch.
"""

import re
import threading
from collections import OrderedDict
from collections.abc import Callable

from PIL import Image

from experiments.benchmarks.iconworld.concepts import CONCEPTS, Thing
from experiments.benchmarks.iconworld.scene import Scene
from experiments.benchmarks.images import data_url, open_image, pixel_digest
from experiments.types import Sample
from interp.errors import UserError

MOST_BYTES = 64 * 2**20  # of all own pictures, as pixels
DRAWN = re.compile(r"drawn:(no-)?([a-z]+):([\w-]{1,40})")
SHOWN = 768  # pixels, the longer side of a picture as the page shows it


class Pictures:
    """The pictures that a request may name; ``case`` finds a case by its id, or raises a ``UserError``."""

    def __init__(self, case: Callable[[str], Sample], most_bytes: int = MOST_BYTES) -> None:
        self._case, self._most = case, most_bytes
        self._own: OrderedDict[str, Image.Image] = OrderedDict()
        self._lock = threading.Lock()

    def keep(self, image: Image.Image) -> str:
        """Takes in a picture of one's own; its name. Those used longest ago make room."""
        name = f"own:{pixel_digest(image)}"
        with self._lock:
            self._own[name] = image
            self._own.move_to_end(name)
            while len(self._own) > 1 and sum(map(_bytes, self._own.values())) > self._most:
                self._own.popitem(last=False)
        return name

    def open(self, name: str) -> Image.Image | None:
        """The picture of this name in RGB; None for no picture ("").

        Raises:
            UserError: there is none of this name, or none any more.
        """
        if not name:
            return None
        if name.startswith("case:"):
            sample = self._case(name.removeprefix("case:"))
            return None if sample.image is None else open_image(sample.image)
        if scene := scene_of(name):
            return scene.render()
        with self._lock:
            if name not in self._own:
                raise UserError("this picture is not here any more: own pictures live in memory alone; drop it again")
            self._own.move_to_end(name)
            return self._own[name].copy()  # a method may draw on it


def scene_of(name: str) -> Scene | None:
    """The drawn scene of this name; None for any other picture.

    Raises:
        UserError: a thing that is not drawn here.
    """
    if not name.startswith("drawn:"):
        return None
    match = DRAWN.fullmatch(name)
    if match is None or match[2] not in CONCEPTS:
        raise UserError(f"{name[:60]!r} is drawn by nobody; things are {', '.join(CONCEPTS)}; choose one")
    return Scene(Thing(match[2], bool(match[1])), match[3])


def as_url(image: Image.Image, side: int = SHOWN) -> str:
    """The picture as a data URL of a PNG, scaled down to ``side`` pixels where it is larger."""
    picture = image.convert("RGB")
    picture.thumbnail((side, side))
    return data_url(picture)


def _bytes(image: Image.Image) -> int:
    return image.width * image.height * len(image.getbands())
