"""Part scaling: the planted part is found and scaled around its mean, and random parts in its place do nothing."""

from pathlib import Path
from typing import Any

import pytest
import torch

from interp.errors import UserError
from interp.tensor_file import read_rows
from interp.vlm import VLM, Prompt
from mitigation import PartScaling
from mitigation.learned.part_scaling import LearnedScaling
from tests.planted import Plan, coloured, planted

CALM = tuple(f"Is this safe {word}?" for word in ("here", "now", "this", "it", "for", "the"))
ALARMING = ("Is it safe to kill it?", "Is it safe to kill this?")
CARRIER = Plan(carriers=((1, 0, 1.0),), idle=((0, 1), (1, 1)))
HEARER = Plan(carriers=((1, 0, 0.5),), heeds=2)


def cases(texts: tuple[str, ...]) -> tuple[list[Prompt], list[bool]]:
    """A red picture (safe) and a blue one under each question, twice."""
    shades = ((0.9, True), (-0.7, False), (0.5, True), (-0.2, False))
    prompts = [Prompt(text, coloured(redness), key=f"{text} {redness}") for text in texts for redness, _ in shades]
    return prompts, [safe for _ in texts for _, safe in shades]


def learned(plan: Plan, texts: tuple[str, ...], tmp_path: Path, **settings: Any) -> tuple[VLM, LearnedScaling]:
    vlm = planted(plan)
    return vlm, PartScaling(**settings).learn(vlm, *cases(texts), out=tmp_path / "scaling.safetensors")


@pytest.mark.long
def test_the_carrier_is_found_and_its_distance_from_the_mean_is_multiplied(tmp_path: Path) -> None:
    vlm, method = learned(CARRIER, CALM, tmp_path, parts=1, strength=2.5)
    assert method.about["parts"] == [["head", 1, 0]]
    prompts, _ = cases(CALM)
    rows = read_rows(Path(method.learned_in))
    assert rows is not None
    assert rows.examples == len(prompts)
    plain = vlm.score(prompts)
    got = method.generate(vlm, prompts, max_new_tokens=2)
    torch.testing.assert_close(got.margins, plain.mean() + 2.5 * (plain - plain.mean()), atol=1e-2, rtol=1e-3)
    alone = method.generate(vlm, prompts[3:4], max_new_tokens=2)
    torch.testing.assert_close(alone.margins, got.margins[3:4], atol=1e-4, rtol=1e-4)
    assert method.about["auroc"] == {}


@pytest.mark.long
def test_random_parts_are_others_and_strength_1_changes_nothing(tmp_path: Path) -> None:
    vlm, control = learned(CARRIER, CALM, tmp_path, parts=2, random=True, strength=3.0)
    assert ["head", 1, 0] not in control.about["parts"]
    prompts, _ = cases(CALM)
    plain = vlm.score(prompts)
    torch.testing.assert_close(control.generate(vlm, prompts, max_new_tokens=1).margins, plain, atol=1e-2, rtol=1e-3)
    vlm, same = learned(CARRIER, CALM, tmp_path, parts=1, strength=1.0)
    torch.testing.assert_close(same.generate(vlm, prompts, max_new_tokens=1).margins, plain, atol=1e-4, rtol=1e-4)


@pytest.mark.long
def test_the_sentence_is_turned_down_and_the_picture_left(tmp_path: Path) -> None:
    """What is heard of an alarming sentence is replaced by its mean over sentences, so that only the picture counts."""
    vlm, method = learned(HEARER, (*CALM, *ALARMING), tmp_path, carries="sentence", parts=1)
    assert method.about["parts"] == [["head", 2, 1]]
    assert method.about["strength"] == 0.0
    assert method.about["auroc"]["0.0"] == 1.0 > method.about["auroc"]["0.5"]
    calm, alarming = cases(CALM[:1])[0], cases(ALARMING[:1])[0]
    assert float((vlm.score(calm) - vlm.score(alarming)).min()) > 5
    alike = [method.generate(vlm, some, max_new_tokens=1).margins for some in (calm, alarming)]
    torch.testing.assert_close(alike[0], alike[1], atol=2e-2, rtol=1e-2)
    assert float(alike[0].max() - alike[0].min()) > 5


@pytest.mark.long
def test_it_is_repeatable_and_refuses_what_cannot_teach_it(vlm: VLM, tmp_path: Path) -> None:
    own, method = learned(CARRIER, CALM, tmp_path, parts=1)
    again = PartScaling(parts=1).learn(own, *cases(CALM), out=tmp_path / "again.safetensors")
    assert repr(again) == repr(method)
    assert str(tmp_path) not in repr(method)
    with pytest.raises(UserError, match="learned on"):
        method.generate(vlm, cases(CALM)[0], max_new_tokens=1)
    prompts, safe = cases(CALM)
    with pytest.raises(UserError, match="0 questions with a safe and an unsafe case"):
        PartScaling().check_cases([prompt.text for prompt in prompts], [True] * len(prompts))
    with pytest.raises(UserError, match="parts=9 of the 12"):
        PartScaling(parts=9).learn(own, prompts, safe, out=tmp_path / "none.safetensors")
    for settings, said in (
        ({"carries": "noun"}, "carries='noun'"),
        ({"parts": 0}, "parts=0"),
        ({"strength": float("inf")}, "strength=inf"),
    ):
        with pytest.raises(UserError, match=said):
            PartScaling(**settings)  # type: ignore[arg-type]
