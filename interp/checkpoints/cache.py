"""The cache of what is made on this machine: ``organism:smol``, and the language model that it is made of.

Of ``organism:smol`` the repository has vision tower and projector (``eyes.safetensors``) and a LoRA adapter in peft's
format (``adapter/``). ``task=fetch_smol`` fetches the language model, puts all three together and saves a plain
checkpoint in the cache, which is loaded like any other folder.
"""

import hashlib
import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from interp.errors import UserError

EYES, ROWS, ADAPTER, RECORD = "eyes.safetensors", "token_rows.safetensors", "adapter", "base.json"
PARTS = (EYES, ROWS, f"{ADAPTER}/adapter_config.json", f"{ADAPTER}/adapter_model.safetensors")
CACHE = "FORESTLENS_CACHE"  # the environment variable that moves the cache
SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"
GET = "type `make smol` in the clone (or `forestlens task=fetch_smol`)"
HASH = "sha256:"
SHOWN = 12  # hex digits of a hash in messages and in ``VLM.revision``


@dataclass(frozen=True)
class Record:
    """What a folder of the cache holds (``base.json``).

    ``sha256`` is the ``content_hash`` of a language model, the ``weights_hash`` of an organism. ``exact`` is False if
    the language model is from the hub or a user's folder. Then it differs in rounding from the language model that the
    adapter was trained on. ``parts`` is the ``parts_hash`` of an organism.
    """

    name: str
    sha256: str
    source: str
    exact: bool
    parts: str = ""


def cache_root() -> Path:
    """``$FORESTLENS_CACHE``, else ``~/.cache/forestlens``."""
    if given := os.environ.get(CACHE):
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "forestlens"


def base_folder() -> Path:
    """Where SmolLM2 is kept."""
    return cache_root() / SMOLLM2.rpartition("/")[2].lower()


def organism_folder(name: str = "smol") -> Path:
    """Where the whole organism is kept."""
    return cache_root() / f"organism-{name}"


def read_record(folder: Path) -> Record | None:
    """What is in ``folder``; None if nothing says so."""
    try:
        return Record(**json.loads((folder / RECORD).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def write_record(folder: Path, record: Record) -> None:
    """See ``read_record``."""
    (folder / RECORD).write_text(json.dumps(asdict(record), indent=2) + "\n", encoding="utf-8")


def content_hash(folder: Path) -> str:
    """``sha256:`` and 64 hex digits over names, shapes and values of a folder's safetensors, rounded to bfloat16.

    The same for one file or many, in float32 or bfloat16.

    Raises:
        UserError: no safetensors there, or a file that cannot be read.
    """
    import torch
    from safetensors.torch import load_file

    digest = hashlib.sha256()
    try:
        state = {name: value for file in folder.glob("*.safetensors") for name, value in load_file(file).items()}
    except Exception as error:  # safetensors raises its own type for each way to be broken
        raise UserError(
            f"cannot read the weights in {folder}; one may have been cut short; fetch them again"
        ) from error
    if not state:
        raise UserError(f"no safetensors at {folder}; its weights are needed; fetch them again")
    for name, tensor in sorted(state.items()):
        value = tensor.to(torch.bfloat16).contiguous()
        digest.update(f"{name} {tuple(value.shape)} ".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return f"{HASH}{digest.hexdigest()}"


def parts_hash(folder: Path) -> str:
    """Return ``sha256:`` and 12 hex digits over the ``PARTS`` in ``folder``."""
    digest = hashlib.sha256()
    for part in PARTS:
        if (folder / part).is_file():
            with (folder / part).open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
    return f"{HASH}{digest.hexdigest()[:SHOWN]}"


def is_in_parts(folder: Path) -> bool:
    """Whether ``folder`` has an organism's parts in place of a whole model's weights."""
    return (folder / EYES).is_file() and not any(folder.glob("model*.safetensors"))


def check_made(folder: Path, parts: Path, revision: str) -> None:
    """Check that the organism in ``folder`` of the cache is made of ``parts``, and unharmed.

    ``revision`` is the hash of its weights as they are. Prints a warning if its language model was taken from the hub
    or a folder on purpose.

    Raises:
        UserError: other parts, or a file that has changed since.
    """
    record = read_record(folder)
    if record is None or record.parts != parts_hash(parts):
        raise UserError(f"the model in {folder} was made of other parts than {parts} has now; to make it again {GET}")
    if record.sha256 != revision:
        raise UserError(
            f"the weights in {folder} are not those that were saved ({revision}, recorded {record.sha256}); a file has "
            f"changed; remove the folder and {GET}"
        )
    if not record.exact:
        print(
            f"warning: the language model in {folder} is from {record.source}, not the one that the adapter was "
            "trained on: its answers differ from those of the documented model",
            file=sys.stderr,
        )


def in_parts(folder: Path, *, bundled: bool) -> UserError:
    """Return what to do about a folder that has only parts."""
    if bundled:
        return UserError(
            f"organism:{folder.name} is not at {organism_folder(folder.name)}; bundled is what was trained on a "
            f"language model, which is fetched once: {GET}"
        )
    return UserError(
        f"the model at {folder} is kept in parts ({EYES}, {ADAPTER}), and only whole ones are loaded; train it again, "
        "or put it together with experiments.studies.organisms.architecture.merged"
    )


def fetched_base(why: str) -> Path:
    """The folder of SmolLM2, without reading weights. ``why`` it is needed is said where it is not there.

    Raises:
        UserError: it is not there; the message says what to type.
    """
    folder = base_folder()
    if not any(folder.glob("*.safetensors")):
        raise UserError(f"the language model {SMOLLM2} is not at {folder}; {why}; it is fetched once: {GET}")
    return folder
