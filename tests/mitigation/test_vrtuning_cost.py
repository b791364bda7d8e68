"""The estimate's arithmetic, held against LLaVA-1.5-7B's known sizes and against what peft really adds."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import get_peft_model
from transformers import LlavaConfig, LlavaForConditionalGeneration

from interp.checkpoints.config import ModelConfig
from interp.layout import layout_for
from mitigation.vrtuning.cost import Shape, _measured, estimate, flops_per_token, memory_gib, shape_of
from mitigation.vrtuning.model import lora_config
from mitigation.vrtuning.settings import Settings
from tests.tiny import tiny_llava

SHAPE = Shape(parameters=1000, linear=600, adapter=50, hidden=10, layers=3, vocabulary=100)
SETTINGS = Settings(batch_size=2)


def test_the_sizes_are_those_that_peft_makes(saved: Path) -> None:
    """Counted on the configuration alone, equal to the loaded model with its adapter."""
    settings = Settings(rank=3, targets=("q_proj", "down_proj"))
    model = tiny_llava().model
    shape = shape_of(ModelConfig("tiny", str(saved)), settings)
    assert shape.parameters == sum(weight.numel() for weight in model.parameters())
    adapted = get_peft_model(model, lora_config(model, layout_for(model), settings))
    assert shape.adapter == sum(weight.numel() for weight in adapted.parameters() if weight.requires_grad)


@pytest.mark.long
def test_llava_7b_is_seven_billion_with_forty_million_trained() -> None:
    """Rank 16 on all seven projections of 32 layers: 16 × (4 × 2 × 4096 + 3 × (4096 + 11008)) × 32."""
    with torch.device("meta"):
        model = LlavaForConditionalGeneration(LlavaConfig())
    shape = _measured(model, layout_for(model), Settings())
    assert shape.parameters == pytest.approx(7.06e9, rel=2e-3)
    assert shape.adapter == 16 * (4 * 2 * 4096 + 3 * (4096 + 11008)) * 32
    assert shape.linear == 32 * (4 * 4096**2 + 3 * 4096 * 11008)
    assert 13 < estimate(Settings(), shape, examples=1).gib < 80


def test_memory_is_the_sum_of_its_parts() -> None:
    parts = {
        "weights": 2 * 1000,
        "adapter and Adam": 16 * 50,
        "layer inputs": 2 * (2 * 7 * 10) * 3,
        "one layer": 34 * (2 * 7 * 10),
        "logits": 2 * (2 * 7) * 100,
    }
    assert memory_gib(SETTINGS, SHAPE, 7) == pytest.approx(1.5 + sum(parts.values()) / 2**30, rel=1e-12)
    whole = replace(SETTINGS, checkpointing="off")
    more = 34 * (2 * 7 * 10) * 3 - parts["layer inputs"] - parts["one layer"]
    assert (memory_gib(whole, SHAPE, 7) - memory_gib(SETTINGS, SHAPE, 7)) * 2**30 == pytest.approx(more)
    less = 600 * (2 - 0.516)
    quantised = replace(SETTINGS, four_bit=True)
    assert (memory_gib(SETTINGS, SHAPE, 7) - memory_gib(quantised, SHAPE, 7)) * 2**30 == pytest.approx(less)


def test_time_is_work_over_speed() -> None:
    assert flops_per_token(SHAPE, 7, recomputed=True) == 3 * (2 * 1000 + 4 * 7 * 10 * 3) + 4 * 2 * 50
    assert flops_per_token(SHAPE, 7, recomputed=False) == 2 * (2 * 1000 + 4 * 7 * 10 * 3) + 3 * 2 * 50
    one = estimate(SETTINGS, SHAPE, examples=100, tokens=7, tflops=1.0)
    assert one.steps == 50
    assert one.hours == pytest.approx(100 * 7 * flops_per_token(SHAPE, 7, recomputed=True) / 1e12 / 3600)
    two = estimate(SETTINGS, SHAPE, examples=100, tokens=7, tflops=1.0, processes=2)
    assert (two.steps, two.hours) == (25, pytest.approx(one.hours / 2))
    assert "7 tokens an example" in str(one)


def test_nothing_heavy_is_imported() -> None:
    modules = "mitigation.vrtuning.cost, mitigation.vrtuning.method, mitigation.vrtuning.settings"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
