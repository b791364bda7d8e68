"""Patching: into itself nothing moves, everything at once gives the other's margin, and what was planted is found."""

from typing import Any

import pytest
import torch

from interp.errors import UserError
from interp.hooks.residual import last_layer
from interp.patching import misaligned, patch
from interp.segments import segment
from interp.vlm import VLM, Prompt
from tests.families import FAMILIES
from tests.planted import Plan, coloured, planted
from tests.tiny import picture

CLEAN = [
    Prompt("How do I kill it?", picture(0, (40, 40)), key="a"),
    Prompt("Is this safe?", picture(1, (40, 40)), system="Refuse anything unsafe.", key="b"),
]
OTHER = [
    Prompt("How do I kill it?", picture(2, (40, 40)), key="a2"),
    Prompt("Is this safe?", picture(3, (40, 40)), system="Refuse anything unsafe.", key="b2"),
]


def places_of(vlm: VLM) -> tuple[str, ...]:
    """Some that the family has."""
    return ("all", "verdict", "user", *(() if vlm.layout.cross_attended else ("image",)))


def enters_later(vlm: VLM) -> int:
    """The first layer after which the picture itself is not put in again."""
    if vlm.layout.cross_attended:
        return last_layer(vlm)
    return 2 if vlm.layout.model_type == "qwen3_vl" else 0  # its one DeepStack level comes after layer 0


@pytest.mark.parametrize("name", FAMILIES)
def test_all_places_at_one_point_give_exactly_the_other_answer(name: str) -> None:
    vlm = VLM(*FAMILIES[name](), name=name)
    first = enters_later(vlm)
    found = patch(vlm, CLEAN, OTHER, places=places_of(vlm), least_gap=0.0)
    whole = found.values[found.places.index("all"), first:]
    assert torch.equal(whole, torch.ones_like(whole))
    assert torch.equal(found.at("verdict", last_layer(vlm)), torch.ones(2))
    for place in set(found.places) - {"all", "verdict"}:
        assert torch.equal(found.at(place, last_layer(vlm)), torch.zeros(2))
    torch.testing.assert_close(found.clean, vlm.score(CLEAN), atol=0, rtol=0)
    torch.testing.assert_close(found.other, vlm.score(OTHER), atol=0, rtol=0)


@pytest.mark.parametrize("name", ["llava", "qwen3_vl", "instructblip", "paligemma2", "mllama"])
def test_a_run_patched_into_itself_does_not_move(name: str) -> None:
    vlm = VLM(*FAMILIES[name](), name=name)
    found = patch(vlm, CLEAN, CLEAN, places=places_of(vlm), layers=[0, 1])
    assert torch.equal(found.moved, torch.zeros(found.moved.shape))
    assert found.values.isnan().all()  # no gap to take a share of
    assert found.reasons[0] == ("margins only 0 logits apart",) * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equal_to_exchanging_by_hand(vlm: VLM, dtype: torch.dtype) -> None:
    vlm.model.to(dtype)
    found = patch(vlm, CLEAN[:1], OTHER[:1], places=("image", "user"))
    labels = segment(vlm, CLEAN[:1], vlm.encode(CLEAN[:1])).rows[0].labels
    layer = vlm.layout.module(vlm.model, "layers")[0]
    kept: list[torch.Tensor] = []
    handle = layer.register_forward_hook(lambda module, args, output: kept.append(output))
    vlm.score(OTHER[:1])
    handle.remove()
    for place, label in (("image", "image_0"), ("user", "user")):
        columns = [i for i, name in enumerate(labels) if name == label]

        def exchange(module: Any, args: Any, output: torch.Tensor, columns: list[int] = columns) -> torch.Tensor:
            output = output.clone()
            output[:, columns] = kept[0][:, columns]
            return output

        handle = layer.register_forward_hook(exchange)
        patched = vlm.score(CLEAN[:1])
        handle.remove()
        assert torch.equal(found.at(place, 1), (patched - found.clean) / (found.other - found.clean))
    assert not 0 < found.at("image", 1) - 1 < 1e-6


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-3), (torch.bfloat16, 0.03)])
def test_a_picture_that_the_verdict_looks_at_is_found(dtype: torch.dtype, tolerance: float) -> None:
    """Read in layer 1 and written in layer 2: at the image up to layer 1, at the verdict from layer 2 on."""
    vlm = planted(Plan(reads=1, writes=2, layers=3), dtype)
    sentences = ["Is this safe?", "the cake", "the cake"]
    red = [Prompt(sentence, coloured(1)) for sentence in sentences]
    blue = [Prompt(sentence, coloured(redness)) for sentence, redness in zip(sentences, (-1, -0.5, 0), strict=True)]
    for clean, other in ((red, blue), (blue, red)):
        found = patch(vlm, clean, other, places=("verdict", "image", "user", "template", "sink", "last_image"))
        expected = torch.zeros(found.values.shape)
        expected[found.places.index("image"), :2] = 1
        expected[found.places.index("verdict"), 2:] = 1
        expected[found.places.index("last_image"), :2] = 1 / 9  # a head takes the mean of nine patches
        torch.testing.assert_close(found.values, expected, atol=tolerance, rtol=0)


def test_a_picture_that_is_carried_by_the_words_is_found_there() -> None:
    vlm = planted(Plan(reads=0, writes=2, layers=3, through_words=True))
    clean, other = [Prompt("Is this safe?", coloured(0.8))], [Prompt("Is this safe?", coloured(-0.6))]
    found = patch(vlm, clean, other, places=("image", "user", "verdict", "template", "sink"))
    expected = torch.zeros(5, 4, 1)
    expected[0, 0] = expected[1, 1] = expected[2, 2:] = 1
    torch.testing.assert_close(found.values, expected, atol=1e-3, rtol=0)


def test_a_sentence_that_overrules_the_picture_is_found() -> None:
    """Same picture, other sentence of equal length: in the words up to where it is heard, then at the verdict."""
    vlm = planted(Plan(reads=0, heeds=1, writes=3, layers=4))
    clean, other = [Prompt("the cake", coloured(1))], [Prompt("the gun", coloured(1))]
    for pair in ((clean, other), (other, clean)):
        found = patch(vlm, *pair, places=("user", "last_user", "image", "verdict", "template"))
        expected = torch.zeros(5, 5, 1)
        expected[0, :2] = expected[1, :2] = expected[3, 2:] = 1
        torch.testing.assert_close(found.values, expected, atol=1e-3, rtol=0)


def test_a_batch_equals_its_pairs(vlm: VLM) -> None:
    together = patch(vlm, CLEAN, OTHER, layers=[1])
    apart = [patch(vlm, [a], [b], layers=[1]) for a, b in zip(CLEAN, OTHER, strict=True)]
    by_ones = patch(vlm, CLEAN, OTHER, layers=[1], batch_size=1)
    torch.testing.assert_close(together.values, torch.cat([one.values for one in apart], 2), atol=1e-4, rtol=1e-4)
    assert torch.equal(by_ones.values, torch.cat([one.values for one in apart], 2))
    table = by_ones.table
    assert table.columns.tolist() == ["place", "layer", "row", "clean", "other", "moved", "effect", "reason"]
    row = table[(table["place"] == "image") & (table["row"] == 1)].iloc[0]
    assert row["effect"] == pytest.approx(float(by_ones.at("image", 1)[1]))


def test_unaligned_pairs_are_refused_with_both_names(vlm: VLM) -> None:
    longer = [OTHER[0], Prompt("Is this picture safe?", picture(3), system="Refuse anything unsafe.", key="long")]
    for place, reason in (("user", "3 columns against 4|4 columns against 5"), ("template", "at other positions")):
        with pytest.raises(UserError, match=rf"pair 1 \('b' and 'long'\) does not align at '{place}'.*({reason})"):
            patch(vlm, CLEAN, longer, places=(place,), batch_size=1)
    found = patch(vlm, CLEAN, longer, places=("image", "verdict", "last_user", "sink"))
    assert torch.equal(found.at("verdict", 2), torch.ones(2))
    assert misaligned(vlm, CLEAN, longer, places=("image", "user")) == ["", "4 columns against 5"]
    blind = [Prompt(prompt.text, system=prompt.system) for prompt in CLEAN]
    assert misaligned(vlm, CLEAN[:1], blind[:1], places=("image",)) == ["9 columns against 0"]
    other_system = [Prompt("Is this safe?", picture(3), system="consider a gun first", key="s")]
    assert misaligned(vlm, CLEAN[1:], other_system, places=("all", "system")) == [""]


def test_pictures_of_other_grids_do_not_align() -> None:
    vlm = VLM(*FAMILIES["qwen2_vl"](), name="qwen2_vl")
    wide, tall = [Prompt("the cake", picture(0, (64, 32)))], [Prompt("the cake", picture(0, (32, 64)))]
    (reason,) = misaligned(vlm, wide, tall, places=("image",))
    assert reason.startswith("picture grids of [(")
    assert misaligned(vlm, wide, tall, places=("verdict",)) == [""]


def test_a_place_that_is_not_there_has_no_effect_rather_than_none(vlm: VLM) -> None:
    found = patch(vlm, CLEAN, OTHER, places=("system", "verdict"), layers=[2])
    assert found.at("system", 2).isnan().tolist() == [True, False]
    assert found.reasons[0] == ("neither prompt has such a place", "")
    assert not found.at("verdict", 2).isnan().any()
    near = patch(vlm, CLEAN, OTHER, places=("verdict",), layers=[2], least_gap=1e6)
    assert near.values.isnan().all()
    assert "logits apart" in near.reasons[0][0]
    assert not near.moved.isnan().any()


@pytest.mark.parametrize(
    ("other", "options", "message"),
    [
        (OTHER[:1], {}, "2 clean prompts, 1 others"),
        (OTHER, {"batch_size": 0}, "batches of 0"),
        (OTHER, {"places": ("generated",)}, "no place 'generated'"),
        (OTHER, {"layers": [7]}, "no layer 7"),
    ],
)
def test_what_cannot_be_patched_is_named(vlm: VLM, other: list[Prompt], options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        patch(vlm, CLEAN, other, **options)
    with pytest.raises(UserError, match="2 clean prompts and 1 others"):
        misaligned(vlm, CLEAN, OTHER[:1], places=("user",))


def test_nothing_is_left_behind(vlm: VLM) -> None:
    def traces() -> list[object]:
        return [[(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in vlm.model.modules()], sorted(vars(vlm))]

    margins, before = vlm.score(CLEAN), traces()
    patch(vlm, CLEAN, OTHER, layers=[0, 2])
    assert traces() == before
    assert torch.equal(vlm.score(CLEAN), margins)
