"""The file format of what was learned: named tensors with a JSON description, and hashes of the training rows.

A row of training has two hashes of its text (the question, and the words that it asks about) and one of its picture. A
conversation has hashes of all its texts, of the user's texts, and of its pictures side by side. A re-encoded or resized
copy has nearly the same. An evaluation recognises its cases by them. Nothing else of a row is saved: 64 bits of a
text's sha256, 64 bits of dHash, and the mean colours of the picture's four quarters. dHash says which of two neighbours
in a 9 x 8 grid of greys is brighter. A text that somebody guesses can be confirmed.

Source of dHash: Krawetz 2013, "Kind of Like That", hackerfactor.com. dHash without colours confuses some drawn icons.
Importing this module loads no torch; writing and reading tensors do.
"""

import base64
import hashlib
import json
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from interp.errors import UserError

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

    from interp.vlm import VLM, Prompt

KEY = "forestlens"  # one metadata key: safetensors does not keep the order of several, and files are hashed
ROWS = "training_rows"  # in the description of a file
FILE = "training_rows.json"  # next to an adapter
DIGEST_LENGTH = 12
NEAR_BITS = 8  # of 64, in which the dHashes of one picture differ at most
NEAR_COLOUR = 12  # of 255, by which a mean colour of one picture differs at most
TEXT, DHASH, COLOURS = 8, 8, 12  # bytes
ROW = 2 * TEXT + DHASH + COLOURS
TILE = 64  # pixels of a side of a picture next to others
NO_PICTURE = b"\xff" * (DHASH + COLOURS)


class NamedTensors(NamedTuple):
    """The contents of a file: tensors by name (on the CPU, fractions as float32) and their description."""

    tensors: "dict[str, Tensor]"
    about: dict[str, Any]


def write_tensors(
    path: Path,
    kind: str,
    tensors: "Mapping[str, Tensor]",
    about: Mapping[str, Any],
    *,
    vlm: "VLM",
    learned_from: "Sequence[Prompt] | None" = None,
) -> None:
    """Write ``tensors``, fractions as float32. Equal content gives equal bytes.

    Args:
        kind: the type of content, which ``read_tensors`` checks.
        about: a JSON-serialisable description. Name, revision and preprocessing of ``vlm`` are added.
        learned_from: the labelled cases that taught it; their hashes are saved (``TrainingRows``).
    """
    from safetensors.torch import save_file

    given = {name: tensor.detach() for name, tensor in sorted(tensors.items())}
    plain = {
        name: (tensor.float() if tensor.is_floating_point() else tensor).cpu().contiguous()
        for name, tensor in given.items()
    }
    described = {**about, "kind": kind, "model": vlm.name, "revision": vlm.revision}
    described["preprocessing"] = vlm.preprocessing
    if learned_from is not None:
        described[ROWS] = TrainingRows.from_prompts(learned_from).as_json()
    save_file(plain, path, metadata={KEY: json.dumps(described, sort_keys=True)})


def read_tensors(path: Path, kind: str) -> NamedTensors:
    """Read what ``write_tensors`` wrote.

    Raises:
        UserError: the file does not exist, cannot be read, or holds another kind.
    """
    from safetensors.torch import load_file

    about = description_of(path)
    if about.get("kind") != kind:
        raise UserError(
            f"no {kind} can be read from {path}: it holds {about.get('kind') or 'nothing that is known'}; give a file "
            f"with {kind}, or delete this one and learn it again"
        )
    return NamedTensors(load_file(path), about)


def description_of(path: Path) -> dict[str, Any]:
    """Return the description in a file of any kind; empty where there is none, or no such file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            description = json.loads((file.metadata() or {}).get(KEY, "{}"))
    except (OSError, SafetensorError, ValueError):
        return {}
    return description if isinstance(description, dict) else {}


def read_rows(path: Path) -> "TrainingRows | None":
    """Return the training rows of an adapter in a folder, or of what was learned in a file; None if not known."""
    if not path.is_dir():
        return TrainingRows.from_json(description_of(path).get(ROWS))
    try:
        return TrainingRows.from_json(json.loads((path / FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None


def digest_of(path: Path) -> str:
    """Return the first 12 hex digits of the file's sha256.

    Raises:
        UserError: there is no such file.
    """
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()[:DIGEST_LENGTH]
    except OSError as error:
        raise UserError(f"nothing learned at {path} ({error.strerror}); learn it first") from error


def check_model(vlm: "VLM", learned: NamedTensors) -> None:
    """Check that ``learned`` was written for the weights of ``vlm``.

    Raises:
        UserError: other weights or another preprocessing.
    """
    kind, about = learned.about["kind"], learned.about
    if other := vlm.other_than(about):
        raise UserError(
            f"{kind} was learned on {about.get('model')}, which differs from {vlm.name} in {other}; learn it on this "
            "model"
        )


def text_hash(text: str) -> bytes:
    """Return 8 bytes of the sha256 of the text's words, without case, punctuation, spaces and Unicode's variants."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return hashlib.sha256((" ".join(re.findall(r"\w+", folded)) or folded.strip()).encode()).digest()[:TEXT]


def picture_hash(image: "Image.Image | None") -> bytes:
    """Return 8 bytes of dHash and the mean RGB of the four quarters, as 20 bytes; all ones for no picture."""
    if image is None:
        return NO_PICTURE
    from PIL.Image import Resampling

    from interp.messages import as_seen

    seen = as_seen(image)
    grey = seen.convert("L").resize((9, 8), Resampling.LANCZOS).tobytes()
    bits = "".join(str(int(grey[i + 1] > grey[i])) for i in range(len(grey)) if i % 9 < 8)
    return int(bits, 2).to_bytes(DHASH) + seen.resize((2, 2), Resampling.BOX).tobytes()


def row_hash(question: str, about: str, image: "Image.Image | None") -> bytes:
    """Return 36 bytes: of the question, of the words that it asks about ("": the question), and of the picture."""
    return text_hash(question) + text_hash(about or question) + picture_hash(image)


def prompt_hash(prompt: "Prompt") -> bytes:
    """Return the ``row_hash`` of a prompt; of a conversation: of all texts, of the user's, and of all pictures."""
    texts = "\n".join(turn.text for turn in prompt.turns)
    questions = "\n".join(turn.text for turn in prompt.messages if turn.role == "user") or prompt.request
    return row_hash(texts, questions, _side_by_side(prompt.images))


def _side_by_side(images: "Sequence[Image.Image]") -> "Image.Image | None":
    from PIL import Image

    from interp.messages import as_seen

    if len(images) < 2:
        return next(iter(images), None)
    joined = Image.new("RGB", (TILE * len(images), TILE))
    for number, image in enumerate(images):
        joined.paste(as_seen(image).resize((TILE, TILE), Image.Resampling.LANCZOS), (TILE * number, 0))
    return joined


@dataclass(frozen=True)
class TrainingRows:
    """The different rows of one training, by their ``row_hash``."""

    rows: tuple[bytes, ...]

    @classmethod
    def from_hashes(cls, rows: Iterable[bytes]) -> "TrainingRows":
        """Return the different ones of ``rows``, each made by ``row_hash``."""
        return cls(tuple(dict.fromkeys(rows)))

    @classmethod
    def from_prompts(cls, prompts: "Sequence[Prompt]") -> "TrainingRows":
        """Return the rows of the prompts that a method learns from."""
        return cls.from_hashes(map(prompt_hash, prompts))

    @classmethod
    def from_json(cls, value: Any) -> "TrainingRows | None":
        """Return the rows that ``as_json`` gave; None if they cannot be read."""
        try:
            packed = base64.b64decode(value["rows"], validate=True)
        except (TypeError, KeyError, ValueError):
            return None
        return None if len(packed) % ROW else cls(tuple(packed[i : i + ROW] for i in range(0, len(packed), ROW)))

    def as_json(self) -> dict[str, Any]:
        """Return the rows in base64: 48 characters for each."""
        return {"rows": base64.b64encode(b"".join(self.rows)).decode()}

    def write(self, folder: Path) -> None:
        """Write an adapter's record to its ``folder``, which ``read_rows`` reads."""
        (folder / FILE).write_text(json.dumps(self.as_json()) + "\n", encoding="utf-8")

    def overlap(self, cases: Iterable[bytes]) -> list[bool]:
        """Return which cases, given by their ``row_hash``, are among the rows: the text and the picture of one row."""
        pictures = defaultdict[bytes, list[bytes]](list)
        for row in self.rows:
            for text in _texts(row):
                pictures[text].append(row[2 * TEXT :])
        same = []
        for case in cases:
            others = (picture for text in _texts(case) for picture in pictures[text])
            same.append(any(_near(picture, case[2 * TEXT :]) for picture in others))
        return same


def _texts(row: bytes) -> set[bytes]:
    return {row[:TEXT], row[TEXT : 2 * TEXT]}


def _near(first: bytes, other: bytes) -> bool:
    """Return whether two hashes are of one picture; no picture is near only to no picture."""
    if (int.from_bytes(first[:DHASH]) ^ int.from_bytes(other[:DHASH])).bit_count() > NEAR_BITS:
        return False
    return max(abs(a - b) for a, b in zip(first[DHASH:], other[DHASH:], strict=True)) <= NEAR_COLOUR
