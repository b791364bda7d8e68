"""The picture of a request, from its data URL.

Everything about it is hostile until it is decoded: its format is read from its bytes, its size from its header. No
picture is fetched from anywhere. Imports no torch.
"""

import base64
import binascii

from PIL import Image

from experiments.benchmarks.images import BadImage, EncodedImage, open_image
from experiments.serving.requests import BadRequest

FORMATS = ("JPEG", "PNG", "WEBP")
TYPES = ("image/jpeg", "image/jpg", "image/png", "image/webp")
NARROWEST = 100  # longer side over shorter: processors scale the shorter one, so a strip would take all the memory
FIELD = "messages"


def read_picture(url: str, most_pixels: int) -> Image.Image:
    """The picture in RGB, upright, decoded in full. Its bytes have the bound of the request that they came in.

    Raises:
        BadRequest: it is no such picture, or too large.
    """
    if url[:5].lower() != "data:":
        rule = "URLs of the web, files and paths are never opened"
        raise BadRequest(f"image_url is no data URL (data:image/png;base64,…); {rule}", FIELD)
    data = _from_data_url(url)
    try:
        image = open_image(EncodedImage("the picture.png", data), max_pixels=most_pixels, formats=FORMATS)
    except BadImage as error:
        raise BadRequest(f"the picture: {error.problem.reason}", FIELD) from None
    longer, shorter = max(image.size), min(image.size)
    if longer > NARROWEST * shorter:
        size = f"{image.width} x {image.height} pixels"
        raise BadRequest(f"the picture is a strip of {size}; sides of 1 to {NARROWEST} at most are read", FIELD)
    return image


def _from_data_url(url: str) -> bytes:
    head, comma, payload = url.partition(",")
    words = head[5:].lower().split(";")
    if not comma or words[-1] != "base64" or words[0] not in TYPES:
        raise BadRequest(f"a picture's data URL begins data:TYPE;base64, with a type of {', '.join(TYPES)}", FIELD)
    try:
        return base64.b64decode(payload, validate=True)
    except (binascii.Error, ValueError):
        raise BadRequest("the picture's data URL is not valid base64", FIELD) from None
