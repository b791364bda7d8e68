"""Pictures as a model sees them: upright, without transparency, in 8-bit RGB. Every way in leads through here."""

import hashlib

import numpy as np
from PIL import Image, ImageCms, ImageOps

from interp.errors import UserError

TRANSPARENT = ("RGBA", "RGBa", "LA", "La", "PA")
BACKGROUND = (255, 255, 255)  # what shows through where a picture is transparent
STILL = ("MPO", "PSD")  # formats whose further frames show the same picture
ORIENTATION = 0x0112  # the EXIF tag


class PictureRefused(UserError):
    """A picture that a model's processor cannot take; ``place`` is its prompt's in the batch."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.place = position


def as_seen(image: Image.Image) -> Image.Image:
    """Return the picture upright, on white, in 8-bit RGB; the same object if it is so already.

    An orientation in EXIF is applied; damaged EXIF is ignored. 16-bit greys are scaled down. PIL would clip them and
    turn most pictures white. Floats between 0 and 1 are scaled up. PIL would turn them black.

    Raises:
        UserError: the picture is animated or has several pages, and no frame was chosen with ``seek``.
    """
    count = frames(image)
    if count > 1 and image.tell() == 0:
        raise UserError(
            f"The picture has {count} frames, and a model sees one. Pass the frame that you mean: image.copy()."
        )
    image.load()  # a damaged picture is no damaged EXIF
    image = _upright(image)
    if image.mode == "F" or image.mode.startswith("I"):
        return Image.fromarray(_eight_bits(image)).convert("RGB")
    if image.mode in TRANSPARENT or "transparency" in image.info:
        layer = (image.convert("LA") if image.mode == "La" else image).convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, (*BACKGROUND, 255)), layer).convert("RGB")
    if image.mode == "RGB":
        return image
    if image.mode == "LAB":
        profiles = ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB")
        converted = ImageCms.profileToProfile(image, *profiles, outputMode="RGB")
        assert converted is not None  # it is, of a picture that is not changed in place
        return converted
    return image.convert("RGB")


def frames(image: Image.Image) -> int:
    """Return the number of frames or pages. A phone's JPEG with previews (MPO) and the layers of a PSD count as one."""
    return 1 if image.format in STILL else getattr(image, "n_frames", 1)


def pixels(image: Image.Image | None) -> bytes:
    """Return a digest of what a picture shows: equal for two objects, another once a picture was edited in place."""
    if image is None:
        return b""
    return hashlib.blake2b(image.tobytes(), digest_size=16, person=repr(image.size).encode()[:16]).digest()


def _upright(image: Image.Image) -> Image.Image:
    try:
        turned = image.getexif().get(ORIENTATION, 1) not in (0, 1)
        return ImageOps.exif_transpose(image) if turned else image
    except Exception:  # damaged EXIF beside a sound picture: the parser raises whatever its bytes provoke
        return image


def _eight_bits(image: Image.Image) -> "np.ndarray[tuple[int, int], np.dtype[np.uint8]]":
    given = np.asarray(image, dtype=np.float64)
    grey = given
    if image.mode == "F":
        grey = grey * 255 if grey.size and grey.min() >= 0 and grey.max() <= 1 else grey
    elif image.mode != "I" or grey.max() > 255:  # older versions of PIL open a 16-bit PNG as I
        grey = grey / 257
    named = image.info.get("transparency")  # a grey that shows what is behind
    if isinstance(named, int):
        grey = np.where(given == named, BACKGROUND[0], grey)
    return np.nan_to_num(grey).clip(0, 255).round().astype(np.uint8)
