"""The file format of directions and trained methods: named tensors with a JSON description, in safetensors.

Importing this module loads no torch; writing and reading do.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from interp.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from interp.training_rows import TrainingRows
    from interp.vlm import VLM, Prompt

KEY = "forestlens"  # one metadata key: safetensors does not keep the order of several, and files are hashed
DIGEST_LENGTH = 12


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
    """Writes ``tensors``, fractions as float32. Equal content gives equal bytes.

    Args:
        kind: the type of content, which ``read_tensors`` checks.
        about: a JSON-serialisable description. Name, revision and preprocessing of ``vlm`` are added.
        learned_from: the labelled cases that taught it; their hashes are kept (``interp.training_rows``).
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
        from interp.training_rows import KEY as ROWS
        from interp.training_rows import TrainingRows

        described[ROWS] = TrainingRows.from_prompts(learned_from).as_json()
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


def description_of(path: Path) -> dict[str, Any]:
    """The description in a file of any kind; empty where there is none, or no such file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            description = json.loads((file.metadata() or {}).get(KEY, "{}"))
    except (OSError, SafetensorError, ValueError):
        return {}
    return description if isinstance(description, dict) else {}


def read_rows(path: Path) -> "TrainingRows | None":
    """The training rows of an adapter in the folder ``place``, or of what was learned in a file; None if not known."""
    from interp.training_rows import FILE, TrainingRows
    from interp.training_rows import KEY as ROWS

    if not path.is_dir():
        return TrainingRows.from_json(description_of(path).get(ROWS))
    try:
        return TrainingRows.from_json(json.loads((path / FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None


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
    hidden = int(vlm.model.config.get_text_config().hidden_size)
    if width not in (None, hidden):
        raise UserError(
            f"{kind} was learned on a model of width {width}, and {vlm.name} has {hidden}; learn it on this model"
        )
    if other := vlm.other_than(about):
        raise UserError(
            f"{kind} was learned on {about.get('model')}, which differs from {vlm.name} in {other}; learn it on this "
            "model"
        )
