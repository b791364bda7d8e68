"""A model in parts: a language model that is kept apart, and beside it what was trained on it.

The folder of such a model holds the configuration and the processor as any checkpoint does, but in place of the weights

- ``eyes.safetensors``: vision tower and projector in bfloat16, by the names of the whole model's parameters;
- ``adapter/``: a LoRA adapter of the language model in peft's format. Its configuration names the language model
  (``base_model_name_or_path``) and its weights (``revision``, see ``content_hash``).

The language model, the *base*, is a safetensors checkpoint in a cache outside the repository. ``compose`` puts the
three together, the adapter unmerged. All parts are read as bfloat16 and then converted, so that the weights are the
same everywhere, whatever type they are asked for in.
"""

import copy
import hashlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from interp.errors import UserError
from interp.layout import Layout, layout_for

if TYPE_CHECKING:
    import torch
    from torch import Tensor

EYES, ADAPTER, RECORD = "eyes.safetensors", "adapter", "base.json"
WHOLE = ("model.safetensors", "model.safetensors.index.json")
CACHE = "FORESTLENS_CACHE"  # the environment variable that moves the cache
SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"
GET = {SMOLLM2: "type `make smol` in the clone (or `forestlens task=fetch_smol`)"}
HASH = "sha256:"
SHOWN = 12  # hex digits of a hash in messages and in ``VLM.revision``


@dataclass(frozen=True)
class Base:
    """A language model's name (a hub id, or the absolute path of a folder) and the ``content_hash`` of its weights."""

    name: str
    sha256: str


@dataclass(frozen=True)
class Record:
    """What a cache folder says of the base in it (``base.json``). ``exact`` is False for weights from the hub or from a
    user's folder, which differ in rounding from those that the adapter was trained on."""

    name: str
    sha256: str
    source: str
    exact: bool


def cache_root() -> Path:
    """Where fetched language models are kept: ``$FORESTLENS_CACHE``, else ``~/.cache/forestlens``."""
    if own := os.environ.get(CACHE):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "forestlens"


def base_folder(name: str) -> Path:
    """Where the base ``name`` is looked for: the path itself if it is one, else a folder of the cache."""
    path = Path(name).expanduser()
    return path if path.is_absolute() else cache_root() / name.rpartition("/")[2].lower()


def is_composed(folder: Path) -> bool:
    """Whether ``folder`` holds a model in parts. One of the two parts is enough, so that a missing one is noticed."""
    if not (folder / "config.json").is_file() or any((folder / name).exists() for name in WHOLE):
        return False
    return (folder / EYES).is_file() or (folder / ADAPTER).is_dir()


def content_hash(folder: Path) -> str:
    """``sha256:`` and 64 hex digits over names, shapes and values of a folder's safetensors, rounded to bfloat16.

    The same for one file or many, in float32 or bfloat16.

    Raises:
        UserError: no safetensors there, or a file that cannot be read.
    """
    import torch

    digest = hashlib.sha256()
    for name, tensor in sorted(_read(folder, "base language model").items()):
        value = tensor.to(torch.bfloat16).contiguous()
        digest.update(f"{name} {tuple(value.shape)} ".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return f"{HASH}{digest.hexdigest()}"


def _read(place: Path, what: str) -> "dict[str, Tensor]":
    """The tensors of a safetensors file, or of all those in a folder."""
    from safetensors.torch import load_file

    files = sorted(place.glob("*.safetensors")) if place.is_dir() else [place]
    state: dict[str, Tensor] = {}
    for file in files:
        try:
            state |= load_file(file)
        except Exception as error:  # safetensors raises its own type for each way to be broken
            raise UserError(f"cannot read {file} ({what}); it may have been cut short; fetch it again") from error
    if not state:
        raise UserError(f"no safetensors at {place} ({what}); its weights are needed; fetch them again")
    return state


def wanted_base(folder: Path) -> Base:
    """The base that the model in ``folder`` was trained on.

    Raises:
        UserError: a part is missing, or the adapter's configuration does not name a base.
    """
    from interp.checkpoints.lora import CONFIG, WEIGHTS, read_adapter_config

    for part in (EYES, f"{ADAPTER}/{CONFIG}", f"{ADAPTER}/{WEIGHTS}"):
        if not (folder / part).is_file():
            raise UserError(
                f"the model at {folder} lacks {part}; it is kept in parts, and each is needed; fetch the folder again"
            )
    settings = read_adapter_config(folder / ADAPTER)
    name, revision = settings.get("base_model_name_or_path"), settings.get("revision")
    if not name or not str(revision).startswith(HASH):
        raise UserError(
            f"the adapter of {folder} does not say which language model it belongs to (base_model_name_or_path={name}, "
            f"revision={revision}); the revision is {HASH}<hex> of its weights; fetch the folder again"
        )
    return Base(str(name), str(revision))


def read_record(folder: Path) -> Record | None:
    """What was fetched into ``folder``; None if nothing says so."""
    try:
        return Record(**json.loads((folder / RECORD).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def write_record(folder: Path, record: Record) -> None:
    """See ``read_record``."""
    (folder / RECORD).write_text(json.dumps(asdict(record), indent=2) + "\n", encoding="utf-8")


def require_base(folder: Path) -> Path:
    """The folder of the base of the model in ``folder``, without reading weights.

    Raises:
        UserError: it is not there; the message says what to type. Or as ``wanted_base``.
    """
    return fetched(wanted_base(folder).name, f"the model at {folder} is made of parts, of which it is one")


def fetched(name: str, why: str) -> Path:
    """The folder of the base ``name``, without reading weights. ``why`` it is needed is said where it is not there.

    Raises:
        UserError: it is not there; the message says what to type.
    """
    place = base_folder(name)
    if not any(place.glob("*.safetensors")):
        way = GET.get(name, f"save that language model there with save_pretrained, or set {CACHE}")
        raise UserError(f"the language model {name} is not at {place}; {why}; it is fetched once: {way}")
    return place


def check_base(folder: Path) -> str:
    """Compares the base on this machine with the one that ``folder``'s model was trained on; its ``content_hash``.

    Prints a warning if it differs and its record says that it was taken from the hub or a folder on purpose.

    Raises:
        UserError: another base, or one that has changed since it was fetched. Or as ``require_base``.
    """
    wanted, place = wanted_base(folder), require_base(folder)
    found, record = content_hash(place), read_record(place)
    if record is not None and record.sha256 != found:
        raise UserError(
            f"the weights in {place} are not those that were fetched ({_short(found)}, recorded "
            f"{_short(record.sha256)}); a file has changed; remove the folder and "
            f"{GET.get(wanted.name, 'save them again')}"
        )
    if found == wanted.sha256:
        return found
    differs = f"the model at {folder} was trained on {wanted.name} {_short(wanted.sha256)}"
    if record is None or record.exact:
        raise UserError(
            f"{differs}, and the one in {place} is {_short(found)}; an adapter fits the weights it was trained on; "
            f"remove that folder and {GET.get(wanted.name, 'save the right one there')}"
        )
    print(
        f"warning: {differs}, and the one in {place} is {_short(found)} ({record.source}): its answers "
        "differ from those of the documented model",
        file=sys.stderr,
    )
    return found


def _short(revision: str) -> str:
    return revision[: len(HASH) + SHOWN]


def parts_hash(folder: Path, base: str) -> str:
    """``sha256:`` and 12 hex digits over eyes, adapter and the base's ``content_hash``: the model's revision."""
    from interp.checkpoints.lora import CONFIG, WEIGHTS

    digest = hashlib.sha256(base.encode())
    for part in (EYES, f"{ADAPTER}/{CONFIG}", f"{ADAPTER}/{WEIGHTS}"):
        with (folder / part).open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return f"{HASH}{digest.hexdigest()[:SHOWN]}"


def compose(folder: Path, *, dtype: "torch.dtype", attn_implementation: str = "sdpa") -> Any:
    """The whole model on the CPU in eval mode: base, eyes, and the adapter unmerged.

    Raises:
        UserError: a part that is missing, cannot be read or does not fit the others.
    """
    from transformers import AutoConfig, GenerationConfig

    from interp.checkpoints.lora import insert_saved

    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    model = assembled(
        config, require_base(folder), _read(folder / EYES, "vision tower and projector"), dtype, attn_implementation
    )
    insert_saved(model, folder / ADAPTER)
    model.generation_config = GenerationConfig.from_pretrained(folder, local_files_only=True)
    return model.eval()


def assembled(
    config: Any, base: Path, eyes: "dict[str, Tensor]", dtype: "torch.dtype", attn_implementation: str = "sdpa"
) -> Any:
    """The model of ``config`` without an adapter: the weights of ``base`` rounded to bfloat16, and ``eyes``.

    Raises:
        UserError: the weights do not fit ``config``.
    """
    import torch
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

    layout = layout_for(config)
    architecture: Any = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING[type(config)]
    state = {_placed(name, layout): tensor.to(torch.bfloat16) for name, tensor in _read(base, "base").items()}
    try:
        with no_progress_bar():
            model, info = architecture.from_pretrained(
                None,
                config=config,
                state_dict=state | eyes,
                dtype=dtype,
                attn_implementation=attn_implementation,
                output_loading_info=True,
            )
    except RuntimeError as error:
        raise UserError(
            f"the language model in {base} does not fit this model's configuration "
            f"({str(error).splitlines()[0][:120]}); it must be the one that it was trained on; fetch that one"
        ) from error
    wrong = sorted({*info["missing_keys"], *info["unexpected_keys"]})
    if wrong:
        raise UserError(
            f"the parts of the model do not fit together: {len(wrong)} parameters are missing or left over "
            f"({wrong[0]}, ...); its language model is in {base}; fetch the parts again"
        )
    return model


@contextmanager
def no_progress_bar() -> Iterator[None]:
    """While open, transformers draws no bar: of a small model it is over before it can be read."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _placed(name: str, layout: Layout) -> str:
    """A language model's parameter by its name in the whole model."""
    head, _, rest = name.partition(".")
    return f"{layout.language_model if head == 'model' else layout.lm_head}.{rest}"


def save_parts(model: Any, processor: Any, folder: Path, base: Base) -> None:
    """Writes the form that ``compose`` reads: all but the language model's own weights, in bfloat16.

    ``model`` carries an adapter (``interp.checkpoints.lora``); ``base`` names what it was trained on. ``model`` does
    not change.
    """
    import torch
    from safetensors.torch import save_file

    from interp.checkpoints.lora import save_adapter

    layout = layout_for(model)
    folder.mkdir(parents=True, exist_ok=True)
    config = copy.deepcopy(model.config)
    config.architectures, config.dtype = [type(model).__name__], torch.bfloat16
    for part in (config.text_config, config.vision_config):
        part.dtype = None
    config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    processor.save_pretrained(folder)
    _tidy(folder / "tokenizer.json")
    seen = (f"{layout.vision_tower}.", f"{layout.projector}.")
    eyes = {
        name: tensor.detach().to("cpu", torch.bfloat16).contiguous()
        for name, tensor in model.state_dict().items()
        if name.startswith(seen)
    }
    save_file(eyes, folder / EYES, metadata={"format": "pt"})
    save_adapter(model, layout, folder / ADAPTER, base=base.name, revision=base.sha256)


def _tidy(path: Path) -> None:
    """Writes a tokenizer without the padding of its last call, and without indentation, in half the bytes."""
    found = json.loads(path.read_text(encoding="utf-8")) | {"padding": None, "truncation": None}
    path.write_text(json.dumps(found, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
