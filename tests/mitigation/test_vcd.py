"""The method: settings, margins, and answers that do not depend on the batch."""

from contextlib import AbstractContextManager, nullcontext

import pytest

from interp.attention.record import Queries, record_attention
from interp.errors import UserError
from interp.hooks.residual import edit_residual
from interp.tools.knockout import knockout
from interp.vlm import VLM, Prompt
from mitigation.attention_edit import steer_attention
from mitigation.contrastive.corruption import corrupt_inputs
from mitigation.contrastive.processors import VisualContrastiveLogitsProcessor
from mitigation.method import BRANCHES, Baseline
from mitigation.vcd import SHORT, VCD, in_two_branches
from mitigation.wrappers import Sampled
from tests.tiny import picture


@pytest.mark.parametrize("branch", BRANCHES)
@pytest.mark.parametrize("noise", ["blur", "black", "swapped"])
def test_every_noise_is_contrasted_by_every_branch(vlm: VLM, prompts: list[Prompt], noise: str, branch: str) -> None:
    got = VCD(alpha=3.0, beta=0.05, noise=noise, branch=branch).generate(vlm, prompts, max_new_tokens=4)
    worse = corrupt_inputs(vlm, prompts, vlm.encode(prompts), kind=noise, step=500, seed=0)
    processor = VisualContrastiveLogitsProcessor(vlm.model, worse, alpha=3.0, beta=0.05)
    expected = vlm.generate(prompts, max_new_tokens=4, logits_processor=[processor])
    assert got.token_ids == expected.token_ids
    assert got.texts == expected.texts
    assert got.prompts == [vlm.render(prompt) for prompt in prompts]
    assert len(got.texts) == len(got.finished) == len(got.margins) == len(prompts)
    assert got.token_ids != VCD(alpha=3.0, beta=0.05, noise_step=999).generate(vlm, prompts, max_new_tokens=4).token_ids


def test_key_and_seed_draw_the_noise(vlm: VLM) -> None:
    def margins(seed: int, *keys: str) -> list[float]:
        asked = [Prompt("what is red", picture(1), key=key) for key in keys]
        return VCD(noise_step=999, seed=seed).generate(vlm, asked, max_new_tokens=1).margins.tolist()

    same, other, again = margins(0, "a", "b", "a")
    assert same == pytest.approx(again, abs=1e-4)
    assert same != pytest.approx(other, abs=1e-2)
    assert same != pytest.approx(margins(1, "a")[0], abs=1e-2)


def test_who_records_attention_sees_the_branch_that_answers(vlm: VLM, prompts: list[Prompt]) -> None:
    with record_attention(vlm, queries=Queries.VERDICT) as plain:
        Baseline().generate(vlm, prompts, max_new_tokens=2)
    with record_attention(vlm, queries=Queries.VERDICT) as record:
        VCD(alpha=3.0, noise_step=999).generate(vlm, prompts, max_new_tokens=2)
    assert len(record.rows) == len(prompts)
    assert record.masses["mass"].tolist() == pytest.approx(plain.masses["mass"].tolist(), abs=1e-6)


def watched_by(name: str, vlm: VLM) -> AbstractContextManager[object]:
    return {
        "nobody": nullcontext(),
        "a recorder": record_attention(vlm),
        "a knockout": knockout(vlm, [("image", "verdict")]),
        "an edit": edit_residual(vlm, lambda here: None, layers=[1]),
        "steering": steer_attention(vlm, 1.0),
    }[name]


def test_auto_depends_on_settings_and_length_only(vlm: VLM) -> None:
    for who in ("nobody", "a recorder", "a knockout", "an edit", "steering"):
        with watched_by(who, vlm):
            assert VCD().branch_for(vlm, max_new_tokens=SHORT) == "sequential"
            assert VCD().branch_for(vlm, max_new_tokens=SHORT + 1) == "paired"


@pytest.mark.parametrize("who", ["a recorder", "a knockout", "an edit", "steering"])
def test_a_paired_batch_is_refused_while_somebody_must_see_the_clean_picture_alone(
    vlm: VLM, prompts: list[Prompt], who: str
) -> None:
    method = Sampled(VCD(alpha=3.0, noise_step=999), temperature=0.5)
    with watched_by(who, vlm), pytest.raises(UserError, match=r"recorded or edited.*branch=sequential"):
        method.generate(vlm, prompts, max_new_tokens=SHORT + 1)
    with watched_by(who, vlm):
        answered = in_two_branches(method).generate(vlm, prompts, max_new_tokens=SHORT + 1)
    assert answered.branch == "sequential"
    assert in_two_branches(VCD(branch="paired")) == VCD(branch="paired")
    assert in_two_branches(Baseline()) == Baseline()
