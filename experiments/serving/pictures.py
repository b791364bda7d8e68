"""Pictures of requests: read from a data URL, or named (``Pictures``).

Everything about an uploaded picture is hostile until it is decoded. Its format is read from its bytes, its size from
its header. No picture is fetched from anywhere. Imports no torch.

A name is ``case:<id>`` of a benchmark, or ``drawn:<concept>:<seed>`` (``no-<concept>`` under a prohibition sign). An
upload, which only memory holds, is ``own:<digest of its pixels>``. No name is ever a path.
"""

import base64
import re
import threading
from collections import OrderedDict
from collections.abc import Callable

from PIL import Image

from experiments.benchmarks.iconworld.scene import Scene
from experiments.benchmarks.iconworld.sentences import CONCEPTS, Thing
from experiments.benchmarks.images import BadImage, EncodedImage, data_url, open_image, pixel_digest
from experiments.serving.server import BadRequest
from experiments.types import Sample
from interp.errors import UserError

FORMATS = ("JPEG", "PNG", "WEBP")
TYPES = ("image/jpeg", "image/jpg", "image/png", "image/webp")
NARROWEST = 100  # longer side over shorter: processors scale the shorter one, so a strip would take all the memory
FIELD = "messages"
MOST_BYTES = 64 * 2**20  # of all uploaded pictures, as pixels
DRAWN = re.compile(r"drawn:(no-)?([a-z]+):([\w-]{1,40})")
SHOWN = 768  # pixels, the longer side of a picture as the page shows it


def read_picture(url: str, most_pixels: int) -> Image.Image:
    """Return the picture in RGB, upright, decoded in full. Its bytes have the bound of the request that they came in.

    Raises:
        BadRequest: it is no such picture, or too large.
    """
    head, comma, payload = url.partition(",")
    scheme, _, described = head.lower().partition(":")
    if scheme != "data":
        rule = "URLs of the web, files and paths are never opened"
        raise BadRequest(f"image_url is no data URL (data:image/png;base64,…); {rule}", FIELD)
    words = described.split(";")
    if not comma or words[-1] != "base64" or words[0] not in TYPES:
        raise BadRequest(f"a picture's data URL begins data:TYPE;base64, with a type of {', '.join(TYPES)}", FIELD)
    try:
        encoded = EncodedImage("the picture.png", base64.b64decode(payload, validate=True))
        image = open_image(encoded, max_pixels=most_pixels, formats=FORMATS)
    except ValueError:
        raise BadRequest("the picture's data URL is not valid base64", FIELD) from None
    except BadImage as error:
        raise BadRequest(f"the picture: {error.problem.reason}", FIELD) from None
    longer, shorter = max(image.size), min(image.size)
    if longer > NARROWEST * shorter:
        size = f"{image.width} x {image.height} pixels"
        raise BadRequest(f"the picture is a strip of {size}; sides of 1 to {NARROWEST} at most are read", FIELD)
    return image


class Pictures:
    """The pictures that a request may name. ``case`` returns a case by its id, or raises a ``UserError``."""

    def __init__(self, case: Callable[[str], Sample], most_bytes: int = MOST_BYTES) -> None:
        self._case, self._most = case, most_bytes
        self._own: OrderedDict[str, Image.Image] = OrderedDict()
        self._lock = threading.Lock()

    def keep(self, image: Image.Image) -> str:
        """Keep an uploaded picture; return its name. Those used longest ago make room."""
        name = f"own:{pixel_digest(image)}"
        with self._lock:
            self._own[name] = image
            self._own.move_to_end(name)
            while len(self._own) > 1 and sum(3 * each.width * each.height for each in self._own.values()) > self._most:
                self._own.popitem(last=False)
        return name

    def open(self, name: str) -> Image.Image | None:
        """Return the picture of this name in RGB; None for no picture ("").

        Raises:
            UserError: there is none of this name, or none any more.
        """
        if not name:
            return None
        if name.startswith("case:"):
            sample = self._case(name.removeprefix("case:"))
            return None if sample.image is None else open_image(sample.image)
        if name.startswith("drawn:"):
            match = DRAWN.fullmatch(name)
            if match is None or match[2] not in CONCEPTS:
                raise UserError(f"{name[:60]!r} cannot be drawn; things are {', '.join(CONCEPTS)}; choose one")
            return Scene(Thing(match[2], bool(match[1])), match[3]).render()
        with self._lock:
            if name not in self._own:
                raise UserError("this picture is gone: uploads are only in memory; drop it again")
            self._own.move_to_end(name)
            return self._own[name].copy()  # a method may draw on it


def as_url(image: Image.Image, side: int = SHOWN) -> str:
    """Return the picture as a data URL of a PNG, scaled down to ``side`` pixels if it is larger."""
    picture = image.convert("RGB")
    picture.thumbnail((side, side))
    return data_url(picture)
