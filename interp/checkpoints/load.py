"""Reads a checkpoint: configuration, processor and weights. ``interp.loading.load`` wraps it in a ``VLM``."""

import hashlib
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from interp.batching import out_of_memory
from interp.checkpoints.config import (
    ADAPTER,
    GET,
    GIB,
    HASH,
    ORGANISM,
    ORGANISMS,
    ROWS,
    SHOWN,
    ModelConfig,
    Source,
    brief,
    check_made,
    check_room,
    find,
    gated,
    is_in_parts,
    organism_folder,
    parts_hash,
    row_bytes,
    stored_numbers,
    weights_hash,
)
from interp.errors import UserError
from interp.prompt import check_chat_template, with_keywords

if TYPE_CHECKING:
    import torch

BASE = ORGANISMS / "llava"  # of an organism that is an adapter
NEEDED_SETTINGS = ("patch_size", "vision_feature_select_strategy")  # of processors that have them


def read_checkpoint(config: ModelConfig) -> tuple[Any, Any, str]:
    """Return model, processor and revision of the checkpoint that ``config`` names, from safetensors only.

    The revision is the hub commit, or a hash of a folder's weights. What can fail quickly is checked first: device,
    location, architecture, file format, memory, processor.

    Raises:
        UserError: a location, hub or device that is not there; an unsupported architecture, or weights that do not fit
            it or are in another format; a processor that cannot be built.
    """
    target = resolve_device(config.device, config.name)
    source = find(config)
    configuration = read_config(source, config)
    check_format(source)
    revision = _made_here(source, config)
    dtype = dtype_on(config.dtype, target)
    if config.device_map is None:
        kind = str(dtype).removeprefix("torch.")
        check_room(config, source.numbers or _stored(source), kind, target, row_bytes(configuration, kind))
    processor = read_processor(source, config)
    model = read_weights(source, config, target, dtype)
    return model, processor, revision or source.commit or weights_hash(Path(source.path))


def _made_here(source: Source, config: ModelConfig) -> str | None:
    """Return the hash of an organism that is kept in parts; check it if it was made in the cache.

    None for any other model.

    Raises:
        UserError: it is not what was made.
    """
    folder, name = Path(source.path), config.path.removeprefix(ORGANISM)
    if is_adapted(folder):
        digest = hashlib.sha256(f"{weights_hash(BASE)} {parts_hash(folder)}".encode())
        return f"{HASH}{digest.hexdigest()[:SHOWN]}"
    if not config.path.startswith(ORGANISM) or folder != organism_folder(name):
        return None
    digest_of_weights = weights_hash(folder)
    check_made(folder, ORGANISMS / name, digest_of_weights)
    return digest_of_weights


def resolve_device(name: str, model: str = "the model") -> "torch.device":
    """Return the torch device for ``name``; ``auto`` is CUDA if available, else the CPU.

    ``model`` is for the error message.

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
    """Return the checkpoint's configuration.

    Raises:
        UserError: no configuration, or a model that takes no pictures.
    """
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

    from interp.module_map import refuse_encoder_decoder

    configuration = _reading(source, "configuration", AutoConfig.from_pretrained)
    if type(configuration) not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
        raise UserError(
            f"{source.path} is a '{configuration.model_type}' checkpoint, not an image-text-to-text model; prompts "
            "here have images; choose a model of transformers that takes them (docs/guide-models.md lists tested ones)"
        )
    refuse_encoder_decoder(configuration)
    return configuration


def check_format(source: Source) -> None:
    """Check that the weights are complete and in safetensors, since other formats run code when opened.

    Raises:
        UserError: another format, no weights, an adapter next to weights, or an organism that was not put together.
    """
    folder = Path(source.path)
    if is_in_parts(folder):
        raise UserError(
            f"{folder} has only parts that were trained on a language model, and the complete model is not at "
            f"{organism_folder(folder.name)}; {GET}"
        )
    if source.files is None and not folder.is_dir():
        return  # the hub's cache: from_pretrained checks for completeness
    files = source.files or tuple(path.name for path in folder.iterdir())
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


def read_processor(source: Source, config: ModelConfig) -> Any:
    """Return the checkpoint's processor, with the chat template, its keywords and the limits on picture size set.

    Raises:
        UserError: no image processor, tokenizer or chat template, a keyword that it lacks, or as ``set_bounds``.
    """
    from transformers import AutoConfig, AutoProcessor
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING

    refusal = None
    try:
        processor = _reading(source, "processor", AutoProcessor.from_pretrained)
    except UserError as error:
        processor, refusal = None, error
    if getattr(processor, "image_processor", None) is None:
        # InstructBLIP's processor config names the video processor: take the one of the model's own family.
        kind = type(_reading(source, "configuration", AutoConfig.from_pretrained))
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
    """Set the least and the most pixels of a picture in ``image_processor``, in place.

    Raises:
        UserError: it does not scale pictures by their area, or the two bounds contradict each other.
    """
    # Processors that scale by the area store it under the names of sides.
    given = {"shortest_edge": config.min_pixels, "longest_edge": config.max_pixels}
    bounds = {name: value for name, value in given.items() if value is not None}
    if not bounds:
        return
    if "max_pixels" not in getattr(getattr(image_processor, "valid_kwargs", None), "__annotations__", {}):
        raise UserError(
            f"model.min_pixels and model.max_pixels mean nothing to {config.name}, whose "
            f"{type(image_processor).__name__} does not scale pictures by their area; leave them out"
        )
    size = {name: value for name, value in dict(image_processor.size).items() if value is not None} | bounds
    if size["shortest_edge"] > size["longest_edge"]:
        raise UserError(
            f"the pictures of {config.name} would have at least {size['shortest_edge']} and at most "
            f"{size['longest_edge']} pixels; set model.min_pixels and model.max_pixels"
        )
    image_processor.size = type(image_processor.size)(**size)


def read_weights(source: Source, config: ModelConfig, device: "torch.device", dtype: "torch.dtype") -> Any:
    """Return the model in eval mode on ``device``, or spread by ``config.device_map``.

    Raises:
        UserError: the weights cannot be read, do not fit in memory, or lack parameters.
    """
    from transformers import AutoModelForImageTextToText
    from transformers.integrations import is_deepspeed_zero3_enabled

    if is_adapted(Path(source.path)):
        return _adapted(source, config, dtype).to(device)
    places: Any = config.device_map
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
            use_safetensors=True,
            output_loading_info=True,
        )
    if missing := sorted(info["missing_keys"]):
        raise UserError(
            f"the weights at {source.path} lack {len(missing)} parameters ({missing[0]}, ...), which would stay "
            "random; get the whole checkpoint, or build the model yourself and pass VLM(model, processor)"
        )
    if places is None:
        return model.to(device)
    if "disk" in (getattr(model, "hf_device_map", None) or {}).values():
        needed = sum(weight.numel() for weight in model.parameters()) * model.dtype.itemsize
        raise UserError(
            f"the weights of {config.name} need {needed / GIB:.1f} GiB and do not fit into the memory of all devices; "
            "from the disk a token would take minutes; choose a smaller model, model.dtype=bfloat16, or more cards"
        )
    return model


def is_adapted(folder: Path) -> bool:
    """Return whether ``folder`` has new tokens' rows and an adapter for the first organism, in place of weights."""
    return (folder / ROWS).is_file() and folder.parent == ORGANISMS


def _adapted(source: Source, config: ModelConfig, dtype: "torch.dtype") -> Any:
    """Return the first organism with the rows and the adapter in a bundled folder, merged in float32."""
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
    """While open, transformers draws no bar: for a small model it is over before it can be read."""
    from transformers.utils import logging

    enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            logging.enable_progress_bar()


def dtype_on(name: str, device: "torch.device") -> "torch.dtype":
    """Return the torch dtype for ``name``; ``auto`` depends on ``device``."""
    import torch

    if name != "auto":
        return cast("torch.dtype", getattr(torch, name))
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    return torch.float32


def _reading(source: Source, what: str, read: Any, **arguments: Any) -> Any:
    """Call ``read`` and turn any error into a ``UserError``: transformers raises a dozen types for unusable files."""
    try:
        return read(source.path, **source.arguments(), **arguments)
    except Exception as error:
        if isinstance(error, UserError) or out_of_memory(error):
            raise
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
            f"the {what} of {source.path} needs torchvision; install the build that fits this torch, from where torch "
            "is from; where there is none, choose a family that does without (llava, llava_next, instructblip, gemma3)"
        )
    if "num2words" in text:
        return f"the {what} of {source.path} needs num2words; pip install 'forestlens[processors]'"
    if "trust_remote_code" in text:
        return f"{source.path} brings its own code, which is never run; in Python, pass VLM(model, processor)"
    if attention and ("attn_implementation" in text or "attention" in text.lower()):
        other = "eager" if attention == "sdpa" else "sdpa or eager"
        return f"attention {attention!r} cannot be used ({brief(error)}); set model.attn_implementation={other}"
    if not source.local_only:
        way_out = "try again"
    else:
        way_out = "mend its files" if Path(source.path).is_dir() else "fetch the whole of it once with network"
    return f"cannot read the {what} of {source.path} ({brief(error)}); {way_out}, or choose another model"
