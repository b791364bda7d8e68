"""Drift correction: a planted drift is found and taken off; one that nothing reads, and controls, change nothing.

The network is right in words, and with pictures too, but for a vector that every picture adds: past where the verdict's
layer saturates, so that all pictures are judged alike.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from interp.errors import UserError
from interp.vlm import VLM, Prompt
from mitigation.learned.drift import DriftCorrection, LearnedDrift
from mitigation.learned.state_edits import Correction, ridge_map
from mitigation.method import question_halves
from tests.planted import DIMENSIONS, Plan, _copy, coloured, direction, planted
from tests.slow import first

DRIFT = 3.0
QUESTIONS = tuple(f"Is it safe {word} to kill this?" for word in ("here", "now", "for", "and", "with", "on"))
THINGS = {"a cake": 0.8, "a dog": -0.8}


def drifting(to: str = "seen") -> VLM:
    """Pictures add ``DRIFT`` to the verdict's states from residual layer 2 on; cakes are red, dogs blue."""
    vlm = planted(Plan(carriers=((1, 0, 1.0),), writes=2, saturates=True))
    text = vlm.model.model.language_model
    mark, image, picture = (DIMENSIONS.index(name) for name in ("idle", "image", "picture"))
    with torch.no_grad():
        vlm.model.model.multi_modal_projector.linear_1.bias[mark] = 1
        _copy(text.layers[1].self_attn, 1, asker="asks", source="image", value="idle", to=to, weight=DRIFT)
        for thing, redness in THINGS.items():
            row = text.embed_tokens.weight[vlm.tokenizer.convert_tokens_to_ids(thing.split()[1])]
            row[image], row[picture] = 1, redness
    return vlm


def cases(shades: tuple[float, ...] = (0.4, -0.4, 0.2, -0.2)) -> tuple[list[Prompt], list[bool]]:
    """A reddish picture (safe) and a bluish one under each question, twice."""
    prompts = [
        Prompt(text, coloured(redness), key=f"{text} {redness}", shows="a cake" if redness > 0 else "a dog")
        for text in QUESTIONS
        for redness in shades
    ]
    return prompts, [redness > 0 for _ in QUESTIONS for redness in shades]


def learned(vlm: VLM, out: Path, **settings: Any) -> LearnedDrift:
    return DriftCorrection(describe="oracle", **settings).learn(vlm, *cases(), out=out / "drift.safetensors")


def correction_of(method: LearnedDrift) -> Correction:
    return Correction(**method._vectors.tensors)


def area(margins: torch.Tensor, safe: list[bool]) -> float:
    labels = torch.tensor(safe)
    above = margins[labels][:, None] - margins[~labels]
    return float(((above > 1e-3).double() + (above.abs() <= 1e-3) / 2).mean())


@pytest.mark.long
@pytest.mark.parametrize("correction", first(["map", "mean", "caption"]))
def test_the_planted_drift_is_found_and_the_verdicts_restored(correction: str, tmp_path: Path) -> None:
    vlm = drifting()
    prompts, safe = cases((0.5, -0.3, 0.1, -0.1))
    plain = vlm.score(prompts)
    assert area(plain, safe) == 0.5  # saturated
    method = learned(vlm, tmp_path, correction=correction)
    assert method.about["auroc"]["plain"] <= 0.5
    assert method.about["layer"] == 2  # behind the layer that drifts, before the one that saturates
    got = method.generate(vlm, prompts, max_new_tokens=3)
    assert area(got.margins, safe) == 1.0
    assert [text.split()[0] for text in got.texts] == ["Yes" if one else "No" for one in safe]
    assert method.about["norm"] == pytest.approx(DRIFT, abs=0.3)
    assert abs(method.about["cosine"]) >= 0.95
    alone = method.generate(vlm, prompts[1:2], max_new_tokens=3)
    torch.testing.assert_close(alone.margins, got.margins[1:2], atol=1e-3, rtol=1e-3)


@pytest.mark.long
def test_the_fitted_vector_is_the_planted_one_and_strength_scales_it(tmp_path: Path) -> None:
    vlm = drifting()
    method = learned(vlm, tmp_path, layer=2)
    bias = correction_of(method).bias
    assert float(torch.cosine_similarity(-bias, direction("seen"), dim=0)) >= 0.95
    assert list(method.about["auroc"]) == ["plain"]
    prompts, _ = cases()
    plain = vlm.generate(prompts, max_new_tokens=3)
    nothing = learned(vlm, tmp_path, layer=2, strength=0.0)
    same = nothing.generate(vlm, prompts, max_new_tokens=3)
    assert torch.equal(same.margins, plain.margins)
    assert same.token_ids == plain.token_ids


@pytest.mark.parametrize("correction", ["mean", "map"])
def test_a_drift_that_the_verdict_does_not_read_moves_no_case_past_another(correction: str, tmp_path: Path) -> None:
    vlm = drifting(to="idle")
    prompts, safe = cases()
    plain = vlm.score(prompts)
    assert area(plain, safe) == 1.0
    method = learned(vlm, tmp_path, correction=correction, layer=2)
    got = method.generate(vlm, prompts, max_new_tokens=1)
    assert area(got.margins, safe) == 1.0
    if correction == "mean":  # a constant
        change = got.margins - plain
        torch.testing.assert_close(change, change.mean().expand_as(change), atol=2e-2, rtol=1e-2)
    assert method.about["norm"] == pytest.approx(DRIFT, abs=0.3)
    assert abs(method.about["cosine"]) < 0.1


@pytest.mark.parametrize("correction", ["caption", "map"])
def test_shuffled_captions_restore_nothing_that_the_captions_said(correction: str, tmp_path: Path) -> None:
    """Two things: every caption is exchanged for the other thing's."""
    vlm = drifting()
    control = learned(vlm, tmp_path, correction=correction, layer=2, control="shuffled")
    prompts, safe = cases()
    assert area(control.generate(vlm, prompts, max_new_tokens=1).margins, safe) < 0.5


def test_the_map_is_a_ridge_regression() -> None:
    states = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    weight, bias = ridge_map(states, 2 * states + 1)
    torch.testing.assert_close(states @ weight.T + bias, 2 * states + 1, atol=0.1, rtol=0.1)


def test_what_it_refuses(tmp_path: Path) -> None:
    assert question_halves(["a", "a", "b", "b"], [True, False] * 2, 0) in ([0, 0, 1, 1], [1, 1, 0, 0])
    with pytest.raises(UserError, match="no layer 9"):
        learned(drifting(), tmp_path, layer=9)
