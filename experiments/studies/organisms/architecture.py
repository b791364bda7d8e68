"""The second organism, made of SmolLM2-135M and what was trained of it (``interp/organisms/smol``).

No parameter is added to the language model. The image token takes the row of a special token that never occurs in text.
"""

import shutil
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoConfig, LlavaForConditionalGeneration

from interp.checkpoints.config import ADAPTER, EYES, SMOLLM2
from interp.checkpoints.load import no_progress_bar
from interp.errors import UserError
from interp.module_map import module_map_of


def merged(parts: Path, base: Path) -> LlavaForConditionalGeneration:
    """Return the organism in float32: the language model in ``base``, rounded to bfloat16, with ``parts``.

    The adapter is added to the weights in float64, where the sum of these values is exact: the same everywhere.
    """
    model: Any = PeftModel.from_pretrained(unadapted(parts, base).double(), str(parts / ADAPTER))  # type: ignore[arg-type]
    return model.double().merge_and_unload().float().eval()  # type: ignore[no-any-return]


def save_whole(parts: Path, base: Path, folder: Path) -> None:
    """Write ``merged`` with its processor to ``folder`` as one plain checkpoint, in float32.

    In bfloat16 the sums would be rounded: the adapter adds less to many a weight than its last bit.
    """
    merged(parts, base).save_pretrained(folder)
    for path in parts.iterdir():
        if path.is_file() and path.name != EYES and not (folder / path.name).exists():
            shutil.copy(path, folder / path.name)


def unadapted(parts: Path, base: Path) -> LlavaForConditionalGeneration:
    """Return the organism without its adapter in float32: ``base`` rounded to bfloat16, vision tower and projector.

    Raises:
        UserError: the weights in ``base`` do not fit.
    """
    config = AutoConfig.from_pretrained(parts, local_files_only=True)
    module_map, state = module_map_of(config), load_file(parts / EYES)
    for file in sorted(base.glob("*.safetensors")):
        for name, tensor in load_file(file).items():
            head, _, rest = name.partition(".")
            module = module_map.language_model if head == "model" else module_map.lm_head
            state[f"{module}.{rest}"] = tensor.to(torch.bfloat16)
    try:
        with no_progress_bar():
            loaded: Any = LlavaForConditionalGeneration.from_pretrained(
                None, config=config, state_dict=state, dtype=torch.float32, output_loading_info=True
            )
    except RuntimeError as error:
        raise _unfit(base, str(error).splitlines()[0][:120]) from error
    model, info = loaded
    if wrong := sorted({*info["missing_keys"], *info["unexpected_keys"]}):
        raise _unfit(base, f"{len(wrong)} parameters are missing or left over: {wrong[0]}, ...")
    return model  # type: ignore[no-any-return]


def _unfit(base: Path, why: str) -> UserError:
    return UserError(f"the language model in {base} does not fit ({why}); it must be {SMOLLM2}")
