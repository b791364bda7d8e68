"""The bench of contrastive decoding: its loop of two forwards says what VCD says, and its rows are ratios."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from experiments.studies.bench.harness import PLAIN
from experiments.studies.bench.models import LLAVA, configured, prompt_of, random_model
from experiments.studies.bench.vcd import PAIRED, SEQUENTIAL, two_forwards, variants
from interp.vlm import VLM
from mitigation.method import Baseline

TEXT = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 640}
VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "image_size": 28,
}


@pytest.fixture(scope="module")
def wide() -> VLM:
    """A small model with weights so wide that answers vary from step to step."""
    config = configured(LLAVA, {**TEXT, "num_key_value_heads": 4}, VISION)
    vlm = random_model(config, device=torch.device("cpu"), dtype=torch.float32, seed=0)
    with torch.no_grad():
        for name, weight in vlm.model.named_parameters():
            if weight.ndim > 1 and "vision_tower" not in name:
                weight *= 8
    return vlm


def test_the_loop_of_two_forwards_says_what_both_branches_say_and_not_what_the_model_says(wide: VLM) -> None:
    prompts = [replace(prompt_of(wide, 40, seed=0), key="a")]
    assert wide.encode(prompts)["input_ids"].shape == (1, 40)
    contrasted = two_forwards(wide, prompts, max_new_tokens=8)
    for method in (PAIRED, SEQUENTIAL):
        assert [list(ids) for ids in method.generate(wide, prompts, max_new_tokens=8).token_ids] == contrasted
    plain = [list(ids) for ids in Baseline().generate(wide, prompts, max_new_tokens=8).token_ids]
    assert plain != contrasted
    assert all(len(row) == 8 and len(set(row)) > 2 for row in plain + contrasted)


@pytest.mark.long
def test_the_organism_answers_in_every_way() -> None:
    answers: dict[str, Any] = {name: work() for name, work in variants("organism", 1, 24, "cpu", 0).items()}
    assert list(answers) == [PLAIN, "paired", "two forwards", "sequential"]
    looped = answers.pop("two forwards")
    lengths = {name: [len(answer.token_ids[0]) for answer in each] for name, each in answers.items()}
    assert lengths["paired"] == lengths["sequential"] == [len(row) for (row,) in looped]
    assert 1 < max(lengths["paired"]) < 24  # it ends its answers
