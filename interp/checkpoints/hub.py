"""Finds a checkpoint (bundled, local folder or hub) and explains the hub's errors. Reads no weights."""

from pathlib import Path
from typing import Any, NamedTuple

from interp.checkpoints.cache import is_in_parts, organism_folder
from interp.checkpoints.config import ORGANISM, ModelConfig
from interp.errors import UserError

ORGANISMS = Path(__file__).parent.parent / "organisms"
HUB_TIMEOUT = 10.0  # seconds, for the one request that looks the id up
BRIEF = 160  # characters quoted from another library's message
COMMIT_LENGTH = 40
REFUSED, TOO_MANY = (401, 403), 429  # HTTP status codes


class Source(NamedTuple):
    """Where a checkpoint is read from: a folder or hub id, and whether to stay off the network."""

    path: str
    revision: str | None = None  # as given: a cached copy of "main" is not found by its commit
    local_only: bool = True
    commit: str | None = None
    files: tuple[str, ...] | None = None  # None if the hub was not asked
    numbers: dict[str, int] | None = None  # number of weights by safetensors type, if the hub knows

    def arguments(self) -> dict[str, Any]:
        """Arguments for every ``from_pretrained``."""
        return {"revision": self.revision or "main", "local_files_only": self.local_only}


def find(config: ModelConfig) -> Source:
    """Resolves ``config.path``, with one request if it is a hub id.

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
    """Its bundled folder; of one in parts the whole one in the cache, where that was made."""
    folder = ORGANISMS / name
    if not name or not (folder / "config.json").is_file():
        bundled = sorted(path.parent.name for path in ORGANISMS.glob("*/config.json"))
        raise UserError(
            f"no bundled organism {name!r}; known: {', '.join(bundled) or 'none'}; choose one, a folder or a hub id"
        )
    made = organism_folder(name)
    return made if is_in_parts(folder) and (made / "config.json").is_file() else folder


def _on_hub(repository: str, revision: str | None) -> Source:
    """Asks the hub once. Without network, its client would otherwise retry each file for half a minute."""
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
    except Exception as error:  # many types: no network, a proxy's refusal, an overloaded server
        if isinstance(cached := try_to_load_from_cache(repository, "config.json", revision=revision), str):
            return Source(repository, revision, commit=Path(cached).parent.name)
        raise UserError(_not_answered(repository, error)) from error
    files = tuple(file.rfilename for file in info.siblings or ())
    numbers = dict(info.safetensors.parameters) if info.safetensors else None
    return Source(repository, revision, local_only=False, commit=info.sha, files=files, numbers=numbers)


def gated(repository: str) -> str:
    """The error message for a model that requires accepting its licence."""
    return (
        f"{repository} is gated; its owner must let you in; accept its licence on its hub page, then log in with "
        "`hf auth login` or set HF_TOKEN, or give a local folder as model.path"
    )


def _not_answered(repository: str, error: Exception) -> str:
    """The error message for a rejected token, a rate limit, or a hub that cannot be reached."""
    from huggingface_hub.errors import OfflineModeIsEnabled

    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in REFUSED:
        return (
            f"the hub refuses your token for {repository} ({status}); renew it with `hf auth login` or HF_TOKEN, unset "
            "it for a public model, or give a local folder"
        )
    if status == TOO_MANY:
        return f"the hub asks to wait before {repository} is fetched (429); try later, or log in with `hf auth login`"
    if isinstance(error, OfflineModeIsEnabled):
        return (
            f"cannot fetch {repository}: HF_HUB_OFFLINE is set and no copy is cached; unset it, or give a local folder"
        )
    return (
        f"cannot fetch {repository}: the hub is not reachable ({brief(error)}) and no copy is cached; give a "
        f"local folder, or take the bundled organism with model=llava_organism"
    )


def warning_of_remote_code(config: ModelConfig) -> str:
    """The warning that ``trust_remote_code`` prints for this model."""
    pinned = len(config.revision or "") == COMMIT_LENGTH
    pin = "" if pinned else "; pin model.revision to a commit whose code you have read"
    return (
        f"model.trust_remote_code=true: Python code from {config.path} runs with your rights on this machine and may "
        f"read or change whatever you may{pin}"
    )


def brief(error: BaseException) -> str:
    """The error's message on one line, truncated."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text.rstrip(".") if len(text) <= BRIEF else text[:BRIEF].rsplit(" ", 1)[0] + " ..."
