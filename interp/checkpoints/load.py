"""Reads a checkpoint: configuration, processor and weights. ``interp.loading.load`` wraps it in a ``VLM``."""

import hashlib
import json
import re
import shlex
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from PIL import Image

from interp.checkpoints.cache import ADAPTER, ROWS, check_made, in_parts, is_in_parts, organism_folder, parts_hash
from interp.checkpoints.config import ORGANISM, ModelConfig
from interp.checkpoints.hub import ORGANISMS, Source, brief, find, gated, warning_of_remote_code
from interp.checkpoints.memory import (
    check_room,
    device_map,
    estimate,
    offloaded,
    row_bytes,
    stored_numbers,
)
from interp.errors import UserError
from interp.prompt import check_chat_template, with_keywords

if TYPE_CHECKING:
    import torch

HASH_LENGTH = 12
BASE = ORGANISMS / "llava"  # of an organism that is an adapter
NEEDED_SETTINGS = ("patch_size", "vision_feature_select_strategy")  # of processors that have them
TILES = ("max_patches", "max_image_tiles")  # what image processors call the number of tiles


def read_checkpoint(config: ModelConfig) -> tuple[Any, Any, str]:
    """Model, processor and revision of the checkpoint that ``config`` names, from safetensors only.

    The revision is the hub commit, or a hash of a folder's weights. What can fail quickly is checked first: device,
    location, architecture, file format, memory, processor.

    Raises:
        UserError: a location, hub or device that is not there; an unsupported architecture, or weights that do not fit
            it or are in another format; a processor that cannot be built.
    """
    if config.trust_remote_code:
        print(f"warning: {warning_of_remote_code(config)}", file=sys.stderr)
    target = resolve_device(config.device, config.name)
    source = find(config)
    configuration = read_config(source, config)
    check_format(source)
    revision = _made_here(source, config)
    dtype = dtype_on(config.dtype, target)
    kind, numbers = str(dtype).removeprefix("torch."), source.numbers or _stored(source)
    row = row_bytes(configuration, kind)
    if note := estimate(config, numbers, kind, None if config.device_map else target, row):
        print(note, file=sys.stderr)
    places = device_map(config, configuration, dtype)
    if places is not None and (warning := offloaded(places)):
        print(f"warning: {warning}", file=sys.stderr)
    elif places is None:
        check_room(config, numbers, kind, target, row)
    processor = read_processor(source, config)
    model = read_weights(source, config, target, dtype, places)
    return model, processor, revision or source.commit or weights_hash(Path(source.path))


def _made_here(source: Source, config: ModelConfig) -> str | None:
    """The hash of the weights of an organism that is kept in parts; of one in the cache it is checked.

    None for any other model.

    Raises:
        UserError: it is not what was made.
    """
    folder, name = Path(source.path), config.path.removeprefix(ORGANISM)
    if is_adapted(folder):
        digest = hashlib.sha256(f"{weights_hash(BASE)} {parts_hash(folder)}".encode())
        return f"sha256:{digest.hexdigest()[:HASH_LENGTH]}"
    if not config.path.startswith(ORGANISM) or folder != organism_folder(name):
        return None
    digest_of_weights = weights_hash(folder)
    check_made(folder, ORGANISMS / name, digest_of_weights)
    return digest_of_weights


def resolve_device(name: str, model: str = "the model") -> "torch.device":
    """The torch device for ``name``; ``auto`` is CUDA if available, else the CPU. ``model`` is for the error message.

    Raises:
        UserError: the device is not available.
    """
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(
            f"device {name} asked for, but torch {torch.__version__} sees {torch.cuda.device_count()} CUDA devices; "
            f"for {model} set model.device=cpu, choose a smaller model, or install a torch built for this machine's "
            "driver"
        )
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UserError(f"device mps asked for, but torch has no Metal here; for {model} set model.device=cpu")
    return device


def _stored(source: Source) -> dict[str, int] | None:
    folder = Path(source.path)
    return stored_numbers(BASE if is_adapted(folder) else folder) if folder.is_dir() else None


def read_config(source: Source, config: ModelConfig) -> Any:
    """The checkpoint's configuration.

    Raises:
        UserError: no configuration, or a model that takes no pictures.
    """
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

    from interp.module_map import refuse_encoder_decoder

    if source.local_only and Path(source.path).is_dir() and not (Path(source.path) / "config.json").is_file():
        raise UserError(f"no config.json in {source.path}; a model folder holds one; give a saved checkpoint's folder")
    configuration = _reading(
        source, "configuration", AutoConfig.from_pretrained, trust_remote_code=config.trust_remote_code
    )
    remote = "AutoModelForImageTextToText" in (getattr(configuration, "auto_map", None) or {})
    if type(configuration) not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING and not remote:
        raise UserError(
            f"{source.path} is a '{configuration.model_type}' checkpoint, not an image-text-to-text model; prompts "
            "here have images; choose a model of transformers that takes them (docs/guide-models.md lists tested ones)"
        )
    refuse_encoder_decoder(configuration)
    return configuration


def check_format(source: Source) -> None:
    """Checks that the weights are safetensors (other formats run code when opened) and that no file is missing.

    Raises:
        UserError: another format, no weights, or a missing file.
    """
    folder = Path(source.path)
    if is_in_parts(folder):
        raise in_parts(folder, bundled=folder.parent == ORGANISMS)
    if source.files is not None:
        files: list[str] = list(source.files)
    elif folder.is_dir():
        files = [path.name for path in folder.iterdir()]
    else:
        return  # the hub's cache: from_pretrained checks for completeness
    if not any(name.endswith(".safetensors") for name in files):
        others = sorted(name for name in files if name.endswith((".bin", ".pt", ".pth", ".ckpt", ".gguf")))
        raise UserError(
            f"no safetensors weights at {source.path} (found: {', '.join(others) or 'no weights'}); only safetensors "
            "is read, since other formats run code; convert them with save_pretrained"
        )
    if "adapter_config.json" in files and any(re.match(r"model.*\.safetensors$", name) for name in files):
        raise UserError(
            f"{source.path} holds whole weights (model.safetensors) and an adapter (adapter_config.json); transformers "
            "would add the adapter to them, which may have it already; move one of the two to a folder of its own, and "
            "give an adapter with method=vrtuning method.adapter=<folder>"
        )
    if missing := sorted(_listed(folder) - set(files)):
        raise UserError(
            f"{source.path} lacks {len(missing)} of its weight files ({missing[0]}, ...); a download may have been cut "
            "short; download the others"
        )


def _listed(folder: Path) -> set[str]:
    """The files of a sharded checkpoint; empty for a single file or a checkpoint on the hub."""
    index = folder / "model.safetensors.index.json"
    if (folder / "model.safetensors").is_file() or not index.is_file():
        return set()
    try:
        return set(json.loads(index.read_text())["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"cannot read {index}; it names the files of the weights; download it again") from error


def read_processor(source: Source, config: ModelConfig) -> Any:
    """The checkpoint's processor, with ``config.chat_template``, its keywords and the limits on picture size applied.

    Raises:
        UserError: no image processor, tokenizer or chat template, a keyword that it lacks, or as ``set_bounds``.
    """
    from transformers import AutoConfig, AutoProcessor
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING

    remote = config.trust_remote_code
    refusal = None
    try:
        processor = _reading(source, "processor", AutoProcessor.from_pretrained, trust_remote_code=remote)
    except UserError as error:
        processor, refusal = None, error
    if getattr(processor, "image_processor", None) is None:
        # InstructBLIP's processor config names the video processor: take the one of the model's own family.
        kind = type(_reading(source, "configuration", AutoConfig.from_pretrained, trust_remote_code=remote))
        family_processor: Any = PROCESSOR_MAPPING.get(kind, None)
        if family_processor is not None:
            processor = _reading(source, "processor", family_processor.from_pretrained)
        elif refusal is not None:
            raise refusal
    if getattr(processor, "image_processor", None) is None or getattr(processor, "tokenizer", None) is None:
        raise UserError(
            f"the processor at {source.path} is a {type(processor).__name__} without tokenizer or image processor; "
            "both are needed; add the files that processor.save_pretrained writes"
        )
    if unset := [name for name in NEEDED_SETTINGS if getattr(processor, name, "") is None]:
        raise UserError(
            f"the processor at {source.path} has no {' and no '.join(unset)}, as in older folders; add it to "
            "processor_config.json, or take the processor files of a newer copy of the checkpoint"
        )
    saved = Path(source.path) / "chat_template.jinja"  # some processors write it, and do not read it (IDEFICS)
    if config.chat_template is not None:
        processor.chat_template = config.chat_template
    elif not getattr(processor, "chat_template", None) and saved.is_file():
        processor.chat_template = saved.read_text(encoding="utf-8")
    set_bounds(processor.image_processor, config)
    family = str(getattr(read_config(source, config), "model_type", ""))
    check_chat_template(processor, config.name, model_type=family, path=config.path)
    if config.template:
        processor.chat_template = with_keywords(processor.chat_template, config.template, name=config.name)
    return processor


def set_bounds(image_processor: Any, config: ModelConfig) -> None:
    """Sets the limits on picture size from ``config`` in ``image_processor``, in place.

    The image processor decides which limits apply. It may be the area (Qwen), the side before tiling (Idefics3,
    SmolVLM), or the number of tiles (InternVL, Llama 3.2 Vision). If pictures are scaled to one size, none applies.

    Raises:
        UserError: a limit that does not apply to this family, or that its model does not support.
    """
    bounds = _known_bounds(image_processor)
    for name, value in config.pixel_bounds:
        if name not in bounds:
            raise UserError(
                f"model.{name}={value} means nothing to {config.name}, whose {type(image_processor).__name__} takes "
                f"{', '.join(bounds) or 'pictures of one size alone'}; leave it out"
            )
        before = None if name != "longest_edge" else _shapes(image_processor, 2 * value)
        same = dict(image_processor.size or {}).get(name) == value
        _set_bound(image_processor, config.name, name, value)
        if before is not None and not same and _shapes(image_processor, 2 * value) == before:
            raise UserError(
                f"model.{name}={value} means nothing to {config.name}, whose {type(image_processor).__name__} does not "
                "read it; leave it out"
            )
    size = dict(image_processor.size or {})
    if config.pixel_bounds and "min_pixels" in bounds and size["shortest_edge"] > size["longest_edge"]:
        raise UserError(
            f"the pictures of {config.name} would have at least {size['shortest_edge']} and at most "
            f"{size['longest_edge']} pixels; set model.min_pixels and model.max_pixels"
        )


def _known_bounds(image_processor: Any) -> tuple[str, ...]:
    arguments = getattr(getattr(image_processor, "valid_kwargs", None), "__annotations__", {})
    bounds = [name for name in ("min_pixels", "max_pixels") if name in arguments]
    if "max_image_size" in arguments and "longest_edge" in dict(image_processor.size or {}):
        bounds.append("longest_edge")
    if any(name in arguments for name in TILES):
        bounds.append("max_tiles")
    return tuple(bounds)


def _shapes(image_processor: Any, side: int) -> list[tuple[int, ...]]:
    """Return the shapes of what the processor makes of a square picture."""
    made = image_processor(Image.new("RGB", (side, side)), return_tensors="np")
    return [np.shape(value) for value in made.values()]


def _set_bound(image_processor: Any, model: str, name: str, value: int) -> None:
    if name == "max_tiles":
        setting = next(tiles for tiles in TILES if hasattr(image_processor, tiles))
        most = getattr(image_processor, setting)
        if (
            setting == "max_image_tiles" and value != most
        ):  # it has an embedding for each arrangement of that many tiles
            raise UserError(
                f"model.max_tiles={value} is not the {most} that {model} was trained with, and its tiles have "
                "embeddings by their number; leave it out"
            )
        setattr(image_processor, setting, value)
        return
    # Qwen's processors store areas under the names of sides.
    side = "shortest_edge" if name == "min_pixels" else "longest_edge"
    given = {key: number for key, number in dict(image_processor.size).items() if number is not None}
    image_processor.size = type(image_processor.size)(**given | {side: value})


def read_weights(
    source: Source, config: ModelConfig, device: "torch.device", dtype: "torch.dtype", places: dict[str, Any] | None
) -> Any:
    """The model in eval mode on ``device``, or spread over ``places`` (module → device).

    Raises:
        UserError: the weights cannot be read, do not fit in memory, or lack parameters.
    """
    from transformers import AutoModelForImageTextToText
    from transformers.integrations import is_deepspeed_zero3_enabled

    if is_adapted(Path(source.path)):
        return _moved(_adapted(source, config, dtype), config, device)
    if places is None and device.type == "cuda" and not is_deepspeed_zero3_enabled():
        places = {"": device}  # load directly to the GPU, not through main memory
    with no_progress_bar() if config.path.startswith(ORGANISM) else nullcontext():
        model, info = _reading(
            source,
            "weights",
            AutoModelForImageTextToText.from_pretrained,
            dtype=dtype,
            device_map=places,
            attn_implementation=config.attn_implementation,
            trust_remote_code=config.trust_remote_code,
            use_safetensors=True,
            output_loading_info=True,
            model=config,
        )
    if missing := sorted(info["missing_keys"]):
        raise UserError(
            f"the weights at {source.path} lack {len(missing)} parameters ({missing[0]}, ...), which would stay "
            "random; get the whole checkpoint, or build the model yourself and pass VLM(model, processor)"
        )
    return model if places is not None else _moved(model, config, device)


def is_adapted(folder: Path) -> bool:
    """Whether ``folder`` has new tokens' rows and an adapter for the first organism, in place of weights."""
    return (folder / ROWS).is_file() and folder.parent == ORGANISMS


def _adapted(source: Source, config: ModelConfig, dtype: "torch.dtype") -> Any:
    """The first organism with the rows and the adapter in a bundled folder, merged in float32."""
    import torch
    from peft import PeftModel
    from safetensors.torch import load_file
    from transformers import AutoModelForImageTextToText

    with no_progress_bar():
        model = AutoModelForImageTextToText.from_pretrained(
            BASE, dtype=torch.float32, attn_implementation=config.attn_implementation, use_safetensors=True
        )
    rows = load_file(Path(source.path) / ROWS)
    count = len(rows["input"])
    vocabulary = cast("torch.Tensor", model.get_input_embeddings().weight).shape[0]
    model.resize_token_embeddings(vocabulary + count, mean_resizing=False)
    with torch.no_grad():
        for layer, new in ((model.get_input_embeddings(), "input"), (model.get_output_embeddings(), "output")):
            cast("torch.Tensor", layer.weight)[-count:] = rows[new]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*gradient_checkpointing.* is deprecated", FutureWarning)  # by peft
        merged = PeftModel.from_pretrained(model, Path(source.path) / ADAPTER).merge_and_unload()
    return merged.to(dtype).eval()


@contextmanager
def no_progress_bar() -> Iterator[None]:
    """While open, transformers draws no bar: of a small model it is over before it can be read."""
    from transformers.utils import logging

    enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            logging.enable_progress_bar()


def _moved(model: Any, config: ModelConfig, device: "torch.device") -> Any:
    """A model that was read into main memory, on ``device``."""
    import torch

    try:
        return model.to(device)
    except torch.OutOfMemoryError as error:
        raise UserError(_too_large(config, device)) from error


def _too_large(config: ModelConfig, device: object) -> str:
    needed = f" needs about {config.memory_gib} GiB in bfloat16" if config.memory_gib else " is too large"
    return (
        f"{config.name}{needed} for {device}; choose a smaller model, spread it with model.device_map=auto, or set "
        "model.device=cpu"
    )


def dtype_on(name: str, device: "torch.device") -> "torch.dtype":
    """The torch dtype for ``name``; ``auto`` depends on ``device``."""
    import torch

    if name != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[name]
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    return torch.float32


def _reading(source: Source, what: str, read: Any, model: ModelConfig | None = None, **arguments: Any) -> Any:
    """Calls ``read`` and turns any error into a ``UserError``: transformers raises a dozen types for unusable files."""
    import torch

    try:
        return read(source.path, **source.arguments(), **arguments)
    except torch.OutOfMemoryError as error:
        assert model is not None
        raise UserError(_too_large(model, "the GPU")) from error
    except UserError:
        raise
    except Exception as error:
        raise UserError(_sentence(source, what, error, arguments.get("attn_implementation"))) from error


def _sentence(source: Source, what: str, error: Exception, attention: str | None) -> str:
    from huggingface_hub.errors import GatedRepoError

    causes: list[BaseException] = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None:
        causes.append(cause)
    text = str(error)
    if any(isinstance(cause, GatedRepoError) for cause in causes):
        return gated(source.path)
    if "torchvision" in text.lower():
        return (
            f"the {what} of {source.path} needs torchvision; install the build that fits this torch: "
            f"{torchvision_line()}; where there is none, choose a family that does without (llava, llava_next, "
            "instructblip, gemma3)"
        )
    if "num2words" in text:
        return f"the {what} of {source.path} needs num2words; pip install 'forestlens[processors]'"
    if "trust_remote_code" in text:
        return f"{source.path} brings its own code, which is run only if you say so; set model.trust_remote_code=true"
    if attention and ("attn_implementation" in text or "attention" in text.lower()):
        other = "eager" if attention == "sdpa" else "sdpa or eager"
        return f"attention {attention!r} cannot be used ({brief(error)}); set model.attn_implementation={other}"
    if not source.local_only:
        way_out = "try again"
    else:
        way_out = "mend its files" if Path(source.path).is_dir() else "fetch the whole of it once with network"
    return f"cannot read the {what} of {source.path} ({brief(error)}); {way_out}, or choose another model"


def torchvision_line() -> str:
    """The pip command for the torchvision that was built for the installed torch, which it leaves as it is."""
    import torch

    version, _, build = str(torch.__version__).partition("+")
    line = f"{shlex.quote(sys.executable)} -m pip install torch=={version}{'+' if build else ''}{build} torchvision"
    return f"{line} --index-url https://download.pytorch.org/whl/{build}" if build else line


def weights_hash(folder: Path) -> str:
    """``sha256:`` and 12 hex digits, of the safetensors file or, for several, of their ``sha256sum`` listing."""
    files = sorted(folder.glob("*.safetensors"))
    digests = []
    for path in files:
        with path.open("rb") as stream:
            digests.append(hashlib.file_digest(stream, "sha256").hexdigest())
    if len(files) > 1:
        listing = "".join(f"{digest}  {path.name}\n" for digest, path in zip(digests, files, strict=True))
        digests = [hashlib.sha256(listing.encode()).hexdigest()]
    return f"sha256:{digests[0][:HASH_LENGTH]}"
