"""The file format of directions and trained methods: named tensors with a JSON description, in safetensors.

Importing this module loads no torch; writing and reading do.
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

KEY = "forestlens"  # one metadata key: safetensors does not keep the order of several, and files are hashed
DIGEST_LENGTH = 12


class NamedTensors(NamedTuple):
    """The contents of a file: tensors by name (on the CPU, fractions as float32) and their description."""

    tensors: "dict[str, Tensor]"
    about: dict[str, Any]


def write_tensors(
    path: Path, kind: str, tensors: "Mapping[str, Tensor]", about: Mapping[str, Any], *, vlm: "VLM"
) -> None:
    """Writes ``tensors``, fractions as float32. Equal content gives equal bytes.

    Args:
        kind: the type of content, which ``read_tensors`` checks.
        about: a JSON-serialisable description. The name and revision of ``vlm`` are added.
    """
    from safetensors.torch import save_file

    given = {name: tensor.detach() for name, tensor in sorted(tensors.items())}
    plain = {
        name: (tensor.float() if tensor.is_floating_point() else tensor).cpu().contiguous()
        for name, tensor in given.items()
    }
    described = {**about, "kind": kind, "model": vlm.name, "revision": vlm.revision}
    described["preprocessing"] = vlm.preprocessing
    save_file(plain, path, metadata={KEY: json.dumps(described, sort_keys=True)})


def read_tensors(path: Path, kind: str) -> NamedTensors:
    """Reads what ``write_tensors`` wrote.

    Raises:
        UserError: the file does not exist, cannot be read, or holds another kind.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {}).get(KEY, "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a mapping
    except (OSError, SafetensorError, ValueError) as error:
        raise UserError(f"no {kind} can be read from {path} ({error}); delete the file and learn it again") from error
    about = about if isinstance(about, dict) else {}
    if about.get("kind") != kind:
        raise UserError(
            f"no {kind} can be read from {path}: it holds {about.get('kind') or 'something else'}; "
            f"give a file with {kind}"
        )
    return NamedTensors(tensors, about)


def digest_of(path: Path) -> str:
    """The first 12 hex digits of the file's sha256.

    Raises:
        UserError: there is no such file.
    """
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()[:DIGEST_LENGTH]
    except OSError as error:
        raise UserError(f"nothing learned at {path} ({error.strerror}); learn it first") from error


def check_model(vlm: "VLM", learned: NamedTensors, width: int | None = None) -> None:
    """Checks that ``learned``, of ``width`` channels where it has any, was written for the weights of ``vlm``.

    Raises:
        UserError: another width, other weights or another preprocessing.
    """
    kind, about = learned.about["kind"], learned.about
    own = int(vlm.model.config.get_text_config().hidden_size)
    if width not in (None, own):
        raise UserError(
            f"{kind} was learned on a model of width {width}, and {vlm.name} has {own}; learn it on this model"
        )
    if other := vlm.other_than(about):
        raise UserError(
            f"{kind} was learned on {about.get('model')}, which differs from {vlm.name} in {other}; learn it on this "
            "model"
        )
