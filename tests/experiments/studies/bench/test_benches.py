"""The benches and their harness: what is measured, not how fast it was on this machine."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from experiments.studies.bench import harness
from experiments.studies.bench.benches import (
    PAIRED,
    SEQUENTIAL,
    AttentionBench,
    attention_variants,
    decoding_variants,
    two_forwards,
)
from experiments.studies.bench.harness import PLAIN, rounds_of
from experiments.studies.bench.models import LLAVA, configured, prompt_of, random_model
from interp.loading import load
from interp.segments import segment
from interp.vlm import VLM
from mitigation.method import Baseline
from tests.experiments.compose import run_of

TOKENS, VARIANTS = 100, [PLAIN, "verdict", "all queries", "eager"]


def test_variants_see_what_their_names_say_and_masses_are_those_of_eager_attention() -> None:
    seen = {name: work() for name, work in attention_variants("organism", TOKENS, "cpu", 0).items()}
    assert list(seen) == VARIANTS
    masses = seen["all queries"].pieces[0].mass[:, 0]  # layer head query segment
    eager = torch.stack([weights[0] for weights in seen["eager"]])
    assert seen["verdict"].pieces[0].mass.shape[3] == 1
    assert eager.shape[-2:] == (TOKENS, TOKENS)
    vlm = load("organism:llava", device="cpu")
    prompts = [prompt_of(vlm, TOKENS, seed=0)]
    indicator = segment(vlm, prompts, vlm.encode(prompts)).indicator(0, TOKENS)[0]  # key segment
    assert 0 < (masses - eager.float() @ indicator.float()).abs().max() < 1e-5


def test_rounds_alternate_and_none_is_begun_that_would_end_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    cost = {"a": 1.0, "b": 3.0}
    for clock in ("monotonic", "perf_counter"):  # time passes only while a variant works
        monkeypatch.setattr(harness.time, clock, lambda: sum(cost[name] for name in order))
    work = {name: partial(order.append, name) for name in cost}
    assert rounds_of(work, "cpu", 2, 100.0) == [cost] * 2
    assert order == ["a", "b", "a", "b", "b", "a"]  # the first two to warm up
    assert len(rounds_of(work, "cpu", 9, 12.0)) == 3
    assert len(rounds_of(work, "cpu", 9, 0.0)) == 1


def test_a_ratio_is_the_median_of_the_ratios_within_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = [{PLAIN: 1.0, "mass": 1.2}, {PLAIN: 10.0, "mass": 11.0}, {PLAIN: 1.0, "mass": 1.5}]  # the second is slow
    monkeypatch.setattr(harness, "rounds_of", lambda *_: rounds)
    monkeypatch.setattr(AttentionBench, "jobs", lambda *_: [harness.Job("it", dict, {"mass": 1.25})])
    rows = AttentionBench().measure(run_of(), "cpu")["rows"]
    assert [(row["times plain"], row["at most"]) for row in rows] == [(1.0, None), (1.2, 1.25)]


TEXT = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 640}
VISION = TEXT | {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "image_size": 28}


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
    answers: dict[str, Any] = {name: work() for name, work in decoding_variants("organism", 1, 24, "cpu", 0).items()}
    assert list(answers) == [PLAIN, "paired", "two forwards", "sequential"]
    looped = answers.pop("two forwards")
    lengths = {name: [len(answer.token_ids[0]) for answer in each] for name, each in answers.items()}
    assert lengths["paired"] == lengths["sequential"] == [len(row) for (row,) in looped]
    assert 1 < max(lengths["paired"]) < 24  # it ends its answers
