"""Hashes of the cases that something was trained on, by which they are known again in an evaluation.

A row has two hashes of its text (the whole question, and the words that it asks about) and one of its picture. A
conversation has hashes of all its texts, of the user's texts, and of its pictures side by side. A re-encoded or resized
copy has nearly the same. A case is one of the rows where text and picture are. Nothing else of a row is saved: 64 bits
of a text's sha256, 64 bits of dHash, and the mean colours of the picture's four quarters. dHash says which of two
neighbours in a 9 x 8 grid of greys is brighter. A text that somebody guesses can be confirmed.

Source of dHash: Krawetz 2013, "Kind of Like That", hackerfactor.com. dHash without colours confuses some drawn icons.
"""

import base64
import hashlib
import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from interp.pictures import as_seen

if TYPE_CHECKING:
    from interp.prompt import Prompt

FILE = "training_rows.json"  # beside an adapter
KEY = "training_rows"  # in the description of an ``interp.tensor_file``
MOST = 50_000  # rows of a record, each of 36 bytes
NEAR_BITS = 8  # of 64, in which the dHashes of one picture differ at most
NEAR_COLOUR = 12  # of 255, by which a mean colour of one picture differs at most
TEXT, DHASH, COLOURS = 8, 8, 12  # bytes
ROW = 2 * TEXT + DHASH + COLOURS
TILE = 64  # pixels of a side of a picture next to others
NO_PICTURE = b"\xff" * (DHASH + COLOURS)
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def text_hash(text: str) -> bytes:
    """8 bytes of the sha256 of the text's words: case, punctuation, spaces and Unicode's variants do not count."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return hashlib.sha256((" ".join(re.findall(r"\w+", folded)) or folded.strip()).encode()).digest()[:TEXT]


def picture_hash(image: Image.Image | None) -> bytes:
    """8 bytes of dHash and the mean RGB of the four quarters, as 20 bytes; all ones for no picture."""
    if image is None:
        return NO_PICTURE
    seen = as_seen(image)
    grey = np.asarray(seen.convert("L").resize((9, 8), Image.Resampling.LANCZOS), dtype=int)
    colours = np.asarray(seen.resize((2, 2), Image.Resampling.BOX), dtype=np.uint8)
    return bytes(np.packbits(grey[:, 1:] > grey[:, :-1])) + colours.tobytes()


def row_hash(question: str, about: str, image: Image.Image | None) -> bytes:
    """36 bytes: of the question, of the words that it asks about ("": the question), and of the picture."""
    return text_hash(question) + text_hash(about or question) + picture_hash(image)


def prompt_hash(prompt: "Prompt") -> bytes:
    """Return the ``row_hash`` of a prompt; of a conversation: of all texts, of the user's, and of all pictures."""
    if not prompt.messages:
        return row_hash(prompt.text, prompt.request, prompt.image)
    texts, questions = (
        "\n".join(turn.text for turn in prompt.turns if turn.role in roles)
        for roles in (("user", "assistant"), ("user",))
    )
    return row_hash(texts, questions, _side_by_side(prompt.images))


def _side_by_side(images: Sequence[Image.Image]) -> Image.Image | None:
    if len(images) < 2:
        return next(iter(images), None)
    joined = Image.new("RGB", (TILE * len(images), TILE))
    for number, image in enumerate(images):
        joined.paste(as_seen(image).resize((TILE, TILE), Image.Resampling.LANCZOS), (TILE * number, 0))
    return joined


@dataclass(frozen=True)
class TrainingRows:
    """The rows of one training: ``rows`` (row × 36 bytes), the first ``MOST`` different ones of its ``examples``."""

    rows: Bytes
    examples: int
    complete: bool = True  # whether all rows are there

    @classmethod
    def from_rows(cls, rows: Iterable[tuple[str, str, Image.Image | None]]) -> "TrainingRows":
        """Of questions, the words that each asks about ("": as many as the question), and pictures."""
        return cls.from_hashes(row_hash(*row) for row in rows)

    @classmethod
    def from_hashes(cls, rows: Iterable[bytes]) -> "TrainingRows":
        """Of what ``row_hash`` gave."""
        distinct: dict[bytes, None] = {}
        count, complete = 0, True
        for row in rows:
            count += 1
            if complete and (row in distinct or len(distinct) < MOST):
                distinct[row] = None
            else:
                complete = False
        return cls(_table(distinct), count, complete)

    @classmethod
    def from_prompts(cls, prompts: "Sequence[Prompt]") -> "TrainingRows":
        """Of the prompts that a method learns from."""
        return cls.from_hashes(map(prompt_hash, prompts))

    @classmethod
    def from_json(cls, value: Any) -> "TrainingRows | None":
        """What ``as_json`` gave; None where it cannot be read."""
        try:
            rows = np.frombuffer(base64.b64decode(value["rows"], validate=True), dtype=np.uint8)
            return cls(rows.reshape(-1, ROW), int(value["examples"]), bool(value["whole"]))
        except (TypeError, KeyError, ValueError):
            return None

    def as_json(self) -> dict[str, Any]:
        """The number of examples, and the rows in base64: 48 characters for each."""
        return {
            "examples": self.examples,
            "whole": self.complete,
            "rows": base64.b64encode(self.rows.tobytes()).decode(),
        }

    def write(self, folder: Path) -> None:
        """Writes an adapter's record to its ``folder``, which ``interp.tensor_file.read_rows`` reads."""
        (folder / FILE).write_text(json.dumps(self.as_json()) + "\n", encoding="utf-8")

    def overlap(self, cases: Iterable[bytes]) -> list[bool]:
        """Return which cases, given by their ``row_hash``, are among the rows: the text and the picture of one row."""
        same = []
        texts, pictures = self.rows[:, : 2 * TEXT].reshape(-1, 2, TEXT), self.rows[:, 2 * TEXT :]
        for case in _table(cases):
            words, picture = case[: 2 * TEXT].reshape(2, TEXT), case[2 * TEXT :]
            near, same_text = _near(pictures, picture), (texts[:, :, None] == words).all(-1).any((1, 2))
            same.append(bool((near & same_text).any()))
        return same


def _table(rows: Iterable[bytes]) -> Bytes:
    return np.frombuffer(b"".join(rows), dtype=np.uint8).reshape(-1, ROW)


def _near(pictures: Bytes, picture: Bytes) -> "np.ndarray[Any, np.dtype[np.bool_]]":
    """Return for each row whether its picture is ``picture``; no picture is near only to no picture."""
    bits = np.bitwise_count(pictures[:, :DHASH] ^ picture[:DHASH]).sum(1)
    distance = np.abs(pictures[:, DHASH:].astype(int) - picture[DHASH:].astype(int)).max(1, initial=0)
    return (bits <= NEAR_BITS) & (distance <= NEAR_COLOUR)
