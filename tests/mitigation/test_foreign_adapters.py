"""Adapters of every kind beside other arms: the baseline is bit-equal to what it was, or the adapter is refused."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import (
    BOFTConfig,
    FourierFTConfig,
    IA3Config,
    LNTuningConfig,
    LoHaConfig,
    LoKrConfig,
    LoraConfig,
    OFTConfig,
    PeftModel,
    PrefixTuningConfig,
    PromptTuningConfig,
    VeraConfig,
    get_peft_model,
)
from safetensors.torch import load_file, save_file

from interp.errors import UserError
from interp.vlm import VLM
from mitigation.method import Baseline
from mitigation.vrtuning.method import VRTuning
from tests.interp.test_vlm import PROMPTS
from tests.plain_model import plain_afterwards
from tests.tiny import tiny_llava

LAYERS = r".*language_model.layers.*(q_proj|v_proj)"
PROJECTOR = "multi_modal_projector"
LINEAR: dict[str, Any] = {"target_modules": LAYERS}
KINDS: dict[str, Any] = {
    "lora": lambda: LoraConfig(r=4, **LINEAR),
    "lora of the projector": lambda: LoraConfig(r=4, target_modules=r".*multi_modal_projector.*linear_\d"),
    "dora": lambda: LoraConfig(r=4, use_dora=True, **LINEAR),
    "whole projector": lambda: LoraConfig(r=4, modules_to_save=[PROJECTOR], **LINEAR),
    "biases": lambda: LoraConfig(r=4, bias="all", **LINEAR),
    "biases of layers": lambda: LoraConfig(r=4, bias="lora_only", target_modules=r".*multi_modal_projector.*linear_1"),
    "tokens": lambda: LoraConfig(r=4, trainable_token_indices=[5, 6], **LINEAR),
    "loha": lambda: LoHaConfig(r=4, **LINEAR),
    "lokr": lambda: LoKrConfig(r=4, **LINEAR),
    "ia3": lambda: IA3Config(feedforward_modules=[], **LINEAR),
    "vera": lambda: VeraConfig(r=4, target_modules=["q_proj"]),
    "fourier": lambda: FourierFTConfig(n_frequency=8, **LINEAR),
    "norms": lambda: LNTuningConfig(target_modules=r".*language_model.*input_layernorm"),
    "oft": lambda: OFTConfig(oft_block_size=2, **LINEAR),
    "boft": lambda: BOFTConfig(boft_block_size=2, **LINEAR),
}
REFUSED: dict[str, Any] = {
    "prompt": lambda: PromptTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM"),
    "prefix": lambda: PrefixTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM"),
}


def trained(config: Any, folder: Path) -> Path:
    """An adapter of this kind for the tiny LLaVA, its weights moved away from where they change nothing."""
    model, _ = tiny_llava()
    wrapped = get_peft_model(model, config)
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in wrapped.parameters():
            if weight.requires_grad:
                weight.add_(torch.randn_like(weight) * 0.3)
    wrapped.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("adapters")
    return {name: trained(config(), root / name.replace(" ", "_")) for name, config in (KINDS | REFUSED).items()}


@pytest.mark.parametrize("kind", KINDS)
def test_an_adapter_acts_and_leaves_the_model_as_it_was(kind: str, folders: dict[str, Path], vlm: VLM) -> None:
    plain = Baseline().generate(vlm, PROMPTS, max_new_tokens=3).margins
    with plain_afterwards(vlm):
        margins = VRTuning(str(folders[kind])).generate(vlm, PROMPTS, max_new_tokens=3).margins
    assert not torch.equal(margins, plain)
    model, processor = tiny_llava()
    whole = VLM(PeftModel.from_pretrained(model, folders[kind]), processor)
    torch.testing.assert_close(margins, Baseline().generate(whole, PROMPTS, max_new_tokens=3).margins)


@pytest.mark.parametrize("kind", REFUSED)
def test_an_adapter_that_only_pefts_wrapper_runs_is_refused(kind: str, folders: dict[str, Path], vlm: VLM) -> None:
    with plain_afterwards(vlm), pytest.raises(UserError, match="only inside peft's own wrapper"):
        VRTuning(str(folders[kind])).generate(vlm, PROMPTS, max_new_tokens=3)


def test_tensors_that_have_no_place_are_refused(folders: dict[str, Path], vlm: VLM, tmp_path: Path) -> None:
    folder = shutil.copytree(folders["lora"], tmp_path / "odd")
    weights = load_file(folder / "adapter_model.safetensors")
    name = next(iter(weights))
    weights[name.replace("q_proj", "w_proj").replace("v_proj", "w_proj")] = weights[name].clone()
    save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    with plain_afterwards(vlm), pytest.raises(UserError, match="1 of its tensors have no place there"):
        VRTuning(str(folder)).generate(vlm, PROMPTS, max_new_tokens=2)
