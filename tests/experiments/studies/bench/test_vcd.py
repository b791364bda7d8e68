"""The bench of contrastive decoding: its loop of two forwards says what VCD says, and its rows are ratios."""

from typing import Any

import pytest
import torch

from experiments.studies.bench.harness import PLAIN
from experiments.studies.bench.models import LLAVA, configured, prompt_of, random_model
from experiments.studies.bench.vcd import LIMITS, PAIRED, SEQUENTIAL, TOKENS, VcdBench, two_forwards, variants
from interp.errors import UserError
from interp.vlm import VLM
from mitigation.method import Baseline
from tests.experiments.compose import run_of

TEXT = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 512}
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
    prompts = [prompt_of(wide, 40, seed=0)._replace(key="a")]
    contrasted = two_forwards(wide, prompts, max_new_tokens=8)
    for method in (PAIRED, SEQUENTIAL):
        assert [list(ids) for ids in method.generate(wide, prompts, max_new_tokens=8).token_ids] == contrasted
    plain = [list(ids) for ids in Baseline().generate(wide, prompts, max_new_tokens=8).token_ids]
    assert plain != contrasted
    assert all(len(row) == 8 and len(set(row)) > 2 for row in plain + contrasted)


def test_prompts_are_real_inputs_of_exactly_that_length(wide: VLM) -> None:
    encoded = wide.encode([prompt_of(wide, 60, seed=1)] * 2)
    assert encoded["input_ids"].shape == (2, 60)
    assert encoded["attention_mask"].all()
    assert encoded["pixel_values"].shape == (2, 3, 28, 28)


def test_equal_seeds_give_equal_weights_and_leave_the_global_generator_alone() -> None:
    state = torch.random.get_rng_state()
    models = [
        random_model(configured(LLAVA, TEXT, VISION), device=torch.device("cpu"), dtype=torch.float32, seed=3).model
        for _ in range(2)
    ]
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(map(torch.equal, *(model.parameters() for model in models)))


def test_every_limit_is_of_a_job_and_a_variant_that_are_measured() -> None:
    jobs = VcdBench(sizes=["7b", "7b_qwen"], device="cuda").jobs(run_of(), "cuda")
    limited = {job.title: job.limits for job in jobs if job.limits}
    assert limited == LIMITS
    assert {name for limits in LIMITS.values() for name in limits} == {"paired"}
    assert set(TOKENS) == set(VcdBench.choices)


@pytest.mark.long
def test_the_organism_answers_in_every_way() -> None:
    answers: dict[str, Any] = {name: work() for name, work in variants("organism", 1, 24, "cpu", 0).items()}
    assert list(answers) == [PLAIN, "paired", "sequential", "two forwards"]
    looped = answers.pop("two forwards")
    lengths = {name: [len(answer.token_ids[0]) for answer in each] for name, each in answers.items()}
    assert lengths["paired"] == lengths["sequential"] == [len(row) for (row,) in looped]
    assert 1 < max(lengths["paired"]) < 24  # it ends its answers


@pytest.mark.parametrize("bench", ["bench_vcd", "bench_attention", "bench_eval"])
@pytest.mark.parametrize(
    ("option", "named"),
    [
        ("task.sizes=[huge]", "task.sizes=huge"),
        ("task.sizes=[]", "task.sizes="),
        ("task.repeats=0", "repeats=0"),
        ("task.seconds=-1", "seconds=-1"),
        ("task.device=tpu", "task.device=tpu"),
        ("task.sizes=[7b]", "task.device=cuda"),
    ],
)
def test_bad_options_are_named_before_anything_is_built(bench: str, option: str, named: str) -> None:
    with pytest.raises(UserError) as error:
        run_of(f"task={bench}", option)
    assert named in str(error.value)


@pytest.mark.parametrize(
    "option", ["bench_vcd task.items=[0]", "bench_attention task.lengths=[]", "bench_eval task.cases=[0]"]
)
def test_numbers_are_at_least_one(option: str) -> None:
    task, number = option.split()
    with pytest.raises(UserError, match="numbers of at least 1"):
        run_of(f"task={task}", number)
