"""Conversations in the chat format of OpenAI and transformers, and their pictures: read and checked.

A conversation is a system text, turns of user and assistant in alternation, the last of them the user's, and perhaps
the beginning of an answer (an assistant's message at the end).

A picture is as a model sees it: upright, without transparency, in 8-bit RGB. Every way in leads through here.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any

import numpy as np
from PIL import Image, ImageCms, ImageOps

from interp.errors import UserError

TRANSPARENT = ("RGBA", "RGBa", "LA", "La", "PA")
BACKGROUND = (255, 255, 255)  # what shows through where a picture is transparent
STILL = ("MPO", "PSD")  # formats whose further frames show the same picture
ORIENTATION = 0x0112  # the EXIF tag


class PictureRefused(UserError):
    """A picture that a model's processor cannot take; ``position`` is its prompt's in the batch."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.position = position


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


ReadPicture = Callable[[Mapping[str, Any]], Any]
Place = tuple[int, int]
"""A turn and a part of it, both counted from 0."""


@dataclass(frozen=True)
class Message:
    """A turn of a conversation: who speaks, and texts and pictures in their order.

    In a prompt a picture is a ``PIL.Image.Image``, in a benchmark's case a file or a drawing. An assistant's turn
    without parts is the model's own answer, which a run asks for.
    """

    role: str  # "user" or "assistant"
    parts: tuple[Any, ...] = ()

    @property
    def text(self) -> str:
        """All texts of the turn, a line each."""
        return "\n".join(part for part in self.parts if isinstance(part, str))

    @property
    def images(self) -> tuple[Any, ...]:
        """The pictures of the turn."""
        return tuple(part for part in self.parts if not isinstance(part, str))

    def mapped(self, picture: Callable[[Any], Any]) -> "Message":
        """Return the turn with what ``picture`` makes of each picture in its place."""
        return replace(self, parts=tuple(part if isinstance(part, str) else picture(part) for part in self.parts))

    def outline(self, picture: Callable[[Any], Any] = lambda _: None) -> tuple[Any, ...]:
        """Return the role and the parts, with what ``picture`` makes of each picture in its place."""
        return (self.role, *self.mapped(picture).parts)

    def as_chat(self, picture: Callable[[Any], Any] = lambda _: {"type": "image"}) -> dict[str, Any]:
        """Return the turn in the chat format. ``picture`` makes a picture's part, by default without its content."""
        parts = [{"type": "text", "text": part} if isinstance(part, str) else picture(part) for part in self.parts]
        return {"role": self.role, "content": parts}

    def with_text(self, text: str) -> "Message":
        """Return the turn with another text. New words around the old ones leave each picture where it is.

        Raises:
            UserError: other words for several texts with pictures between them.
        """
        if text == self.text:
            return self
        texts = [part for part in self.parts if isinstance(part, str)]
        if len(texts) > 1:
            before, same, after = text.partition(self.text)
            if not same:
                raise UserError(
                    f"Prompt: other words for {len(texts)} texts of one turn, which have pictures between them; a "
                    "method that rewrites the question needs one text a turn; put the pictures before the text"
                )
            texts = [before + texts[0], *texts[1:-1], texts[-1] + after]
        left = iter(texts if len(texts) > 1 else [text])
        parts = [next(left) if isinstance(part, str) else part for part in self.parts]
        return replace(self, parts=(*parts, *left))


def read(
    messages: Sequence[Mapping[str, Any]], picture: ReadPicture | None = None, *, answer_prefix: bool = False
) -> tuple[str | None, tuple[Message, ...], str | None]:
    """Return the system text, the turns, and how the answer begins; None if it does not, as without a system text.

    Messages have ``role`` and ``content`` (a text, or a list of texts and pictures). ``picture`` makes a picture of a
    part of the type image or image_url, or gives None. By default the part must have one. If ``answer_prefix``, an
    assistant's message at the end is how the answer begins.

    Raises:
        UserError: not such messages; no user's turn at the end; two turns of one role in a row; a picture in a turn
            that is not the user's.
    """
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence):
        raise UserError(f"messages is a {type(messages).__name__}; give a list of role and content, as in a chat")
    turns = [_message(message, number, picture or _seen_in) for number, message in enumerate(messages, 1)]
    system = turns.pop(0).text if turns and turns[0].role == "system" else None
    answer = turns.pop().text if answer_prefix and turns and turns[-1].role == "assistant" else None
    for number, (turn, role) in enumerate(zip(turns, cycle(("user", "assistant"))), 1 + (system is not None)):
        if turn.role != role:
            raise UserError(
                f"messages: message {number} is by {turn.role!r}, where {role!r} speaks; after a system text, user and "
                "assistant take turns; join messages of the same role into one"
            )
    if len(turns) % 2 == 0:
        raise UserError(f"messages: there is no message of the user at the end, after {len(turns)} others; add it")
    return system, tuple(turns), answer


def _message(message: Any, number: int, picture: ReadPicture) -> Message:
    role, content = (message.get("role"), message.get("content")) if isinstance(message, Mapping) else (None, None)
    if role not in ("system", "user", "assistant") or not isinstance(content, str | list | tuple):
        raise UserError(
            f"messages: message {number} is {_short(message)}; it needs a role (system, user, assistant) and a content "
            "(a text, or a list of parts)"
        )
    parts = (content,) if isinstance(content, str) else tuple(_part(part, number, picture) for part in content)
    turn = Message(role, parts)
    if role != "user" and turn.images:
        raise UserError(
            f"messages: message {number} is by {role!r} and has a picture; only the user shows pictures; move it to a "
            "turn of the user"
        )
    return turn


def _part(part: Any, number: int, picture: ReadPicture) -> Any:
    if isinstance(part, Mapping):
        kind, text = part.get("type"), part.get("text")
        if kind == "text" and isinstance(text, str) and part.get("image", part.get("image_url")) is None:
            return text
        if kind in ("image", "image_url") and not text and (image := picture(part)) is not None:
            return image
    raise UserError(
        f"messages: message {number} has a part {_short(part)}; a part is "
        '{"type": "text", "text": …} or {"type": "image", "image": <PIL.Image.Image>}; load pictures first'
    )


def seen(image: Image.Image) -> Image.Image:
    """Return the picture as a model sees it.

    Raises:
        UserError: it cannot be decoded.
    """
    try:
        return as_seen(image)
    except Exception as error:  # decoders raise whatever bad bytes provoke
        raise UserError(
            f"Prompt: image cannot be decoded ({type(error).__name__}: {error}); a prompt takes a whole picture; "
            "replace its file"
        ) from error


def parts_of(turns: Sequence[Message]) -> dict[str, list[Place]]:
    """Return where the parts of a conversation are, by name: ``user:1``, ``assistant:1``, ``image:1``, ``image:2`` …

    All texts of a turn are one part.
    """
    numbers: Counter[str] = Counter()
    places: dict[str, list[Place]] = {}
    for index, turn in enumerate(turns):
        numbers[turn.role] += 1
        for position, part in enumerate(turn.parts):
            kind = turn.role if isinstance(part, str) else "image"
            numbers["image"] += kind == "image"
            places.setdefault(f"{kind}:{numbers[kind]}", []).append((index, position))
    return places


def with_parts(turns: Sequence[Message], changes: Mapping[Place, str | Image.Image | None]) -> tuple[Message, ...]:
    """Return the turns with other texts and pictures in these places; None removes a picture."""
    new = {place: part if isinstance(part, str | None) else seen(part) for place, part in changes.items()}
    changed = []
    for index, turn in enumerate(turns):
        parts = [new.get((index, position), part) for position, part in enumerate(turn.parts)]
        left = tuple(part for part in parts if part is not None)
        changed.append(replace(turn, parts=left or ("",) if parts else ()))
    return tuple(changed)


def _seen_in(part: Mapping[str, Any]) -> Image.Image | None:
    return seen(part["image"]) if isinstance(part.get("image"), Image.Image) else None


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
