"""The picture of a request, from its URL: a data URL, or a file on a host that the operator has allowed.

Everything about it is hostile until it is decoded: its format is read from its bytes, its size from its header, and no
request leaves this machine for a host that is not listed. Imports no torch.
"""

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from PIL import Image

from experiments.benchmarks.images import BadImage, EncodedImage, open_image
from experiments.serving.requests import BadRequest

FORMATS = ("JPEG", "PNG", "WEBP")
TYPES = ("image/jpeg", "image/jpg", "image/png", "image/webp")
NARROWEST = 100  # longer side over shorter: processors scale the shorter one, so a strip would take all the memory
SECONDS = 20.0  # that an allowed host may take
FIELD = "messages"


@dataclass(frozen=True)
class PictureLimits:
    """The largest file in bytes and picture in pixels; ``hosts`` (``name`` or ``name:port``) may be fetched from."""

    most_bytes: int
    most_pixels: int
    hosts: tuple[str, ...] = ()


def read_picture(url: str, limits: PictureLimits) -> Image.Image:
    """The picture in RGB, upright, decoded in full.

    Raises:
        BadRequest: it is no such picture, too large, or somewhere that is not asked.
    """
    kind = url[:8].partition(":")[0].lower()
    if kind == "data":
        data = _from_data_url(url, limits)
    elif kind in ("http", "https"):
        data = _fetched(url, limits)
    else:
        raise BadRequest("image_url is no data URL (data:image/png;base64,…); files and paths are never opened", FIELD)
    try:
        image = open_image(EncodedImage("the picture.png", data), max_pixels=limits.most_pixels, formats=FORMATS)
    except BadImage as error:
        raise BadRequest(f"the picture: {error.problem.reason}", FIELD) from None
    longer, shorter = max(image.size), min(image.size)
    if longer > NARROWEST * shorter:
        size = f"{image.width} x {image.height} pixels"
        raise BadRequest(f"the picture is a strip of {size}; sides of 1 to {NARROWEST} at most are read", FIELD)
    return image


def _from_data_url(url: str, limits: PictureLimits) -> bytes:
    head, comma, payload = url.partition(",")
    words = head[5:].lower().split(";")
    if not comma or words[-1] != "base64" or words[0] not in TYPES:
        raise BadRequest(f"a picture's data URL begins data:TYPE;base64, with a type of {', '.join(TYPES)}", FIELD)
    if len(payload) > limits.most_bytes // 3 * 4 + 4:
        raise _too_large(limits)
    try:
        return base64.b64decode(payload, validate=True)
    except (binascii.Error, ValueError):
        raise BadRequest("the picture's data URL is not valid base64", FIELD) from None


class _NoRedirect(HTTPRedirectHandler):
    """An allowed host may not send us to another."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _fetched(url: str, limits: PictureLimits) -> bytes:
    """The file at ``url``, if its host is allowed."""
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").lower(), parts.port
    except ValueError:
        raise BadRequest("image_url is no valid URL", FIELD) from None
    if (host if port is None else f"{host}:{port}") not in limits.hosts:
        rule = (
            "pictures are sent as data URLs (data:image/png;base64,…); the operator may allow a host: task.image_hosts"
        )
        raise BadRequest(f"image_url is on a host that is not asked; {rule}", FIELD)
    try:
        asked = Request(url, headers={"Accept": ", ".join(TYPES), "User-Agent": "forestlens"})
        with build_opener(_NoRedirect).open(asked, timeout=SECONDS) as reply:
            data: bytes = reply.read(limits.most_bytes + 1)
    except (URLError, HTTPException, OSError, ValueError) as error:
        raise BadRequest(f"the picture cannot be fetched from {host} ({type(error).__name__})", FIELD) from None
    if len(data) > limits.most_bytes:
        raise _too_large(limits)
    return data


def _too_large(limits: PictureLimits) -> BadRequest:
    return BadRequest(f"the picture has more than {limits.most_bytes:,} bytes, the most that are read", FIELD)


def allowed_hosts(hosts: Sequence[str]) -> tuple[str, ...]:
    """The hosts as they are compared: in lower case."""
    return tuple(host.strip().lower() for host in hosts)
