"""A checkpoint as an inference engine (vLLM) loads it: published weight names, its adapter merged.

transformers 5 dropped a level of names of CLIP and SigLIP towers (``vision_tower.vision_model.…``), which vLLM's models
and the hub's published files have. Tried with vLLM 0.32 and LLaVA's architecture.
"""

import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from interp.errors import UserError

if TYPE_CHECKING:
    from interp.checkpoints.config import ModelConfig
    from interp.vlm import VLM

INDEX = "model.safetensors.index.json"
DROPPED = re.compile(r"((?:^|\.)vision_tower\.)(?=(?:embeddings|encoder|pre_layrnorm|post_layernorm|head)\.)")
TOWERS = ("clip_vision_model", "siglip_vision_model")


def write_engine_model(config: "ModelConfig", to: Path, *, adapter: Path | None = None) -> str:
    """Write model, processor and generation settings to ``to`` (absent or empty). Return the command to serve it.

    ``adapter`` is a LoRA of ``task=vrtuning``, merged into the weights. The end tokens are the same as here, so that
    answers end alike.

    Raises:
        UserError: ``to`` is in use or cannot be written, or the adapter is of another base.
    """
    from interp.loading import load
    from mitigation.vrtuning import checkpoint

    folder = to.expanduser().absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"task.to={to} is in use; a model is written to an absent or empty folder; name another one")
    vlm = load(config)
    source = None if adapter is None else checkpoint.folder_of(adapter)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Beside the target, so that the last step is one rename within one file system.
        with TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as scratch:
            draft = Path(scratch) / folder.name
            if source is not None:
                checkpoint.merge(vlm, source, draft)
            else:
                vlm.model.save_pretrained(draft)
                vlm.processor.save_pretrained(draft)
            _published(vlm, draft)
            if folder.exists():
                folder.rmdir()
            draft.rename(folder)
    except OSError as error:
        raise UserError(f"cannot write to {folder} ({error}); name a folder that can be written") from error
    dtype = str(vlm.dtype).removeprefix("torch.")
    return f"vllm serve {folder} --served-model-name {config.name} --dtype {dtype} --max-logprobs 20"


def _published(vlm: "VLM", folder: Path) -> None:
    """Give the saved weights their published names, and the folder the model's end tokens."""
    from safetensors.torch import load_file, save_file
    from transformers import GenerationConfig

    pad, begin = vlm.tokenizer.pad_token_id, getattr(vlm.model.generation_config, "bos_token_id", None)
    ends = sorted(vlm.end_ids)
    GenerationConfig(eos_token_id=ends, pad_token_id=pad, bos_token_id=begin).save_pretrained(folder)
    if getattr(getattr(vlm.model.config, "vision_config", None), "model_type", "") not in TOWERS:
        return
    for file in folder.glob("*.safetensors"):
        weights = {_published_name(name): weight for name, weight in load_file(file).items()}
        save_file(weights, file, metadata={"format": "pt"})
    if (index := folder / INDEX).is_file():
        listed = json.loads(index.read_text(encoding="utf-8"))
        listed["weight_map"] = {_published_name(name): file for name, file in listed["weight_map"].items()}
        index.write_text(json.dumps(listed, indent=2) + "\n", encoding="utf-8")


def _published_name(name: str) -> str:
    return DROPPED.sub(r"\1vision_model.", name)
