"""What a method has learned, in a file: named tensors and the words that go with them, as safetensors.

Knows nothing of what the tensors mean. Imports torch only when a file is written or read.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from interp.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from interp.vlm import VLM

ABOUT = "forestlens"  # one key: safetensors does not keep the order of several, and the digest is over the bytes
DIGEST_LENGTH = 12


class Vectors(NamedTuple):
    """The tensors of a file by name, float32 on the CPU, and what was said about them."""

    tensors: "dict[str, Tensor]"
    about: dict[str, Any]


def write_vectors(out: Path, kind: str, tensors: "Mapping[str, Tensor]", about: Mapping[str, Any]) -> None:
    """Writes ``tensors`` as float32; equal content gives equal bytes. ``about`` is anything that JSON can say.

    ``kind`` names the method that reads the file.
    """
    from safetensors.torch import save_file

    plain = {name: tensor.detach().float().cpu().contiguous() for name, tensor in sorted(tensors.items())}
    save_file(plain, out, metadata={ABOUT: json.dumps({**about, "kind": kind}, sort_keys=True)})


def read_vectors(path: Path, kind: str) -> Vectors:
    """What ``write_vectors`` wrote; UserError for a file that is not there, cannot be read or is of another kind."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {}).get(ABOUT, "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a mapping
    except (OSError, SafetensorError, ValueError) as error:
        raise UserError(f"cannot read what was learned from {path} ({error}); delete it and learn again") from error
    about = about if isinstance(about, dict) else {}
    if about.get("kind") != kind:
        raise UserError(
            f"{path} holds what {about.get('kind') or 'something else'} learned, not {kind}; give {kind}'s own file"
        )
    return Vectors(tensors, about)


def digest_of(path: Path) -> str:
    """12 hex digits of the file's sha256; UserError where there is no such file."""
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()[:DIGEST_LENGTH]
    except OSError as error:
        raise UserError(f"nothing learned at {path} ({error.strerror}); learn it first") from error


def check_model(vlm: "VLM", learned: Vectors, width: int) -> None:
    """UserError unless ``vlm`` has the weights that ``learned`` names, and ``width`` channels."""
    own = int(vlm.model.get_input_embeddings().weight.shape[1])
    if own != width:
        raise UserError(
            f"{learned.about['kind']} was learned on a model of width {width}, and {vlm.name} has {own}; learn it on "
            "this model"
        )
    if learned.about.get("revision") != vlm.revision:
        raise UserError(
            f"{learned.about['kind']} was learned on {learned.about.get('model')} at revision "
            f"{learned.about.get('revision')}, and this is {vlm.name} at {vlm.revision}; learn it on this model"
        )
