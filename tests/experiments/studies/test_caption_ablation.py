"""The right caption beside the picture: what each arm asks and puts there, what is said, and one that is killed."""

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from experiments.benchmarks.iconworld import IconWorld
from experiments.benchmarks.iconworld.sentences import PREFIX
from experiments.evaluation.matching import twins
from experiments.report.sentences.caption_ablation import sentences
from experiments.studies.words_and_picture.caption_ablation import (
    ALONE,
    ARMS,
    BESIDE,
    CENTRED_PICTURE,
    CUTS,
    FILLER,
    OTHER_CAPTION,
    OTHER_PICTURE,
    arm_rows,
    conclude,
    embeddings,
    margins_of,
    prompts,
    replaced,
    sways,
)
from experiments.studies.words_and_picture.places import that_point
from experiments.studies.words_and_picture.study import spread
from experiments.studies.words_and_picture.tables import caption_ablation_tables
from experiments.types import Sample
from interp.batching import BatchRule
from interp.errors import UserError
from interp.hooks.residual import LayerStates, edit_residual
from interp.loading import load
from interp.segments import segment
from interp.vlm import VLM, Prompt
from tests.experiments.compose import run_of
from tests.families import FAMILIES

EVERY = that_point(IconWorld().load().samples)


@pytest.fixture(scope="module")
def vlm() -> VLM:
    return load("organism:llava", device="cpu")


def pairs(count: int) -> list[Sample]:
    names = list(dict.fromkeys(sample.pair for sample in EVERY))[:: len(EVERY) // 2 // count][:count]
    return [sample for sample in EVERY if sample.pair in names]


def test_each_arm_asks_what_it_is_named_after() -> None:
    cases = pairs(2)[:3]
    others = twins(cases)
    assert others == [1, 0, None]
    asked = prompts(cases, others)
    assert set(asked) == set(ARMS)
    case, other = cases[0], cases[1]
    question = f'{PREFIX}\n"{case.text}"'
    own = f"{case.described}\n{question}"
    texts = {arm: made[0].text for arm, made in asked.items() if made[0] is not None}
    assert texts[ALONE] == own.replace("Given the image, do", "Do")
    assert texts["picture"] == texts[CENTRED_PICTURE] == question
    assert texts[OTHER_CAPTION] == f"{other.described}\n{question}"
    others_ = (ALONE, "picture", CENTRED_PICTURE, OTHER_CAPTION)
    assert all(text == own for arm, text in texts.items() if arm not in others_)
    pictured = {arm: made[0].image for arm, made in asked.items() if made[0] is not None}
    assert {arm for arm, image in pictured.items() if image is None} == {ALONE, "worded"}
    assert len(set(pictured["grey"].getdata())) == 1
    assert pictured[OTHER_PICTURE].tobytes() == asked["picture"][1].image.tobytes() != pictured[BESIDE].tobytes()
    assert asked[OTHER_CAPTION][2] is asked[OTHER_PICTURE][2] is None


def entering(vlm: VLM, asked: list[Any], arm: str = "", mean: torch.Tensor | None = None) -> torch.Tensor:
    """What enters the first decoder layer, in the picture's place."""
    encoded = vlm.encode(asked)
    segments = segment(vlm, asked, encoded)
    kept: list[torch.Tensor] = []

    def look(here: LayerStates) -> None:
        hidden = here.hidden
        if arm:
            hidden = replaced(vlm, arm, hidden, segments, [one.key for one in asked], 0, mean)
            outside = ~here.where("image")
            assert torch.equal(hidden[outside], here.hidden[outside])
        kept.append(torch.stack([hidden[row, one.columns("image_0")] for row, one in enumerate(segments.rows)]))

    with edit_residual(vlm, look, layers=[0], segments=segments):
        vlm.score(asked, encoded=encoded)
    return kept[0]


def test_what_stands_in_the_pictures_place(vlm: VLM) -> None:
    cases = pairs(2)
    asked = [one for one in prompts(cases, twins(cases))[BESIDE] if one is not None]
    own = entering(vlm, asked)
    noise, short, words = (entering(vlm, asked, arm) for arm in ("noise", "short", "words"))
    assert torch.allclose(noise.norm(dim=-1), own.norm(dim=-1), rtol=1e-5)
    assert torch.cosine_similarity(noise, own, dim=-1).abs().mean() < 0.3
    assert not torch.equal(noise[0], noise[1])
    assert torch.equal(noise[1:], entering(vlm, asked[1:], "noise"))  # drawn by the case, not by the batch
    assert torch.allclose(torch.cosine_similarity(short, own, dim=-1), torch.ones(own.shape[:2]), atol=1e-5)
    assert torch.allclose(short.norm(dim=-1), short[0, 0].norm(), rtol=0.2)
    first = vlm.tokenizer(FILLER, add_special_tokens=False).input_ids[0]
    assert torch.equal(words[0, 0], vlm.model.get_input_embeddings().weight[first])
    assert torch.equal(words[0], words[1])
    found = embeddings(vlm, asked)
    assert torch.allclose(found.mean, own.mean(0), atol=1e-5)
    assert found.length == pytest.approx(float(own.norm(dim=-1).mean()), rel=1e-5)
    assert 0 < found.shared < 1
    centred = entering(vlm, asked, "centred", own.mean(0))
    assert torch.allclose(centred.norm(dim=-1), own.norm(dim=-1), rtol=1e-4)
    apart = own - own.mean(0)
    assert torch.allclose(torch.cosine_similarity(centred, apart, dim=-1), torch.ones(own.shape[:2]), atol=1e-4)


def test_where_nothing_sees_the_picture_it_makes_no_difference(vlm: VLM) -> None:
    cases = pairs(3)
    asked = prompts(cases, twins(cases))
    right, wrong = (margins_of(vlm, "cut_all", asked[arm], seed=0) for arm in (BESIDE, OTHER_PICTURE))
    assert torch.equal(right, wrong)
    for arm in set(CUTS) - {"cut_all"}:
        assert not torch.equal(*(margins_of(vlm, arm, asked[of], seed=0) for of in (BESIDE, OTHER_PICTURE)))
    missing = margins_of(vlm, OTHER_CAPTION, [None, *asked[OTHER_CAPTION][1:]], seed=0)
    assert missing.isnan().tolist() == [True, *[False] * 5]


def claims(strength: dict[str, float], *, cases: list[Sample] | None = None) -> dict[str, Any]:
    """A result whose margins follow the case's own truth by ``strength`` standard deviations, by arm."""
    cases, rng = cases or EVERY, np.random.default_rng(0)
    others = twins(cases)
    sides = np.array([1.0 if sample.gold == "yes" else -1.0 for sample in cases])
    base = rng.normal(0, 1, len(cases))
    margins = {
        arm: torch.tensor(base + rng.normal(0, 0.1, len(cases)) + strength.get(arm, 0.1) * sides) for arm in ARMS
    }
    rows = arm_rows(cases, margins, seed=0, draws=200)
    sway = sways(cases, others, margins, seed=0, draws=200)
    findings = [one.as_json() for one in conclude(rows, sway)]
    lengths = {"picture": 9.0, "words": 1.0, "shared": 0.5}
    counted_ = {"n": len(cases), "with_other": len(cases)}
    return {"cases": counted_, "arms": rows, "sway": sway, "lengths": lengths, "findings": findings}


@pytest.mark.long
def test_what_is_said_is_what_the_intervals_carry() -> None:
    told = sentences(claims({ALONE: 1.5, "worded": 1.5, "cut_all": 1.5, OTHER_CAPTION: -1.0}))
    assert told[0].startswith("AUROC over 672 cases: caption alone 0.9")
    assert "; lower)." in told[0]
    assert told[1].endswith("the verdict follows the caption.")
    assert "less; 672 cases" in told[2]
    (shown,) = caption_ablation_tables(claims({ALONE: 1.5, "worded": 1.5, "cut_all": 1.5}))
    asked = {row["asked"]: row for row in shown.records()}
    assert asked["picture → all behind it cut"]["minus picture and caption: said"] == "rose"
    assert asked["caption alone, the question as with a picture"]["minus caption alone: said"] in (
        "no change of more than .02", "not shown")  # fmt: skip
    assert [row["minus picture and caption: said"] for row in asked.values()].count("rose") == 3
    told = sentences(claims({OTHER_CAPTION: 0.1}))
    assert told[1].endswith("that the verdict follows the caption is not shown.")
    few = sentences(claims({ALONE: 1.5}, cases=pairs(6)))
    assert "too few cases to tell (6 independent" in few[0]


def test_a_sway_is_what_a_swapped_caption_moves_towards_the_truth() -> None:
    cases = pairs(12)
    others = twins(cases)
    sides = torch.tensor([1.0 if sample.gold == "yes" else -1.0 for sample in cases])
    zero = torch.zeros(len(cases))
    margins = dict.fromkeys(ARMS, zero) | {ALONE: 2 * sides, BESIDE: 0.5 * sides, OTHER_CAPTION: -0.5 * sides}
    found = sways(cases, others, margins, seed=0, draws=50)
    values = {name: entry["value"] for name, entry in found.items()}
    assert values == {"alone": 4, "beside": 1, "picture": 0, "picture_beside": 0.5, "less": -3}
    assert found["alone"]["n"] == 24


def test_cases_looked_at_are_whole_pairs_over_the_whole_benchmark() -> None:
    samples = IconWorld().load().samples
    some = spread(samples, 100)
    assert 96 <= len(some) <= 100
    assert all(at is not None for at in twins(some))
    assert len({sample.tags["template"] for sample in some}) >= 23
    assert {sample.tags["wrapper"] for sample in some} == {sample.tags["wrapper"] for sample in EVERY}
    assert spread(samples, None) == spread(samples, 9999) == EVERY
    assert {one.id for one in spread(samples, 2)} == {one.id for one in EVERY if one.pair == EVERY[0].pair}
    with pytest.raises(UserError, match=r"task\.cases=1: must be at least 2"):
        run_of("+exp=words_and_picture", "task.cases=1")


def test_pictures_of_different_numbers_of_tokens_have_no_mean() -> None:
    model, processor = FAMILIES["qwen2_vl"]()
    asked = [Prompt("the cat", Image.new("RGB", (side, 56), "red"), key=str(side)) for side in (56, 112)]
    vlm = VLM(model, processor, name="qwen")
    with (
        vlm.batches.by(BatchRule(rows=1), on_lowered=print),
        pytest.raises(UserError, match="the pictures have different numbers of tokens"),
    ):
        embeddings(vlm, asked)
