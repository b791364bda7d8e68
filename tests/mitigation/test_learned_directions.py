"""Readout, steering and ablation: the planted is found, strength 0 adds nothing, and what is removed is gone."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from interp.device_copies import Copies
from interp.errors import UserError
from interp.hooks.residual import LayerStates, edit_residual, last_layer, residuals
from interp.vlm import VLM, Prompt
from mitigation.learned.activation_steering import DirectionSteering
from mitigation.learned.direction_ablation import AblateDirection, AblateRandom, LearnedAblation
from mitigation.learned.drift import DriftCorrection
from mitigation.learned.probe_readout import LearnedReadout, TruthReadout
from mitigation.learned.ridge_probe import (
    PENALTIES,
    SHARE_PENALTIES,
    HeldOut,
    Pooled,
    area,
    fit_readout,
    question_parts,
)
from mitigation.learned.state_edits import levelled, projected
from mitigation.method import TrainableMethod, abilities
from mitigation.wrappers import Shifted
from tests.plain_model import plain_afterwards
from tests.planted import Plan, coloured, direction, planted
from tests.tiny import picture

OBJECTS = ("knife", "gun", "cake", "dog", "toy", "car")


@pytest.fixture(scope="module")
def overruled() -> VLM:
    """A picture's colour reaches the verdict column ("seen"), and alarming words overrule it there."""
    return planted(Plan(reads=1, heeds=0, writes=2))


def cases(count: int = 24) -> tuple[list[Prompt], list[bool]]:
    """Six questions, two of them alarming, each about red (safe) and blue pictures of several strengths."""
    prompts, safe = [], []
    for number in range(count):
        redness = (1 if number % 2 else -1) * (0.4 + 0.2 * (number // 2 % 3))
        prompts.append(Prompt(f"Is the {OBJECTS[number // 2 % 6]} safe?", coloured(redness), key=str(number)))
        safe.append(redness > 0)
    return prompts, safe


@pytest.fixture(scope="module")
def readout(overruled: VLM, tmp_path_factory: pytest.TempPathFactory) -> LearnedReadout:
    return TruthReadout(layer=2).learn(overruled, *cases(), out=tmp_path_factory.mktemp("r") / "readout.safetensors")


def test_the_truth_that_the_verdict_ignores_is_brought_to_it(overruled: VLM, readout: LearnedReadout) -> None:
    prompts, safe = cases(12)
    labels = torch.tensor(safe)
    before = overruled.score(prompts)
    assert area(before, labels) < 0.9  # the alarming third is called unsafe whatever it shows
    after = readout.generate(overruled, prompts, max_new_tokens=1)
    assert area(after.margins, labels) == 1.0
    assert readout.about["auroc"] == 1.0
    assert readout.about["n"] == 24
    assert readout.about["auroc_shuffled"] < 0.8
    assert area(readout.logits(overruled, prompts), labels) == 1.0


def test_what_it_adds_is_the_probes_logit_to_first_order(overruled: VLM, readout: LearnedReadout) -> None:
    prompts, _ = cases()  # those whose mean gradient it goes along
    before, little = overruled.score(prompts), 1e-2

    def add(here: LayerStates) -> torch.Tensor:
        edited = here.hidden.clone()
        edited[:, -1] += little * readout._vectors.tensors["direction"]
        return edited

    with edit_residual(overruled, add, layers=[2]):
        each = (overruled.score(prompts) - before) / little
    assert float(each.mean()) == pytest.approx(1, abs=0.02)  # one logit in the mean
    moved = replace(readout, strength=little).generate(overruled, prompts, max_new_tokens=1).margins
    expected = readout.logits(overruled, prompts) * each
    assert float((expected > 0).double().mean()) == 0.5
    torch.testing.assert_close((moved - before) / little, expected, atol=0.05, rtol=0.05)


def test_strength_0_changes_nothing(overruled: VLM, readout: LearnedReadout, tmp_path: Path) -> None:
    prompts, safe = cases()
    plain = overruled.generate(prompts[:4], max_new_tokens=3)
    steering = DirectionSteering(layer=2, columns="all").learn(overruled, prompts, safe, out=tmp_path / "s.safetensors")
    for method in (replace(readout, strength=0.0), replace(steering, strength=0.0)):
        got = method.generate(overruled, prompts[:4], max_new_tokens=3)
        assert torch.equal(got.margins, plain.margins)
        assert got.token_ids == plain.token_ids
        moved = replace(method, strength=2.0).generate(overruled, prompts[:4], max_new_tokens=3)
        assert not torch.equal(moved.margins, plain.margins)


@pytest.mark.long
@pytest.mark.parametrize("method", [TruthReadout(layer=1), DirectionSteering(layer=1), AblateDirection(layer=1)])
def test_learning_is_repeatable_and_named_by_its_content(vlm: VLM, method: Any, tmp_path: Path) -> None:
    prompts, safe = cases(32)
    vlm.score(prompts[:1])  # transformers hangs hooks of its own at the first forward, and leaves them
    own, middle = vlm.margin, vlm.score(prompts).median()
    vlm.margin = lambda logits: own(logits) - middle  # type: ignore[method-assign]  # called safe and unsafe alike
    with plain_afterwards(vlm):
        learned = [method.learn(vlm, prompts, safe, out=tmp_path / f"{name}.safetensors") for name in "ab"]
    assert repr(learned[0]) == repr(learned[1])
    assert not isinstance(learned[0], TrainableMethod)
    assert str(tmp_path) not in repr(learned[0])
    assert method.read(tmp_path / "a.safetensors") == learned[0]
    other = method.learn(vlm, prompts[:28], safe[:28], out=tmp_path / "c.safetensors")
    assert repr(other) != repr(learned[0])
    shifted = Shifted(learned[0], 1.5).generate(vlm, prompts[:2], max_new_tokens=1).margins
    torch.testing.assert_close(shifted, learned[0].generate(vlm, prompts[:2], max_new_tokens=1).margins + 1.5)
    with pytest.raises(UserError, match="learn"):
        method.read(tmp_path / "none.safetensors")


def rows(read: Pooled, chosen: torch.Tensor) -> Pooled:
    return Pooled(*(None if part is None else part[chosen] for part in read))


def test_the_question_is_taken_away_and_a_conjunction_is_found() -> None:
    generator = torch.Generator().manual_seed(0)
    truth = torch.arange(400) % 2 == 0
    question = torch.randn(20, 6, generator=generator)[torch.arange(400) // 20]
    verdict = torch.randn(400, 6, generator=generator) * 0.1
    verdict[:, 0] += 5 * question[:, 0] + 0.5 * truth  # the truth under ten times as much of the question
    new = torch.arange(400) >= 200
    read = Pooled(verdict, question)
    fitted = fit_readout(rows(read, ~new), truth[~new], 1.0, 0.001)
    assert area(verdict[new][:, 0], truth[new]) < 0.6
    assert area(fitted.logits(rows(read, new)), truth[new]) > 0.95
    fold = torch.arange(400) // 20 % 5
    validated = HeldOut(read, question_parts(question, fold), 0.001)
    assert area(validated.scores(truth, 1.0), truth) > 0.95
    assert validated.shuffled_area(truth, 1.0, seed=0) == pytest.approx(0.5, abs=0.1)
    image = torch.randn(400, 6, generator=generator)
    joined = (image[:, 1] * question[:, 2]) > 0
    products = Pooled(verdict, question, image)
    joint = fit_readout(rows(products, ~new), joined[~new], 0.1, 0.001).logits(rows(products, new))
    alone = fit_readout(rows(read, ~new), joined[~new], 0.1, 0.001).logits(rows(read, new))
    assert area(joint, joined[new]) > 0.9
    assert area(alone, joined[new]) < 0.7


@pytest.mark.parametrize("width", [6, 90])  # fewer than the cases, and more
@pytest.mark.parametrize("conjunction", [False, True])
def test_cross_validation_is_the_fit_without_each_fold(width: int, conjunction: bool) -> None:
    generator = torch.Generator().manual_seed(2)
    question = torch.randn(20, width, generator=generator)[torch.arange(60) // 3]
    verdict, image = (torch.randn(60, width, generator=generator) + question for _ in range(2))
    read = Pooled(verdict, question, image if conjunction else None)
    labels, fold = torch.rand(60, generator=generator) < 0.5, torch.arange(60) // 3 % 5
    errors = []
    for share in SHARE_PENALTIES:
        validated = HeldOut(read, question_parts(question, fold), share)
        error = 0.0
        for number in range(5):
            out = fold == number
            asked, states = (part[~out] - part[~out].mean(0) for part in (question, verdict))
            ridge = share * asked.square().sum(1).mean() * torch.eye(width)
            weights = torch.linalg.solve((asked.T @ asked + ridge).double(), (asked.T @ states).double()).float()
            own = (question[out] - question[~out].mean(0)) @ weights
            error += float((verdict[out] - verdict[~out].mean(0) - own).square().sum())
        errors.append(error)
        for penalty in PENALTIES:
            found = validated.scores(labels, penalty)
            for number in range(5):
                out = fold == number
                expected = fit_readout(rows(read, ~out), labels[~out], penalty, share).logits(rows(read, out))
                torch.testing.assert_close(found[out], expected, atol=1e-5, rtol=1e-5)
    chosen = HeldOut(read, question_parts(question, fold)).share_penalty
    assert chosen == SHARE_PENALTIES[int(np.argmin(errors))]


def test_steering_moves_by_the_gap_at_the_chosen_columns(overruled: VLM, tmp_path: Path) -> None:
    prompts, safe = cases()
    learned = DirectionSteering(layer=2, strength=0.5).learn(overruled, prompts, safe, out=tmp_path / "s.safetensors")
    found = learned.direction(overruled)
    assert abs(float(found.vector @ direction("seen"))) > 0.99
    before = residuals(overruled, prompts[:2], places=("verdict", "user"), layers=(2,))
    # An outer edit comes first, so what is read inside shows what steering left.
    for columns, moved in (("answer", ("verdict",)), ("prompt", ("user",)), ("all", ("verdict", "user"))):
        method = replace(learned, columns=columns)
        with edit_residual(
            overruled, lambda here, m=method: m._steered(here, Copies(0.5 * found.gap * found.vector)), layers=[2]
        ):
            after = residuals(overruled, prompts[:2], places=("verdict", "user"), layers=(2,))
        for place in ("verdict", "user"):
            change = (after.select(place, 2) - before.select(place, 2)) @ found.vector
            torch.testing.assert_close(change, torch.full((2,), 0.5 * found.gap if place in moved else 0.0))


@pytest.fixture
def pair() -> list[Prompt]:
    return [Prompt("How do I kill it?", picture(0)), Prompt("Is this safe for a dog?", picture(1))]


def test_no_state_has_the_direction_and_the_model_is_left_as_it_was(vlm: VLM, pair: list[Prompt]) -> None:
    drawn = torch.randn(32, generator=torch.Generator().manual_seed(3))
    plain = vlm.score(pair)
    with projected(vlm, drawn):
        read = residuals(vlm, pair, places=("verdict", "image", "user"), layers=range(1, last_layer(vlm)))
        ablated = vlm.score(pair)
        assert not torch.equal(ablated, plain)
        with projected(vlm, drawn):
            torch.testing.assert_close(vlm.score(pair), ablated, atol=1e-5, rtol=1e-5)
    # What leaves a layer is projected where the next one reads it.
    entering: list[torch.Tensor] = []
    with projected(vlm, drawn):
        handle = vlm.module_map.module(vlm.model, "final_norm").register_forward_pre_hook(
            lambda module, args: entering.append(args[0])
        )
        vlm.score(pair)
        handle.remove()
    assert float((entering[0] @ drawn / drawn.norm()).abs().max()) < 1e-5
    assert read.values.isfinite().all()
    with plain_afterwards(vlm), pytest.raises(RuntimeError, match="stop"), projected(vlm, drawn):
        raise RuntimeError("stop")
    assert torch.equal(vlm.score(pair), plain)


@pytest.fixture
def learned(vlm: VLM, tmp_path: Path) -> LearnedAblation:
    prompts, safe = cases(20)
    return AblateDirection(by="truth").learn(vlm, prompts, safe, out=tmp_path / "arm.safetensors")


def test_what_was_learned_serves_only_the_weights_that_it_was_learned_on(
    overruled: VLM, readout: LearnedReadout, vlm: VLM, learned: LearnedAblation, pair: list[Prompt]
) -> None:
    for method, own in ((readout, overruled), (learned, vlm)):
        other = VLM(own.model, own.processor, name="finetuned", revision="abc")
        with pytest.raises(UserError, match=r"in its weights \(None, here abc\); learn it on this model"):
            method.generate(other, pair, max_new_tokens=1)


def test_what_learns_from_the_margin_says_so() -> None:
    for follower in (TruthReadout(), AblateDirection(), DirectionSteering(towards="yes"), DriftCorrection()):
        assert abilities(follower).follows_margin
    assert not abilities(DirectionSteering()).follows_margin


def test_levels_hold_at_the_answer_alone(vlm: VLM, learned: LearnedAblation, pair: list[Prompt]) -> None:
    vector, levels = learned.direction(vlm), torch.tensor([2.0, -1.0])
    plain = residuals(vlm, pair, places=("verdict", "user"))
    with levelled(vlm, vector, levels):
        read = residuals(vlm, pair, places=("verdict", "user"))
    # An inner edit sees what the outer one left.
    torch.testing.assert_close(read.select("verdict", 1) @ vector, torch.full((2,), 2.0), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(read.select("verdict", 2) @ vector, torch.full((2,), -1.0), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(read.select("user", 1), plain.select("user", 1))
    assert replace(learned, to="safe").generate(vlm, pair, max_new_tokens=2).margins.isfinite().all()


def test_controls_differ_by_seed(vlm: VLM, pair: list[Prompt]) -> None:
    drawn = [AblateRandom(seed).generate(vlm, pair, max_new_tokens=1).margins for seed in (0, 0, 1)]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
