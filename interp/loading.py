"""Finds a checkpoint and builds its ``VLM``; the one place weights are read.

What can fail fast is asked first: device, place, architecture, file format, processor, and only then the weights.
"""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from interp.errors import UserError
from interp.layout import LAYOUTS, layout_for
from interp.model_config import ORGANISM, ModelConfig
from interp.rendering import check_chat_template

if TYPE_CHECKING:
    import torch

    from interp.vlm import VLM

ORGANISMS = Path(__file__).parent / "organisms"
HUB_TIMEOUT = 10.0  # seconds for the one request that asks whether the hub knows the id
HASH_LENGTH = 12
BRIEF = 160  # characters of another library's message that are quoted


class Source(NamedTuple):
    """Where a checkpoint is read from: a folder or hub id, and whether the network is off limits."""

    path: str
    revision: str | None = None  # as asked for: by the commit alone, a copy in the cache is not found again as "main"
    local_only: bool = True
    commit: str | None = None
    files: tuple[str, ...] | None = None  # None where the hub was not asked

    def arguments(self) -> dict[str, Any]:
        """What every ``from_pretrained`` is given."""
        return {"revision": self.revision or "main", "local_files_only": self.local_only}


def load(
    source: str | Path | ModelConfig,
    *,
    dtype: str | None = None,
    device: str | None = None,
    revision: str | None = None,
    attn_implementation: str | None = None,
    trust_remote_code: bool | None = None,
    chat_template: str | None = None,
) -> "VLM":
    """The model at ``source`` (``organism:<name>``, a folder, a hub id, or a ``ModelConfig``), ready to answer.

    The other arguments, where given, replace ``ModelConfig``'s fields of the same name. Weights are read from
    safetensors only. ``VLM.revision`` is the hub commit, or for a folder the sha256 of its safetensors files.

    Raises:
        UserError: no such place, hub not reachable, an architecture without a layout, weights in another format or that
            do not fit the architecture, a processor that cannot be built, or a device that is not there.
    """
    given = {
        "dtype": dtype,
        "device": device,
        "revision": revision,
        "attn_implementation": attn_implementation,
        "trust_remote_code": trust_remote_code,
        "chat_template": chat_template,
    }
    config = source if isinstance(source, ModelConfig) else ModelConfig(Path(source).name, str(source))
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    config = replace(config, **changes)
    target = resolve_device(config.device)
    place = find(config)
    read_config(place, config)
    check_format(place)
    processor = read_processor(place, config)
    model = read_weights(place, config, target)
    from interp.vlm import VLM

    return VLM(model, processor, name=config.name, revision=place.commit or weights_hash(Path(place.path)))


def resolve_device(name: str) -> "torch.device":
    """The device that ``name`` means here; ``auto`` is CUDA where there is any."""
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(
            f"device {name} asked for, but torch {torch.__version__} sees {torch.cuda.device_count()} CUDA devices; "
            "set model.device=cpu or install a torch built for this machine's driver"
        )
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UserError("device mps asked for, but torch has no Metal here; set model.device=cpu")
    return device


def find(config: ModelConfig) -> Source:
    """Where ``config.path`` leads, at the cost of one request if it is a hub id."""
    path = config.path
    if path.startswith(ORGANISM):
        return Source(str(_organism(path.removeprefix(ORGANISM))))
    folder = Path(path).expanduser()
    if folder.is_dir():
        return Source(str(folder))
    if folder.exists() or folder.is_absolute() or path.startswith((".", "~")) or path.count("/") != 1:
        raise UserError(
            f"no model folder at {path}; a model is {ORGANISM}<name>, an existing folder or a hub id owner/name; "
            f"mend model.path or take the bundled {ORGANISM}llava"
        )
    return _on_hub(path, config.revision)


def _organism(name: str) -> Path:
    folder = ORGANISMS / name
    if not name or not (folder / "config.json").is_file():
        known = sorted(path.parent.name for path in ORGANISMS.glob("*/config.json"))
        raise UserError(
            f"no bundled organism {name!r}; known: {', '.join(known) or 'none'}; choose one, a folder or a hub id"
        )
    return folder


def _on_hub(repository: str, revision: str | None) -> Source:
    """Asks the hub once. Its client would otherwise retry each file for half a minute where there is no network."""
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        info = HfApi().model_info(repository, revision=revision, timeout=HUB_TIMEOUT)
    except HFValidationError as error:
        raise UserError(f"{repository!r} is neither a folder nor a hub id owner/name; mend model.path") from error
    except RevisionNotFoundError as error:
        raise UserError(
            f"the hub has no revision {revision!r} of {repository}; it is a branch, tag or commit; mend model.revision"
        ) from error
    except RepositoryNotFoundError as error:
        raise UserError(
            f"the hub knows no model {repository!r} that you may read; check the spelling, or log in with "
            "`hf auth login` if it is private"
        ) from error
    except Exception as error:  # whatever the HTTP client calls a dead network, a proxy's refusal or a full server
        if isinstance(cached := try_to_load_from_cache(repository, "config.json", revision=revision), str):
            return Source(repository, revision, commit=Path(cached).parent.name)
        raise UserError(
            f"cannot fetch {repository}: the hub is not reachable ({_brief(error)}) and no copy is cached; give a "
            f"local folder, or take the bundled organism with model=llava_organism"
        ) from error
    files = tuple(file.rfilename for file in info.siblings or ())
    return Source(repository, revision, local_only=False, commit=info.sha, files=files)


def read_config(place: Source, config: ModelConfig) -> Any:
    """The checkpoint's configuration, of a family that this project has a layout for; UserError for any other."""
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

    if place.local_only and Path(place.path).is_dir() and not (Path(place.path) / "config.json").is_file():
        raise UserError(f"no config.json in {place.path}; a model folder holds one; give a saved checkpoint's folder")
    found = _reading(place, "configuration", AutoConfig.from_pretrained, trust_remote_code=config.trust_remote_code)
    if type(found) not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING and found.model_type not in LAYOUTS:
        raise UserError(
            f"{place.path} is a '{found.model_type}' checkpoint, not an image-text-to-text model; prompts here have "
            f"images; choose one of the families {', '.join(LAYOUTS)}"
        )
    layout_for(found)
    return found


def check_format(place: Source) -> None:
    """Safetensors or nothing: other formats run code when they are opened."""
    folder = Path(place.path)
    if place.files is not None:
        files: list[str] = list(place.files)
    elif folder.is_dir():
        files = [path.name for path in folder.iterdir()]
    else:
        return  # in the hub's cache, where only from_pretrained knows what is complete
    if not any(name.endswith(".safetensors") for name in files):
        others = sorted(name for name in files if name.endswith((".bin", ".pt", ".pth", ".ckpt", ".gguf")))
        raise UserError(
            f"no safetensors weights at {place.path} (found: {', '.join(others) or 'no weights'}); only safetensors is "
            "read, since other formats run code; convert them with save_pretrained"
        )


def read_processor(place: Source, config: ModelConfig) -> Any:
    """The checkpoint's processor, with ``config.chat_template`` in place of its own if there is one."""
    from transformers import AutoProcessor

    processor = _reading(place, "processor", AutoProcessor.from_pretrained, trust_remote_code=config.trust_remote_code)
    if getattr(processor, "image_processor", None) is None or getattr(processor, "tokenizer", None) is None:
        raise UserError(
            f"the processor at {place.path} is a {type(processor).__name__} without tokenizer or image processor; both "
            "are needed; add the files that processor.save_pretrained writes"
        )
    if config.chat_template is not None:
        processor.chat_template = config.chat_template
    check_chat_template(processor, config.name)
    return processor


def read_weights(place: Source, config: ModelConfig, device: "torch.device") -> Any:
    """The model on ``device`` in eval mode, every parameter of it read from the checkpoint."""
    import torch
    from transformers import AutoModelForImageTextToText

    model, info = _reading(
        place,
        "weights",
        AutoModelForImageTextToText.from_pretrained,
        dtype=_dtype(config.dtype, device),
        attn_implementation=config.attn_implementation,
        trust_remote_code=config.trust_remote_code,
        use_safetensors=True,
        output_loading_info=True,
    )
    if missing := sorted(info["missing_keys"]):
        raise UserError(
            f"the weights at {place.path} lack {len(missing)} parameters ({missing[0]}, ...), which would stay random; "
            "get the whole checkpoint, or build the model yourself and pass VLM(model, processor)"
        )
    try:
        return model.to(device)
    except torch.OutOfMemoryError as error:
        needed = f" needs about {config.memory_gib} GiB in bfloat16" if config.memory_gib else " is too large"
        raise UserError(
            f"{config.name}{needed} for {device}; set model.device=cpu or choose a smaller model"
        ) from error


def _dtype(name: str, device: "torch.device") -> "torch.dtype":
    import torch

    if name != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[name]
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    return torch.float32


def _reading(place: Source, what: str, read: Any, **arguments: Any) -> Any:
    """``read`` at ``place``, its error as one sentence: transformers raises a dozen types for files it cannot use."""
    try:
        return read(place.path, **place.arguments(), **arguments)
    except Exception as error:
        raise UserError(_sentence(place, what, error, arguments.get("attn_implementation"))) from error


def _sentence(place: Source, what: str, error: Exception, attention: str | None) -> str:
    from huggingface_hub.errors import GatedRepoError

    causes: list[BaseException] = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None:
        causes.append(cause)
    text = str(error)
    if any(isinstance(cause, GatedRepoError) for cause in causes):
        return (
            f"{place.path} is gated; its owner must let you in; ask for access on its hub page and log in with "
            "`hf auth login`, or give a local folder"
        )
    if "torchvision" in text:
        return (
            f"the {what} of {place.path} needs torchvision; install the build that fits this torch, or choose a family "
            "that does without (llava, llava_next, instructblip)"
        )
    if "trust_remote_code" in text:
        return f"{place.path} brings its own code, which is run only if you say so; set model.trust_remote_code=true"
    if attention and ("attn_implementation" in text or "attention" in text.lower()):
        return f"attention {attention!r} cannot be used ({_brief(error)}); set model.attn_implementation=sdpa or eager"
    if not place.local_only:
        way_out = "try again"
    else:
        way_out = "mend its files" if Path(place.path).is_dir() else "fetch the whole of it once with network"
    return f"cannot read the {what} of {place.path} ({_brief(error)}); {way_out}, or choose another model"


def _brief(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text.rstrip(".") if len(text) <= BRIEF else text[:BRIEF].rsplit(" ", 1)[0] + " ..."


def weights_hash(folder: Path) -> str:
    """``sha256:`` and 12 hex digits: of the one safetensors file, or of the ``sha256sum`` listing of several."""
    files = sorted(folder.glob("*.safetensors"))
    digests = []
    for path in files:
        with path.open("rb") as stream:
            digests.append(hashlib.file_digest(stream, "sha256").hexdigest())
    if len(files) > 1:
        listing = "".join(f"{digest}  {path.name}\n" for digest, path in zip(digests, files, strict=True))
        digests = [hashlib.sha256(listing.encode()).hexdigest()]
    return f"sha256:{digests[0][:HASH_LENGTH]}"
