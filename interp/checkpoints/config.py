"""Which checkpoint a run uses, where it is, and whether it fits into memory. Imports neither torch nor transformers.

A checkpoint is bundled, made on this machine, in a local folder or on the hub.

The memory check runs before weights are read. Sizes are in bytes. It rejects only what cannot work: weights and one
prompt larger than the free memory. The memory of a batch depends on what is done with it (``task=plan`` says how much).
If it runs out there, batches are halved.

Of ``organism:smol`` the repository has vision tower and projector (``eyes.safetensors``) and a LoRA adapter in peft's
format (``adapter/``). ``task=fetch_smol`` fetches the language model, puts all three together and saves a plain
checkpoint in the cache, which is loaded like any other folder.
"""

import hashlib
import json
import math
import os
import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from interp.errors import UserError
from interp.thoughts import check_marks

if TYPE_CHECKING:
    import torch


DTYPES = ("auto", "float32", "bfloat16", "float16")
DEVICE_MAPS = ("auto", "balanced", "balanced_low_0", "sequential")
ORGANISM = "organism:"
OWN_KEYWORDS = ("messages", "add_generation_prompt")  # of a chat template, which every request sets
POSITIVE = ("memory_gib", "min_pixels", "max_pixels", "answer_tokens")


@dataclass(frozen=True)
class ModelConfig:
    """A checkpoint and how to load it.

    ``path`` is ``organism:<name>`` (bundled in ``interp/organisms``), a local folder, or a hub id ``owner/name``.
    ``revision`` is the hub's branch, tag or commit. ``dtype="auto"`` is float32 on a CPU and bfloat16 on a GPU.
    ``device="auto"`` is the GPU if there is one. ``device_map`` spreads a model over all GPUs and, if they are too
    small, this machine's memory, as accelerate's map of that name does. ``chat_template`` (Jinja) replaces the
    processor's own; ``template`` are its keywords (``{"enable_thinking": False}``). ``thinking`` names the marks of a
    thought (``interp.thoughts``), if they are not known: ``{"open": "<reflect>", "close": "</reflect>"}``.
    ``answer_tokens`` is how long an answer may be, a thought included, where the run says nothing else
    (``max_new_tokens``).

    ``min_pixels`` and ``max_pixels`` limit the area of pictures (height × width) in families that keep a picture's
    native resolution; None keeps the checkpoint's.

    ``force`` loads it also where its weights and one prompt seem not to fit (``check_room``).

    For people to read: ``family`` (the name of its row in the contract table), ``licence`` (of the weights), ``gated``
    (whether the hub asks for a login) and ``memory_gib`` (of the weights in bfloat16). ``memory_gib`` is also used if
    the size of the weights is not known.

    Raises:
        UserError: an empty path; an unknown dtype, device or map; both a device and a map; a size or limit that is not
            above 0.
    """

    name: str
    path: str
    revision: str | None = None
    dtype: str = "auto"
    device: str = "auto"
    device_map: str | None = None
    attn_implementation: str = "sdpa"
    family: str = ""
    licence: str = ""
    gated: bool = False
    memory_gib: float | None = None
    min_pixels: int | None = None
    max_pixels: int | None = None
    chat_template: str | None = None
    template: dict[str, Any] | None = None
    thinking: dict[str, str] | None = None
    answer_tokens: int | None = None
    force: bool = False

    def __post_init__(self) -> None:
        if not self.path:
            raise UserError(
                f"model {self.name!r} has an empty path; it is {ORGANISM}<name>, a folder or a hub id; set model.path"
            )
        for name, choices in (("dtype", DTYPES), ("device_map", (None, *DEVICE_MAPS))):
            if (value := getattr(self, name)) not in choices:
                names = ", ".join(each for each in choices if each)
                raise UserError(f"unknown {name} {value!r}; known: {names}; set model.{name} to one of them")
        if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", self.device):
            raise UserError(
                f"unknown device {self.device!r}; known: auto, cpu, mps, cuda, cuda:<number>; set model.device"
            )
        for name in POSITIVE:
            if (value := getattr(self, name)) is not None and not value > 0:
                raise UserError(f"model.{name}={value} is not above 0; leave it out to keep the default")
        if self.device_map is not None and self.device != "auto":
            raise UserError(
                f"device {self.device} and device_map {self.device_map} are both given; both place the model; "
                "leave one out"
            )
        if self.template:
            check_keywords(self.template)
        if self.thinking is not None:
            check_marks(self.thinking)


def check_keywords(keywords: Mapping[str, Any]) -> None:
    """Check the keywords that a chat template is to be given: ``{"enable_thinking": False}``.

    Raises:
        UserError: a name that no template can read or that each request sets, or a value that is no JSON.
    """
    for name, value in keywords.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise UserError(f"model.template.{name}={value!r} cannot be written as JSON; give a JSON value") from error
        if name in OWN_KEYWORDS or not str(name).isidentifier():
            raise UserError(
                f"model.template.{name} is no keyword of a chat template, or each request sets it; leave it out"
            )


def is_other(recorded: str | None, here: str) -> bool:
    """Return whether two digests tell two models apart; one that is unknown or of another version does not."""
    return bool(recorded) and recorded != here and str(recorded).partition("@")[2] == here.partition("@")[2]


GIB = 2**30
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
FLOATS = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")  # safetensors types converted on loading
TOKENS = 1024  # of the prompt that ``row_bytes`` is for


def stored_numbers(folder: Path) -> Counter[str]:
    """Return the number of weights of each safetensors type in the folder's files, only from their headers.

    Skips files that it cannot read: reading the weights will report what is wrong with them.
    """
    from safetensors import SafetensorError, safe_open

    numbers: Counter[str] = Counter()
    for path in sorted(folder.glob("*.safetensors")):
        with suppress(OSError, SafetensorError), safe_open(path, framework="np") as file:
            for name in file.keys():  # noqa: SIM118  not a mapping
                part = file.get_slice(name)
                numbers[part.get_dtype()] += math.prod(part.get_shape())
    return numbers


def row_bytes(configuration: Any, dtype: str, tokens: int = TOKENS) -> int:
    """Return about what one prompt of ``tokens`` tokens takes, by the checkpoint's configuration.

    Its keys and values in every layer, the widest layer's states and products, and the logits of one token in float32.
    An estimate from below: a tool may need more.
    """
    text = configuration.get_text_config()
    width = int(text.hidden_size)
    states = 4 * width + 3 * int(getattr(text, "intermediate_size", 4 * width))
    return tokens * (token_cache_bytes(configuration, dtype) + states * BYTES[dtype]) + 4 * int(text.vocab_size)


def token_cache_bytes(configuration: Any, dtype: str) -> int:
    """Return what one token's keys and values take in all layers, by the checkpoint's configuration."""
    text = configuration.get_text_config()
    heads = int(text.num_attention_heads)
    groups = int(getattr(text, "num_key_value_heads", None) or heads)
    head = int(getattr(text, "head_dim", None) or int(text.hidden_size) // heads)
    return 2 * int(text.num_hidden_layers) * groups * head * BYTES[dtype]


def check_room(
    config: ModelConfig, numbers: dict[str, int] | None, dtype: str, device: "torch.device", row: int = 0
) -> None:
    """Check that the weights and ``row`` more bytes for one prompt fit in the free memory of ``device``.

    ``numbers`` counts the weights by type; integers are one byte each. If None (unknown), ``config.memory_gib`` is
    used. With ``config.force`` nothing is checked.

    Raises:
        UserError: they are larger than the free memory.
    """
    needed = int((config.memory_gib or 0) * GIB * BYTES[dtype] / BYTES["bfloat16"])
    if numbers:
        needed = sum(count * (BYTES[dtype] if kind in FLOATS else 1) for kind, count in numbers.items())
    free = free_memory(device)
    if config.force or not needed or free is None or needed + row <= free:
        return
    raise UserError(
        f"the weights of {config.name} need {needed / GIB:.1f} GiB in {dtype}, one prompt of {TOKENS:,} tokens about "
        f"{row / GIB:.1f} GiB more, and {device} has {free / GIB:.1f} GiB free; set model.dtype=bfloat16, choose a "
        "smaller model, or spread it over all cards and this machine's memory with model.device_map=auto (force=true "
        "goes on all the same)"
    )


def free_memory(device: "torch.device") -> int | None:
    """Return the free bytes of a GPU, or of this machine within its container's limit; None if they are not known."""
    if device.type == "cuda":
        import torch

        return int(torch.cuda.mem_get_info(device)[0])
    if device.type != "cpu":
        return None
    import psutil

    available = int(psutil.virtual_memory().available)
    return min([available, *_container()])


def _container(folder: Path = Path("/sys/fs/cgroup")) -> list[int]:
    """Return the bytes left within the container's limit (cgroup v2); nothing without a limit."""
    try:
        limit = int((folder / "memory.max").read_text())
        used = int((folder / "memory.current").read_text())
        pages = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no container, or "max"
        return []
    return [max(0, limit - used + int(pages.get("inactive_file", 0)))]  # such pages are reclaimable


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
