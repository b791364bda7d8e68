"""The unmitigated arm, and that choosing a method costs no import of torch."""

import subprocess
import sys

import pytest
import torch

from interp.vlm import VLM, Prompt
from mitigation.attention_steering import AttentionSteering
from mitigation.method import Baseline, abilities
from mitigation.threshold import ConstantShift
from mitigation.verbalise import Verbalise
from mitigation.vrtuning.method import NewAdapter
from mitigation.wrappers import Sampled, Shifted
from tests.conftest import REPOSITORY
from tests.methods import LEARNERS, METHODS, public_methods
from tests.mitigation.family_laws import answers_as_one_by_one

OTHER_WAYS = ("qwen2_5_vl", "llava_next")  # patches of a grid, tiles


def test_the_baseline_is_the_models_own_answer(vlm: VLM, prompts: list[Prompt]) -> None:
    answers, plain = Baseline().generate(vlm, prompts, max_new_tokens=4), vlm.generate(prompts, max_new_tokens=4)
    assert answers.token_ids == plain.token_ids
    assert torch.equal(answers.margins, vlm.score(prompts))


@pytest.mark.parametrize("family", ["llava", *(pytest.param(name, marks=pytest.mark.long) for name in OTHER_WAYS)])
@pytest.mark.parametrize("name", METHODS)
def test_a_batch_is_answered_as_one_by_one(family: str, name: str) -> None:
    answers_as_one_by_one(family, METHODS[name], atol=1e-3, rtol=1e-3)


def test_no_public_method_is_missing_among_those_that_the_tests_go_over() -> None:
    known = {type(method).__name__ for method in (*METHODS.values(), *LEARNERS.values())}
    needs_more = {"VRTuning", "ShiftedTrainable", "OwnFile", "OwnLearner"}  # an adapter; a method; a file
    needs_more |= {"Thinking", "TwoSteps"}  # a model that thinks first: tests/mitigation/test_thinking.py
    assert public_methods() == known | needs_more


def test_configuring_a_method_loads_neither_torch_nor_transformers() -> None:
    code = "import sys, tests.methods; sys.exit(len({'torch', 'transformers'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=True, capture_output=True)


def test_a_method_around_another_takes_over_what_its_answers_are() -> None:
    oracle = Verbalise(describe="oracle")
    for around in (Shifted(oracle), Sampled(oracle), AttentionSteering(method=oracle), NewAdapter("a", inner=oracle)):
        found = abilities(around)
        assert (found.needs_description, found.drops_image) == (True, True), around
        assert not found.works_over_api, around  # it needs more of the model than words
    constant = ConstantShift(1.0)
    for around in (Sampled(constant), Sampled(Shifted(Baseline(), 1.0)), NewAdapter("a", inner=constant)):
        assert abilities(around).yes_no_only, around
    assert not abilities(AttentionSteering()).needs_description
