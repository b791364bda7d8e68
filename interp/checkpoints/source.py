"""Finds a checkpoint: bundled, made on this machine, in a local folder or on the hub. Explains the hub's errors.

Of ``organism:smol`` the repository has vision tower and projector (``eyes.safetensors``) and a LoRA adapter in peft's
format (``adapter/``). ``task=fetch_smol`` fetches the language model, puts all three together and saves a plain
checkpoint in the cache, which is loaded like any other folder.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from interp.checkpoints.config import ORGANISM, ModelConfig
from interp.errors import UserError

ORGANISMS = Path(__file__).parent.parent / "organisms"
HUB_TIMEOUT = 10.0  # seconds, for the one request that looks the id up
BRIEF = 160  # characters quoted from another library's message
EYES, ROWS, ADAPTER, RECORD = "eyes.safetensors", "token_rows.safetensors", "adapter", "base.json"
PARTS = (EYES, ROWS, f"{ADAPTER}/adapter_config.json", f"{ADAPTER}/adapter_model.safetensors")
CACHE = "FORESTLENS_CACHE"  # the environment variable that moves the cache
SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"
GET = "type `make smol` in the clone (or `forestlens task=fetch_smol`)"
HASH = "sha256:"
SHOWN = 12  # hex digits of a hash in messages and in ``VLM.revision``


class Source(NamedTuple):
    """Where a checkpoint is read from: a folder or hub id, and whether to stay off the network."""

    path: str
    revision: str | None = None  # as given: a cached copy of "main" is not found by its commit
    local_only: bool = True
    commit: str | None = None
    files: tuple[str, ...] | None = None  # None if the hub was not asked
    numbers: dict[str, int] | None = None  # number of weights by safetensors type, if the hub knows

    def arguments(self) -> dict[str, Any]:
        """Return the arguments for every ``from_pretrained``."""
        return {"revision": self.revision or "main", "local_files_only": self.local_only, "trust_remote_code": False}


def find(config: ModelConfig) -> Source:
    """Resolve ``config.path``, with one request if it is a hub id.

    Raises:
        UserError: nothing is there, the hub denies access, or the hub cannot be reached and no copy is cached.
    """
    path = config.path
    if path.startswith(ORGANISM):
        return Source(str(_organism(path.removeprefix(ORGANISM))))
    folder = Path(path).expanduser()
    if folder.is_dir():
        return Source(str(folder))
    if folder.exists() or folder.is_absolute() or path.startswith((".", "~")) or path.count("/") != 1:
        raise UserError(
            f"no model folder at {path}; a model is {ORGANISM}<name>, an existing folder or a hub id owner/name; "
            f"correct model.path or take the bundled {ORGANISM}llava"
        )
    return _on_hub(path, config.revision)


def _organism(name: str) -> Path:
    """Return the bundled folder of an organism, or the cache's folder if it was made there of bundled parts."""
    folder = ORGANISMS / name
    if not name or not (folder / "config.json").is_file():
        bundled = sorted(path.parent.name for path in ORGANISMS.glob("*/config.json"))
        raise UserError(f"no bundled organism {name!r}; known: {', '.join(bundled)}; choose one, a folder or a hub id")
    made = organism_folder(name)
    return made if is_in_parts(folder) and (made / "config.json").is_file() else folder


def _on_hub(repository: str, revision: str | None) -> Source:
    """Ask the hub once. Without network, its client would otherwise retry each file for half a minute."""
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        info = HfApi().model_info(repository, revision=revision, timeout=HUB_TIMEOUT)
    except HFValidationError as error:
        raise UserError(f"{repository!r} is neither a folder nor a hub id owner/name; correct model.path") from error
    except RevisionNotFoundError as error:
        raise UserError(
            f"the hub has no revision {revision!r} of {repository}; it is a branch, tag or commit; fix model.revision"
        ) from error
    except GatedRepoError as error:
        raise UserError(gated(repository)) from error
    except RepositoryNotFoundError as error:
        raise UserError(
            f"the hub knows no model {repository!r} that you may read; check the spelling of model.path, or, if it is "
            "private, log in with `hf auth login` or set HF_TOKEN, or give a local folder"
        ) from error
    except Exception as error:  # many types: no network, a refused token, an overloaded server
        if isinstance(cached := try_to_load_from_cache(repository, "config.json", revision=revision), str):
            return Source(repository, revision, commit=Path(cached).parent.name)
        raise UserError(
            f"cannot fetch {repository} ({brief(error)}), and no copy is cached; try again later, log in with "
            "`hf auth login` or HF_TOKEN, give a local folder, or take the bundled organism with model=llava_organism"
        ) from error
    files = tuple(file.rfilename for file in info.siblings or ())
    numbers = dict(info.safetensors.parameters) if info.safetensors else None
    return Source(repository, revision, local_only=False, commit=info.sha, files=files, numbers=numbers)


def gated(repository: str) -> str:
    """Return the error message for a model that requires accepting its licence."""
    return (
        f"{repository} is gated; its owner must let you in; accept its licence on its hub page, then log in with "
        "`hf auth login` or set HF_TOKEN, or give a local folder as model.path"
    )


def brief(error: BaseException) -> str:
    """Return the error's message on one line, truncated."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text.rstrip(".") if len(text) <= BRIEF else text[:BRIEF].rsplit(" ", 1)[0] + " ..."


class Record(NamedTuple):
    """What a folder of the cache holds (``base.json``).

    ``sha256`` is the ``content_hash`` of a language model, the ``weights_hash`` of an organism. ``parts`` is the
    ``parts_hash`` of an organism.
    """

    name: str
    sha256: str
    source: str
    parts: str = ""


def cache_root() -> Path:
    """Return ``$FORESTLENS_CACHE``, else ``~/.cache/forestlens``."""
    if given := os.environ.get(CACHE):
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "forestlens"


def base_folder() -> Path:
    """Return the folder of SmolLM2."""
    return cache_root() / SMOLLM2.rpartition("/")[2].lower()


def organism_folder(name: str = "smol") -> Path:
    """Return the folder of a complete organism."""
    return cache_root() / f"organism-{name}"


def read_record(folder: Path) -> Record | None:
    """Return what is in ``folder``; None if nothing says so."""
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        return Record(*(record[name] for name in Record._fields))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def write_record(folder: Path, record: Record) -> None:
    """Write what ``read_record`` reads."""
    (folder / RECORD).write_text(json.dumps(record._asdict(), indent=2) + "\n", encoding="utf-8")


def content_hash(folder: Path) -> str:
    """Return ``sha256:`` and 64 hex digits over names, shapes and values of safetensors, rounded to bfloat16.

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
            digest.update(hashlib.sha256((folder / part).read_bytes()).digest())
    return f"{HASH}{digest.hexdigest()[:SHOWN]}"


def weights_hash(folder: Path) -> str:
    """Return ``sha256:`` and 12 hex digits of the safetensors file, or of several files' ``sha256sum`` listing."""
    digests = {}
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as stream:
            digests[path.name] = hashlib.file_digest(stream, "sha256").hexdigest()
    listing = "".join(f"{digest}  {name}\n" for name, digest in digests.items())
    digest = hashlib.sha256(listing.encode()).hexdigest() if len(digests) > 1 else "".join(digests.values())
    return f"{HASH}{digest[:SHOWN]}"


def is_in_parts(folder: Path) -> bool:
    """Return whether ``folder`` has an organism's parts instead of a complete model's weights."""
    return (folder / EYES).is_file() and not any(folder.glob("model*.safetensors"))


def check_made(folder: Path, parts: Path, revision: str) -> None:
    """Check that the organism in ``folder`` of the cache is made of ``parts``, and unharmed.

    ``revision`` is the hash of its weights as they are.

    Raises:
        UserError: other parts, or a file that has changed since.
    """
    record = read_record(folder)
    if record is None or record.parts != parts_hash(parts) or record.sha256 != revision:
        raise UserError(
            f"the model in {folder} ({revision}) was made of other parts than {parts} has now, or a file has changed; "
            f"remove the folder and {GET}"
        )
